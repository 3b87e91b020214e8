/**
 * The package as it is installed: `import` and `require`, `lockkeeper/install` (§3.1), and several
 * copies in one process.
 *
 * WPT: secure-context, idlharness (of `navigator`).
 */

import { spawnSync } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import * as lockkeeper from 'lockkeeper';
import * as proposals from 'lockkeeper/proposals';
import platform from '../dist/cjs/platform.cjs';
import { assert, cleanUp, run, runtime, test } from './harness.js';
import { machine } from './machine.js';

const root = fileURLToPath(new URL('..', import.meta.url));
const require = createRequire(import.meta.url);
const host = platform.targetOf();

test('require() gives the same objects as import', () => {
  const required = require('lockkeeper');
  const keys = Object.keys(required).filter((key) => key !== '__esModule');
  assert.deepEqual(keys.sort(), Object.keys(lockkeeper).sort());
  for (const [name, value] of Object.entries(lockkeeper)) assert.equal(required[name], value, name);
});

test('the package exports what its documentation names', () => {
  const classes = ['AcquiredLock', 'DeadlockError', 'Lock', 'LockManager'];
  const names = [...classes, 'connect', 'createLocks', 'detectDeadlocks', 'locks'];
  assert.deepEqual(Object.keys(lockkeeper).sort(), names);
});

test('lockkeeper/proposals exports the forms, how to bind them to a manager, and their interfaces', () => {
  const forms = ['forceRelease', 'requestExplicitLock', 'requestFlag', 'requestLock', 'requestScopedLock'];
  const names = ['ExplicitLock', 'Flag', 'Lock', 'proposals', ...forms];
  assert.deepEqual(Object.keys(proposals).sort(), names.sort());
  assert.deepEqual(Object.keys(proposals.proposals(lockkeeper.locks)).sort(), forms);
});

test('the oldest versions of Node that package.json allows are those that the tests run in', () => {
  const { engines } = require('lockkeeper/package.json');
  const { optionalDependencies: pins } = require('../../../package.json');
  const oldest = [pins.node20, pins.node22].map((pin) => pin.split('@')[1].replace(/\.0$/, ''));
  assert.equal(engines.node, `^${oldest[0]} || >=${oldest[1]}`);
});

test('every file that package.json names is there, types included', () => {
  const { bin, exports, main, types } = require('lockkeeper/package.json');
  const targets = (entry) => (typeof entry === 'string' ? [entry] : Object.values(entry).flatMap(targets));
  for (const target of [...targets([bin, exports]), main, types]) assert.ok(readFileSync(join(root, target)).length > 0, target);
});

test('lockkeeper/connect is for browsers: what it loads imports nothing of Node, and bundlers find it', () => {
  const seen = new Set();
  const visit = (module) => {
    const file = `${module}.js`;
    if (seen.has(file)) return;
    seen.add(file);
    const text = readFileSync(join(root, 'dist', file), 'utf8');
    for (const [, from] of text.matchAll(/^(?:import|export) .*?from '([^']*)'/gms)) {
      assert.match(from, /^\.\/[\w-]+\.js$/, file);
      visit(from.slice(2, -3));
    }
    assert.doesNotMatch(text, /import\(|require\(|NodeJS/, file);
  };
  visit('connect');
  assert.ok(seen.has('session.js') && seen.has('manager.js'), [...seen].join());
  visit('proposals-of');
  visit('navigator');
  for (const name of ['native', 'platform', 'runtime', 'diagnostics', 'liveness']) assert.ok(!seen.has(`${name}.js`), name);
  const { exports } = require('lockkeeper/package.json');
  assert.equal(exports['./proposals'].browser.import.default, './dist/browser/proposals-of.js');
  for (const entry of ['.', './connect', './proposals']) {
    assert.equal(Object.keys(exports[entry])[0], 'browser', 'the first that applies is taken');
  }
  const { browser } = exports['.'];
  assert.deepEqual([browser.module, browser.import], Array(2).fill(exports['./connect'].browser.import));
});

test('§3.1: lockkeeper/install sets navigator.locks and the interfaces, as Web IDL has them', async () => {
  const { stdout, stderr, code } = await run(new URL('fixtures/install.js', import.meta.url));
  assert.equal(code, 0, stderr);
  const report = JSON.parse(stdout);
  assert.equal(report.untouched, true, 'no object but navigator has it');
  assert.deepEqual(report.same, [true, true, true]);
  assert.equal(report.works, true);
  assert.equal(report.onPrototype, true, 'the attribute is on the prototype');
  const attribute = { enumerable: true, configurable: true, get: 'function', set: 'undefined' };
  assert.deepEqual(report.locks, attribute);
  assert.deepEqual(report.getter, { name: 'get locks', length: 0 });
  const accessor = { get: 'undefined', set: 'undefined' };
  const global = { enumerable: false, configurable: true, writable: true, ...accessor };
  assert.deepEqual([report.Lock, report.LockManager], [global, global]);
  assert.deepEqual(report.brand, ['TypeError', 'TypeError', 'TypeError', 'TypeError']);
  assert.equal(report.assign, 'TypeError');
});

test('§3.1: it replaces native locks, and makes a navigator where there is none', async () => {
  const { stdout } = await run(new URL('fixtures/install.js', import.meta.url));
  const { before, replaced, tag, constructor, illegal } = JSON.parse(stdout);
  const major = Number.parseInt(process.versions.node, 10);
  const native = runtime === 'deno' || (runtime === 'node' && major >= 24);
  const navigator = runtime === 'node' && major < 21 ? 'undefined' : 'object';
  // What the runtimes come with is what makes this test one: told if it changes.
  assert.deepEqual(before, { navigator, locks: native });
  assert.equal(replaced, true);
  if (before.navigator === 'undefined') {
    assert.deepEqual([tag, constructor, illegal], ['[object Navigator]', 'Navigator', 'TypeError']);
  }
});

/**
 * An installation of the package in a folder of its own. `change` may edit its files. Gives its
 * entry point.
 */
function install(folder, change = () => {}) {
  const modules = join(folder, 'node_modules');
  cpSync(join(root, 'npm', host), join(modules, `lockkeeper-${host}`), { recursive: true });
  const copy = join(modules, 'lockkeeper');
  for (const part of ['bin', 'dist', 'esm', 'package.json']) cpSync(join(root, part), join(copy, part), { recursive: true });
  change(copy);
  return join(copy, 'esm/index.js');
}

/** A project with two installations, "a" and "b", and the program that is run in it. */
async function twoCopies(program, changeB) {
  const folder = mkdtempSync(join(tmpdir(), 'lockkeeper-'));
  cleanUp(() => rmSync(folder, { recursive: true }));
  const [a, b] = ['a', 'b'].map((name) => {
    mkdirSync(join(folder, name));
    return install(join(folder, name), name === 'b' ? changeB : undefined);
  });
  for (const [file, text] of Object.entries(program(a, b))) writeFileSync(join(folder, file), text);
  return run(join(folder, 'main.mjs'), [], { cwd: folder });
}

test('two copies of the package in one thread share one manager', async () => {
  const { stdout, stderr, code } = await twoCopies((a, b) => ({
    'main.mjs': `
      import { locks as a } from ${JSON.stringify(a)};
      import { locks as b } from ${JSON.stringify(b)};
      process.on('warning', (warning) => console.log(warning.code));
      await a.request('x', async () => {
        console.log(a !== b, await b.request('x', { ifAvailable: true }, (lock) => lock));
        const preempted = new Promise((resolve) => b.request('y', () => new Promise(() => {})).catch(resolve));
        await a.request('y', { steal: true }, () => {});
        console.log((await preempted).cause);
        const waiting = b.request('x', () => console.log('granted'));
        console.log((await a.query()).pending.length);
        setImmediate(() => waiting);
      });
      await b.request('x', () => {});
    `,
  }));
  assert.deepEqual(stdout.trim().split('\n'), ['true null', 'stolen', '1', 'granted'], stderr);
  assert.equal(code, 0);
});

test('two copies of the package in sibling worker threads share one manager', async () => {
  const worker = (copy) => `
    import { parentPort } from 'node:worker_threads';
    import { locks } from ${JSON.stringify(copy)};
    process.on('warning', (warning) => parentPort.postMessage(warning.code));
    parentPort.on('message', (name) => {
      locks.request(name, { ifAvailable: true }, (lock) => {
        parentPort.postMessage(lock === null ? 'refused' : 'granted');
        return new Promise(() => {});
      });
    });
  `;
  // The thread that starts them has not loaded the package, so that it can hand nothing on.
  const { stdout, stderr, code } = await twoCopies((a, b) => ({
    'a.mjs': worker(a),
    'b.mjs': worker(b),
    'main.mjs': `
      import { Worker } from 'node:worker_threads';
      for (const file of ['a', 'b']) {
        const worker = new Worker(new URL(file + '.mjs', import.meta.url));
        const answer = new Promise((resolve) => worker.once('message', resolve));
        worker.postMessage('x');
        console.log(await answer);
      }
      process.exit();
    `,
  }));
  assert.deepEqual(stdout.trim().split('\n'), ['granted', 'refused'], stderr);
  assert.equal(code, 0);
});

/** Has a copy say that it was made for an addon of another interface. */
function incompatible(copy) {
  const file = join(copy, 'dist/cjs/native.cjs');
  const text = readFileSync(file, 'utf8');
  const changed = text.replace(/const ABI = \d+;/, 'const ABI = 4711;');
  assert.notEqual(changed, text, 'native.js names its ABI');
  writeFileSync(file, changed);
}

test('a second copy that cannot share the manager of the first says so in a warning', async () => {
  const program = (first, second) => ({
    'main.mjs': `
      const warned = new Promise((resolve) => process.on('warning', resolve));
      const { locks: a } = await import(${JSON.stringify(first)});
      const { locks: b } = await import(${JSON.stringify(second)});
      // The addon is loaded when it is first used.
      await Promise.all([a.query(), b.query()]);
      const warning = await warned;
      console.log(warning.name, warning.code);
      console.log(warning.message.includes(${JSON.stringify(join(second, '../../../lockkeeper-'))}));
      await a.request('x', async () => {
        console.log(await b.request('x', { ifAvailable: true }, (lock) => lock !== null));
      });
    `,
  });
  const { stdout, stderr, code } = await twoCopies(program, incompatible);
  const lines = stdout.trim().split('\n');
  assert.deepEqual(lines, ['LockkeeperWarning LOCKKEEPER_TWO_MANAGERS', 'true', 'true'], stderr);
  assert.equal(code, 0);
});

/** Runs a program where the package of this platform is not installed. */
async function withoutAddon(program, ...args) {
  const folder = mkdtempSync(join(tmpdir(), 'lockkeeper-'));
  cleanUp(() => rmSync(folder, { recursive: true }));
  const index = install(folder);
  rmSync(join(folder, 'node_modules', `lockkeeper-${host}`), { recursive: true });
  const main = join(folder, 'main.mjs');
  writeFileSync(main, program.replaceAll('lockkeeper/', `${join(index, '..')}/`));
  return run(main, args, { cwd: folder });
}

test('without the package of its platform, `locks` fails when it is used, and says what is missing', async () => {
  const { stdout, stderr } = await withoutAddon(`
    import { connect, createLocks, locks } from 'lockkeeper/index.js';
    console.log('loaded');
    const uses = [locks.request('a', () => {}), locks.acquire('a'), locks.query(), createLocks().query(), connect('unix:/none')];
    for (const { status, reason } of await Promise.allSettled(uses)) console.log(status, reason?.code, reason?.message);
  `);
  const [loaded, ...lines] = stdout.trim().split('\n');
  assert.equal(loaded, 'loaded', stderr);
  assert.equal(lines.length, 5);
  for (const line of lines) {
    assert.match(line, /^rejected LOCKKEEPER_NO_ADDON/);
    assert.match(line, new RegExp(`no addon for ${process.platform}-${process.arch}.*lockkeeper-${host}.*optional`));
    assert.doesNotMatch(line, /bundled/, 'it is not');
  }
});

test('without the package of its platform, connect() reaches a daemon on a WebSocket', async () => {
  const there = machine({ network: true });
  await there.start();
  // Node 20 has no WebSocket of its own.
  const { stdout, stderr } = await withoutAddon(`
    import { createRequire } from 'node:module';
    const WebSocket = globalThis.WebSocket ?? createRequire(${JSON.stringify(import.meta.url)})('ws').WebSocket;
    for (const entry of ['index', 'connect']) {
      const { connect } = await import('lockkeeper/' + entry + '.js');
      const locks = await connect(process.argv[2], { WebSocket });
      console.log(await locks.request('a', (lock) => lock.name));
      await locks.close();
    }
  `, there.url);
  assert.equal(stdout, 'a\na\n', stderr);
});

/**
 * Runs a program as if on another platform: `properties` of the process, and `texts` of files by
 * their paths. `lockkeeper/` is where the package is. Beside it is that of the platform, `target`,
 * with these files and their texts.
 */
async function elsewhere({ texts = {}, ...properties }, target, files, program, ...args) {
  const folder = mkdtempSync(join(tmpdir(), 'lockkeeper-'));
  cleanUp(() => rmSync(folder, { recursive: true }));
  const copy = join(install(folder), '../..');
  const beside = join(folder, 'node_modules', `lockkeeper-${target}`);
  rmSync(beside, { recursive: true, force: true });
  for (const [file, text] of Object.entries(files)) {
    mkdirSync(beside, { recursive: true });
    writeFileSync(join(beside, file), text);
    writeFileSync(join(beside, 'package.json'), '{}');
  }
  const main = join(folder, 'main.mjs');
  const pretend = `
    import fs from 'node:fs';
    const properties = Object.entries(${JSON.stringify(properties)});
    for (const [name, value] of properties) Object.defineProperty(process, name, { value });
    const { readFileSync } = fs;
    fs.readFileSync = (path, ...options) => (${JSON.stringify(texts)})[path] ?? readFileSync(path, ...options);
  `;
  writeFileSync(main, `${pretend} ${program.replaceAll('lockkeeper/', `${copy}/`)}`);
  return run(main, args, { cwd: folder });
}

const windows = { platform: 'win32', arch: 'x64' };

test('a platform whose package has no command: `npx lockkeeper` says so', async () => {
  const program = "await import('lockkeeper/bin/lockkeeper.js');";
  const files = { 'lockkeeper.win32-x64-msvc.node': '' };
  const { code, stderr } = await elsewhere(windows, 'win32-x64-msvc', files, program, 'query');
  assert.equal(code, 69, stderr);
  assert.match(stderr, /^lockkeeper: the command is not built for win32-x64\. connect\('ws:/);
});

test('on Windows, connect() without a URL of a network says what to do instead', async () => {
  const program = `
    const { connect } = await import('lockkeeper/esm/index.js');
    for (const { reason } of await Promise.allSettled([connect(), connect('unix:/a')])) console.log(reason.name, reason.message);
  `;
  const { stdout, stderr } = await elsewhere(windows, 'win32-x64-msvc', {}, program);
  const lines = stdout.trim().split('\n');
  assert.equal(lines.length, 2, stderr);
  for (const line of lines) assert.match(line, /^NotSupportedError on Windows .*no daemon to start.*connect\(url\)/);
});

test('a platform whose package has no daemon: connect() says what to do instead, and uses one that runs', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'lockkeeper-'));
  cleanUp(() => rmSync(folder, { recursive: true }));
  const index = install(folder);
  rmSync(join(folder, 'node_modules', `lockkeeper-${host}`, 'lockkeeper'));
  const main = join(folder, 'main.mjs');
  writeFileSync(main, `
    import { connect } from ${JSON.stringify(index)};
    try {
      const locks = await connect();
      console.log(await locks.request('a', (lock) => lock.name));
      await locks.close();
    } catch ({ name, message }) {
      console.log(name, message);
    }
  `);
  const there = machine();
  const { LOCKKEEPER_URL: _, ...others } = process.env;
  const env = { ...others, LOCKKEEPER_DIR: there.dir };
  const { stdout, stderr } = await run(main, [], { cwd: folder, env });
  assert.match(stdout, /^NetworkError .*The daemon's program is not at .*lockkeeper-\S+\/lockkeeper\. .* use connect\(url\)/, stderr);
  await there.start();
  assert.equal((await run(main, [], { cwd: folder, env })).stdout, 'a\n');
});

test('the package that is missing is named, for each platform that has one', async () => {
  const program = "const { default: platform } = await import('lockkeeper/dist/cjs/platform.cjs'); platform.platformFiles();";
  const missing = async (platform, target) => (await elsewhere(platform, target, {}, program)).stderr;
  assert.match(await missing({ platform: 'darwin', arch: 'arm64' }, 'darwin-arm64'), /npm install lockkeeper-darwin-arm64\b/);
  assert.match(await missing({ platform: 'linux', arch: 'arm64' }, 'linux-arm64-gnu'), /npm install lockkeeper-linux-arm64-gnu\b/);
  assert.match(await missing({ platform: 'aix', arch: 'ppc64' }, 'aix-ppc64'), /no addon for aix-ppc64: no package is built for it/);
});

test('musl is known by the loader of this process, or else by ldd', async () => {
  const program = "const { default: platform } = await import('lockkeeper/dist/cjs/platform.cjs'); console.log(platform.targetOf());";
  const arm64 = { platform: 'linux', arch: 'arm64' };
  const target = async (maps, ldd) => {
    const texts = { '/proc/self/maps': maps, '/usr/bin/ldd': ldd };
    return (await elsewhere({ ...arm64, texts }, '', {}, program)).stdout.trim();
  };
  const musl = '7f00 r-xp 00000000 08:01 4 /lib/ld-musl-aarch64.so.1\n';
  const glibc = '7f00 r-xp 00000000 08:01 4 /usr/lib/ld-linux-aarch64.so.1\n';
  assert.equal(await target(musl, '# of glibc'), 'linux-arm64-musl');
  assert.equal(await target(glibc, '# of musl'), 'linux-arm64-gnu');
  assert.equal(await target('', '# of musl'), 'linux-arm64-musl');
  assert.equal(await target('', '# of glibc'), 'linux-arm64-gnu');
});

test('the package asks npm for that of each platform, and finds each by a literal require', async () => {
  const { optionalDependencies, version } = require('lockkeeper/package.json');
  const targets = readdirSync(join(root, 'npm'));
  assert.equal(targets.length, 7);
  assert.deepEqual(Object.keys(optionalDependencies).sort(), targets.map((target) => `lockkeeper-${target}`).sort());
  const program = `
    const { default: platform } = await import('lockkeeper/dist/cjs/platform.cjs');
    console.log(JSON.stringify([platform.targetOf(), platform.platformFiles()]));
  `;
  for (const target of targets) {
    const [os, cpu, abi] = target.split('-');
    const manifest = JSON.parse(readFileSync(join(root, 'npm', target, 'package.json'), 'utf8'));
    assert.deepEqual([manifest.name, manifest.version, optionalDependencies[manifest.name]], [`lockkeeper-${target}`, version, version]);
    assert.deepEqual([manifest.os, manifest.cpu, manifest.libc], [[os], [cpu], { gnu: ['glibc'], musl: ['musl'] }[abi]]);
    // Only what the package's own `index.js` names, so that nothing but the require finds it.
    const index = "exports.addon = __dirname + '/addon';";
    const texts = { '/proc/self/maps': abi === 'musl' ? '/lib/ld-musl-x.so.1' : '/lib/ld-linux-x.so.2' };
    const { stdout, stderr } = await elsewhere({ platform: os, arch: cpu, texts }, target, { addon: '', 'index.js': index }, program);
    const [found, files] = JSON.parse(stdout || '[]');
    assert.equal(found, target, stderr);
    assert.match(files.addon, new RegExp(`lockkeeper-${target}/addon$`));
    const code = readFileSync(join(root, 'npm', target, 'index.js'), 'utf8');
    const named = manifest.files.filter((file) => !/LICENSE|index/.test(file));
    assert.deepEqual([...code.matchAll(/'(lockkeeper[^']*)'/g)].map(([, file]) => file).sort(), named.sort());
  }
});

const testDeno = runtime === 'deno' ? test : () => {};

testDeno('Deno: connect() over WebSocket needs --allow-net, locks and a local connect() what the README says', async () => {
  const [there, local] = [machine({ network: true }), machine()];
  await Promise.all([there.start(), local.start()]);
  const folder = mkdtempSync(join(tmpdir(), 'lockkeeper-'));
  cleanUp(() => rmSync(folder, { recursive: true }));
  install(folder);
  writeFileSync(join(folder, 'package.json'), '{}');
  const deno = (file, ...permissions) => {
    const args = ['run', '--no-prompt', ...permissions, join(folder, file)];
    return spawnSync(process.execPath, args, { cwd: folder, encoding: 'utf8' });
  };
  const ask = "console.log(await manager.request('a', (lock) => lock.name));";
  const connects = `import { connect } from 'lockkeeper'; const manager = await connect('${there.url}');`;
  writeFileSync(join(folder, 'far.mjs'), `${connects} ${ask} await manager.close();`);
  writeFileSync(join(folder, 'near.mjs'), `import { locks as manager } from 'lockkeeper'; ${ask}`);
  const far = deno('far.mjs', '--allow-net');
  assert.equal(far.stdout, 'a\n', far.stderr);
  writeFileSync(join(folder, 'local.mjs'), `${connects.replace(there.url, local.url)} ${ask} await manager.close();`);
  for (const file of ['near.mjs', 'local.mjs']) {
    const near = deno(file, '--allow-ffi', '--allow-read', '--allow-env');
    assert.equal(near.stdout, 'a\n', near.stderr);
  }
});
