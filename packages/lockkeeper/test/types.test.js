/**
 * The types: in fresh projects, with the oldest TypeScript and newer ones, and never with
 * `skipLibCheck`.
 */

import { execFileSync } from 'node:child_process';
import { readFileSync, readdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { assert, test } from './harness.js';
import { execute, modules, packed, project } from './project.js';

const require = createRequire(import.meta.url);
const here = fileURLToPath(new URL('types/', import.meta.url));
const sources = Object.fromEntries(readdirSync(here).map((file) => [file, readFileSync(join(here, file), 'utf8')]));

/** The compiler of a package, which may be an alias. */
function compiler(name) {
  const manifest = require(join(modules, name, 'package.json'));
  return join(modules, name, manifest.bin.tsc);
}

/** Compiles files in a fresh project. */
async function compiles(typescript, files, options, tools = []) {
  const compilerOptions = {
    target: 'es2022',
    lib: ['es2022'],
    types: [],
    strict: true,
    noEmit: true,
    noUncheckedIndexedAccess: true,
    skipLibCheck: false,
    module: 'node16',
    moduleResolution: 'node16',
    ...options,
  };
  const texts = Object.fromEntries(files.map((file) => [file, sources[file]]));
  const { dir } = await project(
    {
      'package.json': '{ "private": true, "type": "module" }',
      'tsconfig.json': JSON.stringify({ compilerOptions, files }),
      ...texts,
    },
    tools,
  );
  const { code, stdout } = await execute(process.execPath, [compiler(typescript)], { cwd: dir });
  assert.equal(code, 0, stdout);
}

const bundler = { module: 'esnext', moduleResolution: 'bundler' };
const dom = { lib: ['es2022', 'dom', 'dom.iterable'] };
const worker = { lib: ['es2022', 'webworker'] };

for (const typescript of ['typescript50', 'typescript59', 'typescript']) {
  test(`${typescript}: nothing but the language`, () => compiles(typescript, ['usage.ts', 'required.cts'], {}));
  test(`${typescript}: a page`, () => compiles(typescript, ['usage.ts', 'installed.ts', 'dropin.ts'], { ...bundler, ...dom }));
  test(`${typescript}: a worker of a page`, () => compiles(typescript, ['usage.ts', 'installed.ts', 'dropin.ts'], { ...bundler, ...worker }));
  test(`${typescript}: with exactOptionalPropertyTypes`, () =>
    compiles(typescript, ['usage.ts'], { exactOptionalPropertyTypes: true }));
}

/** Of Node 20, which has no `navigator`, of 22, and of 24. */
const nodes = { '@types/node': 'the newest', 'types-node20': '20', 'types-node22': '22' };

for (const [name, version] of Object.entries(nodes)) {
  const tools = [[name, '@types/node'], 'undici-types'];
  test(`lockkeeper/install with @types/node, ${version}`, () =>
    compiles('typescript', ['usage.ts', 'installed.ts'], { lib: ['es2022'], types: ['node'] }, tools));
}

for (const typescript of ['typescript59', 'typescript']) {
  const node = { lib: ['es2023', 'esnext.disposable'], types: ['node'] };
  const tools = ['@types/node', '@types/ws', 'undici-types', 'ws'];
  const files = ['usage.ts', 'using.ts', 'installed.ts', 'sockets.ts', 'required.cts'];
  test(`${typescript}: with @types/node and @types/ws`, () =>
    compiles(typescript, files, { ...node, module: 'nodenext', moduleResolution: 'nodenext' }, tools));
}

test('the code agrees with the types', () => {
  const options = ['--noEmit', '--strict', '--module', 'nodenext', '--target', 'es2022'];
  const libraries = ['--lib', 'es2023,esnext.disposable', '--types', 'node', '--useDefineForClassFields', 'false'];
  const args = [compiler('typescript'), ...options, ...libraries, '--ignoreConfig', join(here, 'agree.ts')];
  execFileSync(process.execPath, args, { cwd: dirname(here), stdio: 'inherit' });
});

test('publint finds nothing to improve', async () => {
  await packed();
  const { publint } = await import('publint');
  const { messages } = await publint({ pkgDir: fileURLToPath(new URL('..', import.meta.url)), strict: true });
  assert.deepEqual(messages, []);
});

/** For script tags: they have no types. */
const SCRIPTS = ['--exclude-entrypoints', 'navigator.min.js', 'navigator.min.mjs'];

test('attw finds no wrong types, in whatever way they are resolved', async () => {
  const cli = join(modules, '@arethetypeswrong/cli/dist/index.js');
  const { code, stdout, stderr } = await execute(process.execPath, [cli, await packed(), ...SCRIPTS, '--no-emoji']);
  assert.equal(code, 0, stdout + stderr);
  assert.match(stdout, /No problems found/);
});
