/**
 * The package in a page, as each bundler makes it of a fresh project: it connects, and holds a
 * lock.
 */

import { readFileSync, readdirSync, realpathSync } from 'node:fs';
import { join } from 'node:path';
import { pathToFileURL } from 'node:url';
import { browser, website } from './chromium.js';
import { assert, test } from './harness.js';
import { machine } from './machine.js';
import { project } from './project.js';

const PAGE = "import { connect } from 'lockkeeper'; globalThis.connect = connect;";

/** A tool, from the project's own `node_modules`. */
const tool = ({ dir }, path) => import(pathToFileURL(realpathSync(join(dir, 'node_modules', path))));

/** Each makes a module of `page.js`. */
const bundlers = {
  esbuild: [
    ['esbuild'],
    async (here) => {
      const { build } = await tool(here, 'esbuild/lib/main.js');
      const files = { entryPoints: [join(here.dir, 'page.js')], outfile: join(here.dir, 'out/page.js') };
      await build({ ...files, bundle: true, minify: true, format: 'esm', platform: 'browser' });
    },
  ],
  webpack: [
    ['webpack'],
    async (here) => {
      const { default: webpack } = await tool(here, 'webpack/lib/index.js');
      const output = { path: join(here.dir, 'out'), filename: 'page.js' };
      const options = { mode: 'production', target: 'web', context: here.dir, entry: './page.js', output };
      await new Promise((resolve, reject) => webpack(options, (error) => (error ? reject(error) : resolve())));
    },
  ],
  Rollup: [
    ['rollup', '@rollup/plugin-node-resolve'],
    async (here) => {
      const { rollup } = await tool(here, 'rollup/dist/es/rollup.js');
      const { nodeResolve } = await tool(here, '@rollup/plugin-node-resolve/dist/es/index.js');
      const bundle = await rollup({ input: join(here.dir, 'page.js'), plugins: [nodeResolve({ browser: true })] });
      await bundle.write({ file: join(here.dir, 'out/page.js'), format: 'es' });
    },
  ],
  Vite: [
    ['vite'],
    async (here) => {
      const { build } = await tool(here, 'vite/dist/node/index.js');
      await build({ root: here.dir, logLevel: 'error', configFile: false, build: { outDir: 'out', assetsDir: '' } });
    },
  ],
};

for (const [name, [tools, bundle]] of Object.entries(bundlers)) {
  test(`a page that ${name} has bundled connects, and holds a lock`, async () => {
    const index = '<script type="module" src="/page.js"></script>';
    const here = await project({ 'page.js': PAGE, 'index.html': index }, tools);
    await bundle(here);
    const [file] = readdirSync(join(here.dir, 'out')).filter((file) => file.endsWith('.js'));
    const script = readFileSync(join(here.dir, 'out', file));
    const origin = await website((path) =>
      path === '/page.js'
        ? { body: script, headers: { 'content-type': 'text/javascript' } }
        : { body: `<!doctype html>${index}` },
    );
    const there = machine({ network: true });
    await there.start('--allow-origin', origin);
    const page = await (await browser()).open(`${origin}/`);
    const held = await page.evaluate(async (url) => {
      const locks = await connect(url);
      return locks.request('a', async (lock) => [lock.name, (await locks.query()).held.length]);
    }, there.url);
    assert.deepEqual(held, ['a', 1]);
  });
}
