/**
 * Builds and runs a fresh Next.js project with the packages as npm packs them: a server component,
 * a client page that holds a lock in Chromium, a route, and standalone output that is moved away
 * from `node_modules`. Run by `cargo xtask tools`.
 */

import { spawn } from 'node:child_process';
import { cpSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { browser } from '../chromium.js';
import { assert, cleanUp, test, until } from '../harness.js';
import { connected, machine } from '../machine.js';
import { execute, installed } from '../project.js';

const source = fileURLToPath(new URL('.', import.meta.url));

/** The client page in a browser holds a lock of a daemon, which this process sees. */
async function worksInBrowser({ url }) {
  const there = machine({ network: true });
  await there.start('--allow-origin', url);
  const page = await (await browser()).open(`${url}/client#${there.url}`);
  // Until React has taken the page over, a click does nothing.
  const said = () => {
    const button = document.querySelector('button');
    button.click();
    return button.textContent;
  };
  await until(async () => {
    const text = await page.evaluate(said);
    assert.match(text, /^connect is a function(: (asks|held))?$/);
    return text.endsWith('held');
  });
  const locks = await connected(there.url);
  assert.deepEqual((await locks.query()).held.map(({ name }) => name), ['document 7']);
  const next = locks.request('document 7', () => 'next');
  await page.close();
  assert.equal(await next, 'next');
}

/** A copy of the project, in which the packages are installed. */
async function copy() {
  const dir = mkdtempSync(join(tmpdir(), 'lockkeeper-next-'));
  cleanUp(() => rmSync(dir, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 }));
  for (const file of ['app', 'next.config.mjs', 'package.json', 'node_modules']) {
    cpSync(join(source, file), join(dir, file), { recursive: true, verbatimSymlinks: true });
  }
  cpSync(await installed(), join(dir, 'node_modules'), { recursive: true, verbatimSymlinks: true });
  return dir;
}

/** Runs a server until the test is over, with a daemon of its own, and gives its address. */
async function serve(args, cwd) {
  const port = await freePort();
  const runtime = mkdtempSync(join(tmpdir(), 'lockkeeper-run-'));
  const env = { ...process.env, PORT: port, HOSTNAME: '127.0.0.1', LOCKKEEPER_DIR: join(runtime, 'lockkeeper') };
  delete env.LOCKKEEPER_URL;
  const child = spawn(process.execPath, args, { cwd, env, stdio: ['ignore', 'pipe', 'pipe'], detached: true });
  const exited = new Promise((resolve) => child.on('exit', resolve));
  let said = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => (said += data));
  let ended = false;
  void exited.then(() => (ended = true));
  cleanUp(async () => {
    // Its own processes, the daemon that it started included.
    try {
      process.kill(-child.pid, 'SIGKILL');
    } catch {
      // They have ended.
    }
    await exited;
    rmSync(runtime, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  });
  await until(() => {
    if (ended) throw new Error(said);
    return said.includes(`127.0.0.1:${port}`);
  });
  return { url: `http://127.0.0.1:${port}`, said: () => said };
}

/** Standalone servers take 0 for 3000. */
async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return `${port}`;
}

async function works({ url, said }) {
  const text = async (path) => {
    const response = await fetch(url + path);
    const body = await response.text();
    assert.equal(response.status, 200, `${path}: ${body.slice(0, 500)}\n${said()}`);
    return body;
  };
  await until(() => fetch(url).then(() => true, () => false));
  assert.match(await text('/'), /page is locked/);
  assert.match(await text('/client'), /connect is a <!-- -->function/);
  assert.deepEqual(JSON.parse(await text('/api')), ['a', 'b']);
}

async function build(dir, env, ...more) {
  const args = [join(dir, 'node_modules/next/dist/bin/next'), 'build', ...more];
  const options = { cwd: dir, timeout: 300_000, env: { NEXT_TELEMETRY_DISABLED: '1', ...env } };
  const { code, stdout, stderr } = await execute(process.execPath, args, options);
  assert.equal(code, 0, stdout + stderr);
  return stdout + stderr;
}

for (const bundler of ['--turbopack', '--webpack']) {
  test(`Next.js ${bundler}, with no settings`, async () => {
    const dir = await copy();
    await build(dir, {}, bundler);
    const served = await serve([join(dir, 'node_modules/next/dist/bin/next'), 'start', '-H', '127.0.0.1'], dir);
    await works(served);
    await worksInBrowser(served);
  });
}

test('Next.js, standalone, with serverExternalPackages, moved elsewhere', async () => {
  const dir = await copy();
  await build(dir, { STANDALONE: '1' });
  const elsewhere = mkdtempSync(join(tmpdir(), 'lockkeeper-standalone-'));
  cleanUp(() => rmSync(elsewhere, { recursive: true, force: true }));
  cpSync(join(dir, '.next/standalone'), elsewhere, { recursive: true, verbatimSymlinks: true });
  rmSync(dir, { recursive: true });
  const traced = readdirSync(join(elsewhere, 'node_modules/lockkeeper-linux-x64-gnu'));
  assert.ok(traced.includes('lockkeeper') && traced.includes('lockkeeper.linux-x64-gnu.node'), traced.join());
  await works(await serve([join(elsewhere, 'server.js')], elsewhere));
});
