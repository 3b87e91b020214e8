/**
 * connect(): locks that reach every process of a machine, or all who reach its port, and outlive
 * the daemon's death.
 */

import { connect, LockManager, locks } from 'lockkeeper';
import { assert, run, test, until } from './harness.js';
import { connected, hold, machine } from './machine.js';

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
    const program = new URL('fixtures/installed.js', import.meta.url);
    if (!place.network) there.url = 'unix:/nowhere/daemon.sock';
    else {
      const daemon = await there.start();
      await daemon.kill('SIGKILL');
    }
    const failed = await run(program, [], { env: { ...process.env, LOCKKEEPER_URL: there.url } });
    assert.equal(failed.stdout.trim(), 'NetworkError', failed.stderr);
    const other = machine(place);
    await other.start();
    const { stdout, stderr } = await run(program, [], { env: { ...process.env, LOCKKEEPER_URL: other.url } });
    assert.equal(stdout.trim(), 'resource true false', stderr);
  });

  test(`${reach}: lockkeeper/proposals follows navigator.locks`, async () => {
    const there = machine(place);
    await there.start();
    const program = new URL('fixtures/follow.js', import.meta.url);
    const { stdout, stderr } = await run(program, [], { env: { ...process.env, LOCKKEEPER_URL: there.url } });
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

test('forceRelease() of a session that is closed rejects', async () => {
  const there = machine();
  await there.start();
  const manager = await connected(there.url);
  await manager.close();
  await assert.rejects(manager.forceRelease('a'), { name: 'InvalidStateError' });
});

test('a URL that is none is refused in words', async () => {
  await assert.rejects(connect('ftp://example'), /unix:\/path\/to\/daemon.sock/);
});
