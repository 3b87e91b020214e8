/**
 * The package in the tools that people use it with, each in a fresh project: test runners and
 * bundlers.
 */

import { execFileSync } from 'node:child_process';
import { cpSync, mkdtempSync, readFileSync, readdirSync, realpathSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { gzipSync } from 'node:zlib';
import platform from '../dist/cjs/platform.cjs';
import { assert, cleanUp, test } from './harness.js';
import { machine } from './machine.js';
import { execute, project } from './project.js';

/** The drop-in and the bundle of a page that connects, compressed: at most so many bytes. */
const BUDGET = 12_000;
const BUNDLE_BUDGET = 12_288;

/** A tool, from the project's own `node_modules`. */
const tool = ({ dir }, path) => import(pathToFileURL(realpathSync(join(dir, 'node_modules', path))));

/** What a test does with the package, in whatever runner. */
const BODY = `
  const seen = [];
  await Promise.all([1, 2].map((n) => locks.request('a', async (lock) => {
    seen.push(n, lock.name);
    await null;
    seen.push(n);
  })));
  if (seen.join() !== '1,a,1,2,a,2') throw new Error(seen.join());
  const lock = await locks.acquire(['a', 'b'], { timeout: 1000 });
  if (await locks.request('b', { ifAvailable: true }, (lock) => lock) !== null) throw new Error('not held');
  if (!(await lock.release())) throw new Error('not released');
  const error = await locks.request('a', () => { throw new TypeError('mine'); }).catch((error) => error);
  if (!(error instanceof TypeError)) throw new Error('another error: ' + error);
  const mine = createLocks();
  await mine.request('a', () => locks.request('a', () => {}));
`;
const REQUIRE = "const { createLocks, locks } = require('lockkeeper');";
const IMPORT = "import { createLocks, locks } from 'lockkeeper';";

/** A program that ends by itself, and says that all is well. */
const PROGRAM = `${IMPORT}
const main = async () => { ${BODY} console.log('well'); };
main();
`;

test('npx lockkeeper is the command', async () => {
  const here = await project({});
  const there = machine();
  await there.start();
  const env = { LOCKKEEPER_URL: there.url };
  const args = ['exec', '--offline', '--', 'lockkeeper', 'run', 'a', '--', 'echo', 'mine'];
  const { stdout, stderr } = await execute('npm', args, { cwd: here.dir, env });
  assert.equal(stdout.trim(), 'mine', stderr);
});

test('the tarballs have the licenses, and nothing that only the build needs', async () => {
  const { dir } = await project({});
  for (const name of ['lockkeeper', `lockkeeper-${platform.targetOf()}`]) {
    const files = readdirSync(join(dir, 'node_modules', name), { recursive: true });
    for (const file of ['LICENSE-MIT', 'LICENSE-APACHE', 'package.json']) assert.ok(files.includes(file), file);
    assert.deepEqual(files.filter((file) => /tsbuildinfo|tsconfig|^src|^test|^scripts/.test(file)), []);
    const { license, repository } = JSON.parse(readFileSync(join(dir, 'node_modules', name, 'package.json'), 'utf8'));
    assert.equal(license, 'MIT OR Apache-2.0');
    assert.equal(repository.type, 'git');
  }
});

test('Jest, with its default settings', async () => {
  const text = `${REQUIRE} test('locks', async () => { ${BODY} expect(await locks.query()).toEqual({ held: [], pending: [] }); });`;
  const here = await project({ 'a.test.js': text, 'b.test.js': text }, ['jest']);
  for (const option of ['--runInBand', '--maxWorkers=2']) {
    const { code, stderr } = await here.node('node_modules/jest/bin/jest.js', option);
    assert.equal(code, 0, stderr);
    assert.match(stderr, /Tests: +2 passed/);
  }
});

test('Jest with jsdom: a page connects, and has the locks of its process', async () => {
  const there = machine({ network: true });
  await there.start('--allow-origin', 'http://localhost');
  const files = {
    'a.test.js': `/** @jest-environment jsdom */
      const { connect, createLocks, locks } = require('lockkeeper');
      const { proposals, requestLock } = require('lockkeeper/proposals');
      test('locks', async () => { ${BODY} });
      test('proposals', async () => {
        expect((await requestLock('a')).scope).toEqual(['a']);
        expect((await proposals(createLocks()).requestLock('a')).scope).toEqual(['a']);
      });
      test('connects', async () => {
        expect(typeof document).toBe('object');
        const locks = await connect(${JSON.stringify(there.url)});
        expect(await locks.request('a\\u00e4', (lock) => lock.name)).toBe('a\\u00e4');
        await locks.close();
      });`,
  };
  const here = await project(files, ['jest', 'jest-environment-jsdom']);
  const { code, stderr } = await here.node('node_modules/jest/bin/jest.js');
  assert.equal(code, 0, stderr);
});

test('Vitest', async () => {
  const text = `${IMPORT} import { test } from 'vitest'; test('locks', async () => { ${BODY} });`;
  const here = await project({ 'a.test.js': text, 'b.test.js': text }, ['vitest']);
  const { code, stdout, stderr } = await here.node('node_modules/vitest/vitest.mjs', 'run');
  assert.equal(code, 0, stdout + stderr);
  assert.match(stdout, /Tests +2 passed/);
});

test('node --test, with CommonJS and ES modules', async () => {
  const files = {
    'a.test.cjs': `${REQUIRE} require('node:test')('locks', async () => { ${BODY} });`,
    'b.test.mjs': `${IMPORT} import test from 'node:test'; test('locks', async () => { ${BODY} });`,
  };
  const here = await project(files);
  const { code, stdout, stderr } = await execute(process.execPath, ['--test'], { cwd: here.dir });
  assert.equal(code, 0, stdout + stderr);
  assert.match(stdout, /pass 2\n/);
});

test('Mocha, with CommonJS and ES modules in one process, which share one state', async () => {
  const files = {
    'test/a.cjs': `${REQUIRE} globalThis.required = require('lockkeeper'); it('locks', async () => { ${BODY} });`,
    'test/b.mjs': `${IMPORT} import * as imported from 'lockkeeper';
      it('locks', async () => { ${BODY} });
      it('is one', () => { for (const key in imported) if (imported[key] !== required[key]) throw new Error(key); });`,
  };
  const here = await project(files, ['mocha']);
  const printed = await here.prints('node_modules/mocha/bin/mocha.js', 'test/a.cjs', 'test/b.mjs');
  assert.match(printed, /3 passing/);
});

for (const format of ['cjs', 'esm']) {
  test(`esbuild, for Node, as ${format}`, async () => {
    const here = await project({ 'main.js': PROGRAM }, ['esbuild']);
    const { build } = await tool(here, 'esbuild/lib/main.js');
    const outfile = join(here.dir, `out/main.${format === 'esm' ? 'mjs' : 'cjs'}`);
    const options = { entryPoints: [join(here.dir, 'main.js')], bundle: true, platform: 'node', format, outfile };
    const { warnings } = await build({ ...options, logLevel: 'silent' });
    assert.deepEqual(warnings, []);
    assert.equal(await here.prints(`out/main.${format === 'esm' ? 'mjs' : 'cjs'}`), 'well');
  });
}

test('webpack, for Node', async () => {
  const here = await project({ 'main.js': PROGRAM }, ['webpack']);
  await bundleWithWebpack(here, { target: 'node' });
  assert.equal(await here.prints('out/main.js'), 'well');
});

test('webpack, for browsers', async () => {
  const files = {
    'main.js': "import { connect } from 'lockkeeper'; globalThis.connect = connect;",
    'required.js': "globalThis.connect = require('lockkeeper').connect;",
  };
  const here = await project(files, ['webpack']);
  for (const file of Object.keys(files)) {
    await bundleWithWebpack(here, { target: 'web', entry: `./${file}` });
    assert.doesNotMatch(readFileSync(join(here.dir, 'out/main.js'), 'utf8'), /linux-x64/);
  }
});

async function bundleWithWebpack(here, options) {
  const { default: webpack } = await tool(here, 'webpack/lib/index.js');
  const output = { path: join(here.dir, 'out'), filename: 'main.js' };
  const stats = await new Promise((resolve, reject) =>
    webpack({ mode: 'production', context: here.dir, entry: './main.js', output, ...options }, (error, stats) =>
      error ? reject(error) : resolve(stats),
    ),
  );
  const { errors, warnings } = stats.toJson({ all: false, errors: true, warnings: true });
  assert.deepEqual([errors, warnings], [[], []]);
}

test('Rollup, for Node and for browsers', async () => {
  const tools = ['rollup', '@rollup/plugin-node-resolve', '@rollup/plugin-commonjs'];
  const page = "import { connect } from 'lockkeeper'; globalThis.connect = connect;";
  const here = await project({ 'main.js': PROGRAM, 'page.js': page }, tools);
  const { rollup } = await tool(here, 'rollup/dist/es/rollup.js');
  const { nodeResolve } = await tool(here, '@rollup/plugin-node-resolve/dist/es/index.js');
  const { default: commonjs } = await tool(here, '@rollup/plugin-commonjs/dist/es/index.js');
  for (const [input, browser] of [['main.js', false], ['page.js', true]]) {
    const plugins = [nodeResolve({ browser, preferBuiltins: true }), commonjs()];
    const onwarn = (warning) => assert.fail(warning.message);
    const bundle = await rollup({ input: join(here.dir, input), plugins, onwarn });
    await bundle.write({ file: join(here.dir, 'out', input.replace('.js', '.mjs')), format: 'es' });
  }
  assert.equal(await here.prints('out/main.mjs'), 'well');
});

test('Vite, for Node and for browsers', async () => {
  const page = "import { connect } from 'lockkeeper'; globalThis.connect = connect;";
  const index = '<script type="module" src="/page.js"></script>';
  const here = await project({ 'main.js': PROGRAM, 'page.js': page, 'index.html': index }, ['vite']);
  const { build } = await tool(here, 'vite/dist/node/index.js');
  const common = { root: here.dir, logLevel: 'error', configFile: false };
  await build({ ...common, build: { outDir: 'client' } });
  assert.ok(readdirSync(join(here.dir, 'client/assets')).length > 0);
  for (const noExternal of [false, true]) {
    const ssr = noExternal ? { noExternal } : {};
    await build({ ...common, ssr, build: { ssr: join(here.dir, 'main.js'), outDir: `server-${noExternal}` } });
    const [file] = readdirSync(join(here.dir, `server-${noExternal}`));
    assert.equal(await here.prints(`server-${noExternal}/${file}`), 'well');
  }
});

/** A program that takes a lock of the process, then one of the daemon, which it starts. */
const MOVED = `import { connect, locks } from 'lockkeeper';
const main = async () => {
  console.log(await locks.request('a', () => 'process'));
  const all = await connect();
  console.log(await all.request('a', () => 'machine'));
  await all.close();
};
main().catch((error) => console.log(error.code, error.name, error.message));
`;

/** Each makes a bundle of `main.js`, of which nothing else is taken along. */
const movable = {
  async esbuild(here) {
    const { build } = await tool(here, 'esbuild/lib/main.js');
    const outfile = join(here.dir, 'out/main.js');
    await build({ entryPoints: [join(here.dir, 'main.js')], bundle: true, platform: 'node', outfile });
  },
  webpack: (here) => bundleWithWebpack(here, { target: 'node' }),
};

for (const [name, bundle] of Object.entries(movable)) {
  test(`a bundle of ${name}, moved away from node_modules, names what it lacks, and works with it`, async () => {
    const here = await project({ 'main.js': MOVED }, [name]);
    await bundle(here);
    const target = platform.targetOf();
    const files = join(here.dir, 'node_modules', `lockkeeper-${target}`);
    const there = elsewhere();
    const addon = `lockkeeper.${target}.node`;
    cpSync(join(here.dir, 'out/main.js'), join(there.dir, 'main.js'));
    let said = await there.run();
    assert.match(said, /^LOCKKEEPER_NO_ADDON /);
    for (const part of [`lockkeeper-${target}`, `copy ${addon} from that package to ${there.dir}`]) assert.ok(said.includes(part), said);
    cpSync(join(files, addon), join(there.dir, addon));
    said = await there.run();
    assert.match(said, /^process\n\S+ NetworkError .*The daemon's program is not at /);
    for (const part of [join(there.dir, 'lockkeeper'), `package lockkeeper-${target}`]) assert.ok(said.includes(part), said);
    cpSync(join(files, 'lockkeeper'), join(there.dir, 'lockkeeper'));
    assert.equal(await there.run(), 'process\nmachine\n');
  });
}

test('what @vercel/nft traces works elsewhere, with the addon and the daemon', async () => {
  const here = await project({ 'main.mjs': MOVED }, ['@vercel/nft']);
  const { nodeFileTrace } = await tool(here, '@vercel/nft/out/index.js');
  const { fileList } = await nodeFileTrace([join(here.dir, 'main.mjs')], { base: here.dir });
  const there = elsewhere(join('node_modules', `lockkeeper-${platform.targetOf()}`, 'lockkeeper'));
  for (const file of fileList) cpSync(join(here.dir, file), join(there.dir, file), { recursive: true });
  assert.equal(await there.run('main.mjs'), 'process\nmachine\n');
});

/** A folder that is in no project, and a user who has no daemon yet; `command` is where that will be. */
function elsewhere(command = 'lockkeeper') {
  const dir = realpathSync(mkdtempSync(join(tmpdir(), 'lockkeeper-moved-')));
  cleanUp(async () => {
    await execute(join(dir, command), ['stop'], { cwd: dir, env });
    rmSync(dir, { recursive: true, force: true });
  });
  const env = { LOCKKEEPER_DIR: join(dir, 'run'), LOCKKEEPER_URL: '' };
  const output = async (program, ...args) => {
    const { stdout, stderr } = await execute(program, args, { cwd: dir, env });
    assert.equal(stderr, '');
    return stdout;
  };
  return { dir, run: (file = 'main.js') => output(process.execPath, join(dir, file)) };
}

test('@vercel/nft finds the addon and the daemon, from CommonJS and from ES modules', async () => {
  const here = await project({ 'a.mjs': PROGRAM, 'b.cjs': `${REQUIRE} void createLocks, locks;` }, ['@vercel/nft']);
  const { nodeFileTrace } = await tool(here, '@vercel/nft/out/index.js');
  for (const file of ['a.mjs', 'b.cjs']) {
    const { fileList } = await nodeFileTrace([join(here.dir, file)], { base: here.dir });
    const found = [...fileList];
    const target = platform.targetOf();
    for (const name of [`lockkeeper.${target}.node`, 'lockkeeper']) {
      assert.ok(found.includes(`node_modules/lockkeeper-${target}/${name}`), `${name} in ${found.join(' ')}`);
    }
  }
});

test(`the bundle of a page that connects is at most ${BUNDLE_BUDGET} bytes, compressed`, async () => {
  const here = await project({ 'page.js': "export * from 'lockkeeper';" }, ['esbuild']);
  const { build } = await tool(here, 'esbuild/lib/main.js');
  const options = { bundle: true, minify: true, format: 'esm', target: 'es2022', write: false };
  const { outputFiles } = await build({ entryPoints: [join(here.dir, 'page.js')], platform: 'browser', ...options });
  const { length } = gzipSync(outputFiles[0].contents, { level: 9 });
  assert.ok(length <= BUNDLE_BUDGET, `${length} bytes`);
});

test('the daemon serves the drop-in as it is built here', () => {
  const read = (path) => readFileSync(new URL(path, import.meta.url), 'utf8');
  const same = read('../dist/navigator.min.js') === read('../../../crates/server/pages/navigator.min.js');
  assert.ok(same, 'it has changed: npm run check-in --workspace lockkeeper');
});

test('the daemon serves the dashboard as it is built here, in at most 100,000 bytes, compressed', () => {
  const root = new URL('../../../', import.meta.url);
  execFileSync(process.execPath, [fileURLToPath(new URL('packages/dashboard/scripts/build.js', root))], { stdio: 'inherit' });
  const read = (path) => readFileSync(new URL(path, root));
  let size = 0;
  for (const file of ['index.html', 'dashboard.js', 'dashboard.css']) {
    const built = read(`packages/dashboard/dist/${file}`);
    assert.ok(built.equals(read(`crates/server/dashboard/${file}`)), `${file} has changed: npm run check-in --workspace lockkeeper-dashboard`);
    size += gzipSync(built, { level: 9 }).length;
  }
  assert.ok(size <= 100_000, `${size} bytes`);
});

test(`the drop-in for navigator.locks is at most ${BUDGET} bytes, compressed`, () => {
  for (const file of ['navigator.min.js', 'navigator.min.mjs']) {
    const { length } = gzipSync(readFileSync(new URL(`../dist/${file}`, import.meta.url)), { level: 9 });
    assert.ok(length <= BUDGET, `${file}: ${length} bytes`);
  }
});
