/**
 * connect(): locks that reach every process of a machine, or all who reach its port, and outlive
 * the daemon's death.
 */

import { spawnSync } from 'node:child_process';
import { chownSync, mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect, LockManager, locks } from 'lockkeeper';
import { connect as connectWithoutAddon } from 'lockkeeper/connect';
import { newManager } from '../dist/cjs/manager.cjs';
import { reach as reachOf } from '../dist/cjs/reach.cjs';
import { pack, unpack } from '../dist/pack.js';
import * as R from '../dist/to-client.js';
import { assert, cleanUp, run, test, until } from './harness.js';
import { connected, hold, machine, program } from './machine.js';

// Node 20 has no WebSocket.
const reaches = 'WebSocket' in globalThis ? ['a Unix socket', 'WebSocket'] : ['a Unix socket'];

for (const reach of reaches) {
  const place = { network: reach === 'WebSocket' };

  test(`${reach}: what connect() gives is a LockManager, with a clientId of its own`, async () => {
    const there = machine(place);
    await there.start();
    const { url } = there;
    const [one, other] = [await connected(url), await connected(url)];
    assert.ok(one instanceof LockManager);
    const [held] = [await hold(one, 'a'), await hold(other, 'b')];
    const ids = (await one.query()).held.map(({ clientId }) => clientId);
    assert.equal(new Set(ids).size, 2);
    held.release();
  });

  test(`${reach}: two sessions exclude each other, in order`, async () => {
    const there = machine(place);
    await there.start();
    const { url } = there;
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

  test(`${reach}: buckets share nothing, and neither do the daemon and this process`, async () => {
    const there = machine(place);
    await there.start();
    const { url } = there;
    const [one, other] = [await connected(url, { bucket: 'one' }), await connected(url, { bucket: 'other' })];
    await hold(one, 'a');
    const free = (manager) => manager.request('a', { ifAvailable: true }, (lock) => lock !== null);
    assert.deepEqual([await free(one), await free(other), await free(locks)], [false, true, true]);
    await assert.rejects(connect(url, { bucket: 'a\nb' }), { name: 'NetworkError' });
  });

  for (const signal of ['SIGKILL', 'SIGTERM']) {
    test(`${reach}: locks and places in queues outlive a daemon that ends with ${signal}`, async () => {
      const there = machine(place);
      let daemon = await there.start();
      const { url } = there;
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
        daemon = await there.start();
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

  test(`${reach}: close() releases what the session has`, async () => {
    const there = machine(place);
    await there.start();
    const { url } = there;
    const [one, other] = [await connected(url), await connected(url)];
    const held = await hold(one, 'a');
    const next = other.request('a', () => 'next');
    await one.close();
    assert.equal(await next, 'next');
    await assert.rejects(held.released, { name: 'AbortError', cause: 'closed' });
    await assert.rejects(one.request('a', () => {}), { name: 'InvalidStateError' });
    await assert.rejects(locks.close(), TypeError);
  });

  test(`${reach}: a request that is longer than a message can be is refused, and nothing else is`, async () => {
    const there = machine(place);
    await there.start();
    const manager = await connected(there.url);
    const { lock } = await hold(manager, 'a');
    const names = (length) => Array.from({ length: 16 }, (_, i) => String.fromCharCode(0x4e00 + i).repeat(length));
    const longest = await manager.acquire(names(21_800), { info: 'as long as can be' });
    await assert.rejects(manager.acquire(names(21_845)), { name: 'QuotaExceededError' });
    await assert.rejects(manager.acquire('b', { info: 'x'.repeat(2 ** 20) }), { name: 'QuotaExceededError' });
    assert.equal(await longest.release(), true);
    assert.equal(lock.signal.aborted, false);
  });

  test(`${reach}: LOCKKEEPER_URL chooses what lockkeeper/install puts on navigator`, async () => {
    const there = machine(place);
    const installed = new URL('fixtures/installed.js', import.meta.url);
    if (!place.network) there.url = 'unix:/nowhere/daemon.sock';
    else {
      const daemon = await there.start();
      await daemon.kill('SIGKILL');
    }
    const failed = await run(installed, [], { env: { ...process.env, LOCKKEEPER_URL: there.url } });
    assert.equal(failed.stdout.trim(), 'NetworkError', failed.stderr);
    const other = machine(place);
    await other.start();
    const { stdout, stderr } = await run(installed, [], { env: { ...process.env, LOCKKEEPER_URL: other.url } });
    assert.equal(stdout.trim(), 'resource true false', stderr);
  });

  test(`${reach}: lockkeeper/proposals follows navigator.locks`, async () => {
    const there = machine(place);
    await there.start();
    const follow = new URL('fixtures/follow.js', import.meta.url);
    const { stdout, stderr } = await run(follow, [], { env: { ...process.env, LOCKKEEPER_URL: there.url } });
    assert.deepEqual(stdout.trim().split('\n'), ['null null null', 'true', 'AbortError stolen'], stderr);
  });

  test(`${reach}: forceRelease() breaks the locks of all sessions`, async () => {
    const there = machine(place);
    await there.start();
    const [one, other] = [await connected(there.url), await connected(there.url)];
    const held = await hold(one, 'a');
    await other.forceRelease('a');
    await assert.rejects(held.released, { name: 'AbortError', cause: 'stolen' });
    assert.equal(await other.request('a', () => 'free'), 'free');
  });
}

for (const reach of reaches) {
  const place = { network: reach === 'WebSocket' };

  test(`${reach}: after a session is lost, the same manager has another`, async () => {
    const there = machine(place);
    const daemon = await there.start();
    const [manager, other] = [await connected(there.url), await connected(there.url)];
    const statuses = [];
    manager.addEventListener('statuschange', () => statuses.push(manager.status));
    const held = await hold(manager, 'a');
    const { clientId } = (await other.query()).held[0];
    await daemon.kill('SIGKILL');
    await until(() => manager.status === 'reconnecting');
    rmSync(join(there.dir, 'state'), { recursive: true });
    await there.start();
    await assert.rejects(held.released, { name: 'AbortError', cause: 'lost' });
    assert.deepEqual([held.lock.held, held.lock.signal.aborted], [false, true]);
    const again = await hold(manager, 'a');
    assert.equal(manager.status, 'connected');
    assert.deepEqual(statuses, ['reconnecting', 'connected']);
    const [now] = (await other.query()).held;
    assert.notEqual(now.clientId, clientId);
    assert.equal(await other.request('a', { ifAvailable: true }, (lock) => lock), null);
    again.release('value');
    assert.equal(await again.released, 'value');
  });

  test(`${reach}: a session that was ended by hand is followed by another`, async () => {
    const there = machine(place);
    await there.start();
    const [manager, other] = [await connected(there.url), await connected(there.url)];
    const held = await hold(manager, 'a');
    const { clientId } = (await other.query()).held[0];
    const env = { ...process.env, LOCKKEEPER_URL: there.url, NO_COLOR: '1' };
    const ended = spawnSync(program, ['release', '--client', clientId], { env, encoding: 'utf8' });
    assert.equal(ended.status, 0, ended.stderr);
    await assert.rejects(held.released, { name: 'AbortError' });
    assert.equal(await manager.request('a', ({ name }) => name), 'a');
  });

  test(`${reach}: a manager whose first session could not be opened opens one when it is asked again`, async () => {
    const there = machine(place);
    // The port is known once a daemon has run.
    await (await there.start()).kill('SIGKILL');
    const remote = reachOf(there.url);
    await assert.rejects(remote.opened, { name: 'NetworkError' });
    assert.equal(remote.state, 'closed');
    const manager = newManager(remote);
    cleanUp(() => manager.close());
    await assert.rejects(manager.request('a', () => {}), { name: 'NetworkError' });
    await assert.rejects(manager.query(), { name: 'NetworkError' });
    await there.start();
    const all = [manager.query(), ...['a', 'b'].map((name) => manager.request(name, (lock) => lock.name))];
    assert.deepEqual(await Promise.all(all), [{ held: [], pending: [] }, 'a', 'b']);
    assert.equal(remote.state, 'connected');
  });

  test(`${reach}: what waits for a session when that is closed ends as what has one does`, async () => {
    const there = machine(place);
    const daemon = await there.start();
    const manager = await connected(there.url);
    await daemon.kill('SIGKILL');
    await until(() => manager.status === 'reconnecting');
    const [waiting, shown] = [manager.request('a', () => {}), manager.query()];
    const ended = [
      assert.rejects(waiting, { name: 'AbortError', cause: 'closed' }),
      assert.rejects(shown, { name: 'NetworkError' }),
    ];
    await manager.close();
    await Promise.all(ended);
    assert.equal(manager.status, 'closed');
  });

  test(`${reach}: a question and requests that are asked at once are not taken for each other`, async () => {
    const there = machine(place);
    await there.start();
    const [manager, other] = [await connected(there.url), await connected(there.url)];
    const [, value] = await Promise.all([manager.query(), manager.request('a', () => 'value')]);
    assert.equal(value, 'value');
    assert.equal(await other.request('a', () => 'free'), 'free');
  });
}

/**
 * A daemon that gives leases on a Unix socket, as one that can make no FIFO. It grants what it is
 * asked for.
 */
async function lender(ttl, hears = () => {}) {
  const dir = mkdtempSync(join(tmpdir(), 'lockkeeper-test-'));
  const server = createServer((socket) => {
    const say = (...messages) => {
      for (const bytes of messages.map(pack)) {
        const length = Buffer.alloc(4);
        length.writeUInt32BE(bytes.length);
        socket.write(Buffer.concat([length, bytes]));
      }
    };
    let came = Buffer.alloc(0);
    socket.on('error', () => {});
    socket.on('data', (data) => {
      came = Buffer.concat([came, data]);
      while (came.length >= 4 && came.length >= 4 + came.readUInt32BE()) {
        const end = 4 + came.readUInt32BE();
        const message = unpack(came.subarray(4, end));
        const [kind, , number] = message;
        hears(message);
        came = came.subarray(end);
        if (kind === 0) say([R.WELCOME, 2, 0, 1, '0123456789abcdef', new Uint8Array(16), ttl, false, 0], [R.SYNCED]);
        else if (kind === 1) say([R.GRANTED, number, 42]);
        else if (kind === 6) say([R.PONG, number]);
      }
    });
  });
  const socket = join(dir, 'daemon.sock');
  await new Promise((resolve) => server.listen(socket, resolve));
  cleanUp(() => (server.close(), rmSync(dir, { recursive: true })));
  return `unix:${socket}`;
}

if (reaches.length > 1) {
  test("of several URLs, a Unix socket gets no token, and another user's is not used", async () => {
    const hellos = [];
    const url = await lender(1000, (message) => message[0] === 0 && hellos.push(message));
    const several = [url, 'ws://127.0.0.1:1/'];
    const manager = await connected(several, { token: 'secret' });
    assert.equal((await hold(manager, 'a')).lock.token, 42n);
    assert.deepEqual(hellos.map(([, , features, , , , , token]) => [features, token]), [[0, null]]);
    const alone = await connectWithoutAddon(url);
    cleanUp(() => alone.close());
    assert.equal(hellos.splice(1).length, 1);
    if (process.env.LOCKKEEPER_SKIP_USERS === '1') return;
    chownSync(url.replace('unix:', ''), 1, 1);
    await assert.rejects(connect(several), { name: 'NetworkError' });
    assert.equal(hellos.length, 1);
  });
}

test('a Unix socket: code that blocks its thread past a lease sees at once that its lock is lost', async () => {
  const manager = await connected(await lender(1000));
  const { lock, released } = await hold(manager, 'a');
  assert.deepEqual([lock.held, lock.signal.aborted], [true, false]);
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1000);
  assert.deepEqual([lock.held, lock.signal.aborted], [false, true]);
  await assert.rejects(released, { name: 'AbortError', cause: 'lost' });
});

test('connects to a Unix socket leave nothing behind, whether they fail or are closed', async () => {
  const there = machine();
  await there.start();
  const done = await run(new URL('fixtures/connects.js', import.meta.url), [there.url]);
  assert.deepEqual([done.stdout.trim(), done.code], ['NetworkError 0 0 0', 0], done.stderr);
});

test('forceRelease() of a session that is closed rejects', async () => {
  const there = machine();
  await there.start();
  const manager = await connected(there.url);
  await manager.close();
  await assert.rejects(manager.forceRelease('a'), { name: 'InvalidStateError' });
});

test('a URL that is none is refused in words', async () => {
  for (const url of ['ftp://example', 'https://example', 'unix:daemon.sock']) {
    await assert.rejects(connect(url), { name: 'TypeError', message: /unix:\/path\/to\/daemon.sock/ });
  }
  await assert.rejects(connect(''), { name: 'TypeError', message: 'the URL is empty' });
  await assert.rejects(connect([]), { name: 'TypeError', message: 'the list of URLs is empty' });
});
