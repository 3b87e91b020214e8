/** connect(): locks that reach every process of the machine, and outlive the daemon's death. */

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { createRequire } from 'node:module';
import { connect, LockManager, locks } from 'lockkeeper';
import { assert, cleanUp, deferred, test, until } from './harness.js';

const require = createRequire(import.meta.url);
const program = join(dirname(require.resolve('lockkeeper-linux-x64-gnu')), 'lockkeeper');

/** A machine of the test's own: a socket that nobody listens on yet. */
function machine() {
  const dir = mkdtempSync(join(tmpdir(), 'lockkeeper-test-'));
  const url = `unix:${join(dir, 'daemon.sock')}`;
  const daemons = [];
  const start = () => {
    const args = ['serve', '--socket', join(dir, 'daemon.sock'), '--state-dir', join(dir, 'state')];
    const child = spawn(program, args, { stdio: ['ignore', 'ignore', 'pipe'] });
    const exited = new Promise((resolve) => child.on('exit', resolve));
    daemons.push({ child, exited });
    const serving = new Promise((resolve) => {
      child.stderr.on('data', (line) => String(line).includes('serving') && resolve());
    });
    return serving.then(() => ({ kill: (signal) => (child.kill(signal), exited) }));
  };
  cleanUp(async () => {
    for (const { child } of daemons) child.kill('SIGKILL');
    await Promise.all(daemons.map(({ exited }) => exited));
    rmSync(dir, { recursive: true, force: true });
  });
  return { url, start };
}

/** Connects until the test is over. */
async function connected(url, options) {
  const manager = await connect(url, options);
  cleanUp(() => manager.close());
  return manager;
}

/** Holds a lock until `release` is called. */
async function hold(manager, name, options = {}) {
  const [granted, waiting] = [deferred(), deferred()];
  const released = manager.request(name, options, (lock) => (granted.resolve(lock), waiting.promise));
  released.catch(() => {});
  return { lock: await granted.promise, released, release: waiting.resolve };
}

test('what connect() gives is a LockManager, with a clientId of its own', async () => {
  const { url, start } = machine();
  await start();
  const [one, other] = [await connected(url), await connected(url)];
  assert.ok(one instanceof LockManager);
  const [held] = [await hold(one, 'a'), await hold(other, 'b')];
  const ids = (await one.query()).held.map(({ clientId }) => clientId);
  assert.equal(new Set(ids).size, 2);
  held.release();
});

test('two sessions exclude each other, in order', async () => {
  const { url, start } = machine();
  await start();
  const [one, other] = [await connected(url), await connected(url)];
  const order = [];
  const first = await hold(one, 'a');
  const waiting = [other.request('a', () => order.push(0))];
  await until(async () => (await one.query()).pending.length === 1);
  waiting.push(one.request('a', () => order.push(1)));
  await until(async () => (await one.query()).pending.length === 2);
  assert.deepEqual(order, []);
  first.release();
  await Promise.all(waiting);
  assert.deepEqual(order, [0, 1]);
});

test('buckets share nothing, and neither do the daemon and this process', async () => {
  const { url, start } = machine();
  await start();
  const [one, other] = [await connected(url, { bucket: 'one' }), await connected(url, { bucket: 'other' })];
  await hold(one, 'a');
  const free = (manager) => manager.request('a', { ifAvailable: true }, (lock) => lock !== null);
  assert.deepEqual([await free(one), await free(other), await free(locks)], [false, true, true]);
  await assert.rejects(connect(url, { bucket: 'a/b' }), { name: 'NetworkError' });
});

for (const signal of ['SIGKILL', 'SIGTERM']) {
  test(`locks and places in queues outlive a daemon that ends with ${signal}`, async () => {
    const { url, start } = machine();
    let daemon = await start();
    const [one, other] = [await connected(url), await connected(url)];
    const held = await hold(one, 'a');
    const order = [];
    const waiting = [];
    for (const manager of [other, one, other]) {
      const place = waiting.length;
      waiting.push(manager.request('a', () => order.push(place)));
      // Between two connections, the order is that of arrival.
      await until(async () => (await one.query()).pending.length === waiting.length);
    }
    for (let life = 0; life < 3; life++) {
      await daemon.kill(signal);
      daemon = await start();
      await until(async () => {
        const { held, pending } = await other.query().catch(() => ({ held: [], pending: [] }));
        return held.length === 1 && pending.length === 3;
      });
    }
    assert.equal(held.lock.signal.aborted, false);
    held.release('value');
    assert.equal(await held.released, 'value');
    await Promise.all(waiting);
    assert.deepEqual(order, [0, 1, 2]);
  });
}

test('close() releases what the session has', async () => {
  const { url, start } = machine();
  await start();
  const [one, other] = [await connected(url), await connected(url)];
  const held = await hold(one, 'a');
  const next = other.request('a', () => 'next');
  await one.close();
  assert.equal(await next, 'next');
  await assert.rejects(held.released, { name: 'AbortError', cause: 'lost' });
  await assert.rejects(one.request('a', () => {}), { name: 'InvalidStateError' });
  await assert.rejects(locks.close(), TypeError);
});

test('a URL that is none is refused in words', async () => {
  await assert.rejects(connect('ftp://example'), /unix:\/path\/to\/daemon.sock/);
});
