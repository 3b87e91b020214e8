/** Beyond the draft: `createLocks()`, a lock manager of its own, and how it ends. */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { createLocks, locks } from 'lockkeeper';
import { assert, cleanUp, deferred, test, until } from './harness.js';
import { rejection, rejectsDOM, rejectsType, unique } from './helpers.js';

const never = new Promise(() => {});

/** Asserts that it was ended by `close()`. */
async function rejectsClosed(promise) {
  const error = await rejectsDOM(promise, 'AbortError');
  assert.equal(error.cause, 'closed');
  return error;
}

test('createLocks() has names of its own', async () => {
  const [one, two] = [createLocks(), createLocks()];
  const name = unique();
  await one.request(name, () =>
    two.request(name, () =>
      locks.request(name, async () => {
        for (const manager of [one, two, locks]) {
          assert.deepEqual((await manager.query()).held.map((info) => info.name), [name]);
          assert.equal((await manager.inspect()).held.length, 1);
        }
      }),
    ),
  );
  const waiting = await one.acquire(name);
  const next = one.request(name, () => 'next');
  assert.equal((await one.query()).pending.length, 1);
  one.forceRelease(name);
  assert.equal(await next, 'next');
  assert.equal(waiting.held, false);
  for (const manager of [one, two]) await manager.close();
});

test('close() ends what is held and what waits, and says so', async () => {
  const manager = createLocks();
  const events = [];
  manager.addEventListener('statuschange', () => events.push(manager.status));
  assert.equal(manager.status, 'connected');
  const callback = deferred();
  const held = rejectsClosed(manager.request('a', (lock) => (callback.resolve(lock), never)));
  const lock = await callback.promise;
  const { signal } = lock;
  const acquired = await manager.acquire(['b', 'c']);
  const waits = ['a', 'b'].map((name) => rejectsClosed(manager.request(name, assert.fail)));
  waits.push(rejectsClosed(manager.acquire(['c', 'd'], { timeout: 3_600_000 })));
  assert.equal(await manager.close(), undefined);
  assert.match((await held).message, /^The lock "a" was closed$/);
  await Promise.all(waits);
  for (const ended of [lock, acquired]) {
    assert.equal(ended.held, false);
    assert.throws(() => ended.assertHeld(), { name: 'AbortError', cause: 'closed' });
  }
  assert.equal(signal.reason.cause, 'closed');
  assert.equal(await acquired.release(), false);
  assert.deepEqual([manager.status, events], ['closed', ['closed']]);
});

test('a lock that was granted before close(), and not yet delivered, is not delivered', async () => {
  const manager = createLocks();
  const atOnce = rejectsClosed(manager.request('a', assert.fail));
  const held = await manager.acquire('b');
  const late = rejectsClosed(manager.request('b', assert.fail));
  const released = held.release();
  await manager.close();
  assert.equal(await released, true);
  await Promise.all([atOnce, late]);
});

test('the code under a lock can close its manager, and ends with it', async () => {
  const manager = createLocks();
  await rejectsClosed(manager.request('a', () => manager.close()));
});

test('whatever is asked of a closed manager is an InvalidStateError that names the way on', async () => {
  const used = createLocks();
  await used.request('a', () => {});
  for (const manager of [used, createLocks()]) {
    await manager.close();
    for (const ask of [
      () => manager.request('a', assert.fail),
      () => manager.request('a', { steal: true }, assert.fail),
      () => manager.request('a', { ifAvailable: true }, assert.fail),
      () => manager.acquire('a'),
      () => manager.acquire(['a', 'b'], { info: 'label' }),
      () => manager.query(),
      () => manager.inspect(),
      async () => manager.forceRelease('a'),
    ]) {
      assert.match((await rejectsDOM(ask(), 'InvalidStateError')).message, /is closed: createLocks\(\) gives another/);
    }
    assert.equal(manager.status, 'closed');
    await manager.close();
    await manager[Symbol.asyncDispose]();
  }
});

test('the end of an `await using` block closes it; the locks of the process cannot be closed', async () => {
  const manager = createLocks();
  const waits = rejectsClosed(manager.request('a', () => never));
  await manager[Symbol.asyncDispose]();
  await waits;
  const name = unique();
  await locks.request(name, async () => {
    for (const close of ['close', Symbol.asyncDispose]) {
      assert.match((await rejectsType(locks[close]())).message, /locks of the process cannot be closed/);
    }
    assert.equal(await locks.request(name, { ifAvailable: true }, (lock) => lock), null);
  });
});

test('managers that come after a closed one have nothing of it, and it nothing of them', async () => {
  const old = createLocks();
  const lock = await old.acquire('a');
  const waits = rejection(old.acquire('a'));
  await old.close();
  for (let i = 0; i < 100; i++) {
    const manager = createLocks();
    assert.deepEqual(await manager.query(), { held: [], pending: [] });
    const held = await manager.acquire('a');
    const next = manager.acquire('a');
    // The requests of this one are where those of the old one were.
    assert.equal(await lock.release(), false);
    assert.equal(held.held, true);
    const { held: shown, pending } = await manager.query();
    assert.deepEqual([shown.length, pending.length], [1, 1]);
    await held.release();
    assert.equal(await (await next).release(), true);
    await manager.close();
  }
  assert.equal((await waits).cause, 'closed');
});

test('what close() ends is published as such', async () => {
  const manager = createLocks();
  await manager.acquire('a');
  const waits = rejectsClosed(manager.acquire('a'));
  const seen = [];
  const listener = ({ cause }) => seen.push(cause);
  subscribe('lockkeeper:lost', listener);
  cleanUp(() => void unsubscribe('lockkeeper:lost', listener));
  await manager.close();
  await waits;
  await until(() => seen.length === 2);
  assert.deepEqual(seen, ['closed', 'closed']);
  assert.match((await rejection(manager.acquire('a'))).message, /is closed/);
});
