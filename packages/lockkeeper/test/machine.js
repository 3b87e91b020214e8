/** Daemons of a test's own, and connections to them. */

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { createServer, connect as dial } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { connect } from 'lockkeeper';
import { cleanUp, deferred } from './harness.js';

const require = createRequire(import.meta.url);
export const program = join(dirname(require.resolve('lockkeeper-linux-x64-gnu')), 'lockkeeper');

/** A machine that no daemon runs on yet. With `network`, what starts there listens on a port too, always the same. */
export function machine({ network = false } = {}) {
  const dir = mkdtempSync(join(tmpdir(), 'lockkeeper-test-'));
  const socket = join(dir, 'daemon.sock');
  const daemons = [];
  const self = { dir, url: `unix:${socket}` };
  let address = '127.0.0.1:0';
  self.start = async (...more) => {
    const args = ['serve', '--socket', socket, '--state-dir', join(dir, 'state'), ...more];
    if (network) args.push('--listen', address, '--share-buckets');
    const env = { ...process.env, NO_COLOR: '1' };
    const child = spawn(program, args, { env, stdio: ['ignore', 'ignore', 'pipe'] });
    const exited = new Promise((resolve) => child.on('exit', resolve));
    daemons.push({ child, exited });
    let said = '';
    await new Promise((resolve, reject) => {
      child.stderr.on('data', (data) => {
        said += data;
        address = /listening address=(\S+)/.exec(said)?.[1] ?? address;
        if (said.includes('serving') && (!network || said.includes('listening'))) resolve();
      });
      void exited.then(() => reject(new Error(`the daemon has ended: ${said}`)));
    });
    if (network) self.url = `ws://${address}/`;
    return { kill: (signal) => (child.kill(signal), exited) };
  };
  cleanUp(async () => {
    for (const { child } of daemons) child.kill('SIGKILL');
    await Promise.all(daemons.map(({ exited }) => exited));
    rmSync(dir, { recursive: true, force: true });
  });
  return self;
}

/** A network between here and a daemon, which can be cut, and mended. */
export async function network(url) {
  const { port: target } = new URL(url);
  const pairs = new Set();
  let whole = true;
  const server = createServer((near) => {
    if (!whole) return near.destroy();
    const far = dial(Number(target), '127.0.0.1');
    const pair = [near, far];
    pairs.add(pair);
    for (const [from, to] of [pair, [far, near]]) {
      from.on('data', (data) => to.write(data));
      from.on('error', () => {});
      from.on('close', () => (pairs.delete(pair), to.destroy()));
    }
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const drop = () => pairs.forEach((pair) => pair.forEach((socket) => socket.destroy()));
  cleanUp(() => (drop(), new Promise((resolve) => server.close(resolve))));
  return {
    url: `ws://127.0.0.1:${server.address().port}/`,
    drop,
    cut: () => ((whole = false), drop()),
    mend: () => (whole = true),
  };
}

/** Connects until the test is over. */
export async function connected(url, options) {
  const manager = await connect(url, options);
  cleanUp(() => manager.close());
  return manager;
}

/** Holds a lock until `release` is called. */
export async function hold(manager, name, options = {}) {
  const [granted, waiting] = [deferred(), deferred()];
  const released = manager.request(name, options, (lock) => (granted.resolve(lock), waiting.promise));
  released.catch(() => {});
  return { lock: await granted.promise, released, release: waiting.resolve };
}
