/** The shapes before the draft: sketch 002 (flags), sketch 000 (locks with scopes), the explainer, the proto-spec. */

import { locks } from 'lockkeeper';
import {
  forceRelease,
  requestExplicitLock,
  requestFlag,
  requestLock,
  requestScopedLock,
} from 'lockkeeper/proposals';
import { assert, deferred, test } from './harness.js';
import { available, hold, modes, rejectsDOM, rejectsType, unique } from './helpers.js';

for (const [title, request] of [
  ['requestLock()', (scope, mode = 'exclusive') => requestLock(scope, { mode })],
  ['requestFlag()', (scope, mode = 'exclusive') => requestFlag(scope, mode)],
]) {
  test(`${title} step 1: a scope is a string or several, each once, frozen and sorted`, async () => {
    const [b, a] = [unique('b'), unique('a')];
    assert.deepEqual((await request(a)).scope, [a]);
    const { scope } = await request(new Set([b, a, b]));
    assert.deepEqual(scope, [a, b]);
    assert.ok(Object.isFrozen(scope));
  });

  test(`${title} step 2: an empty scope is a TypeError`, async () => {
    await rejectsType(request([]));
    await rejectsType(request(undefined));
  });

  test(`${title} step 3: the mode is that of the request`, async () => {
    const name = unique();
    const [one, other] = await Promise.all([request(name, 'shared'), request(name, 'shared')]);
    assert.deepEqual([one.mode, other.mode], ['shared', 'shared']);
    assert.equal((await request(unique())).mode, 'exclusive');
  });

  test(`${title} steps 6.6 and 6.7: it is held while the code that awaited it runs, and not after`, async () => {
    const name = unique();
    const lock = await request(name);
    const during = modes(name);
    await undefined;
    const after = modes(name);
    assert.deepEqual([await during, await after], [[['exclusive'], []], [[], []]]);
    assert.equal(await lock.released, undefined);
  });

  test(`${title}: waitUntil holds the lock until all it was given have fulfilled`, async () => {
    const name = unique();
    const [first, second] = [deferred(), deferred()];
    const lock = await request(name);
    const released = lock.waitUntil(first.promise);
    assert.equal(released, lock.released);
    lock.waitUntil(second.promise);
    first.resolve();
    await first.promise;
    assert.equal(await available(name), false);
    lock.waitUntil('no promise at all');
    second.resolve();
    assert.equal(await released, undefined);
    assert.equal(await available(name), true);
  });

  test(`${title}: a promise that rejects releases at once and rejects what released gives`, async () => {
    const name = unique();
    const lock = await request(name);
    lock.waitUntil(new Promise(() => {})).catch(() => {});
    const reason = new Error('the reason');
    await assert.rejects(lock.waitUntil(Promise.reject(reason)), reason);
    await assert.rejects(lock.released, reason);
    assert.equal(await available(name), true);
  });

  test(`${title}: waitUntil of a released lock is rejected with a TypeError`, async () => {
    const lock = await request(unique());
    await lock.released;
    await rejectsType(lock.waitUntil(Promise.resolve()));
  });

  test(`${title}: what released gives is rejected if the lock is stolen, and the thief keeps it`, async () => {
    const name = unique();
    const lock = await request(name);
    const gate = deferred();
    const rejected = rejectsDOM(lock.waitUntil(gate.promise), 'AbortError');
    const thief = await hold(name, { steal: true });
    await rejected;
    await rejectsType(lock.waitUntil(1));
    gate.resolve();
    assert.equal(await available(name), false);
    thief.release();
  });
}

test('requestFlag(): a timeout is a TimeoutError, and the request is gone', async () => {
  const holder = await hold(unique());
  await rejectsDOM(requestFlag(holder.lock.name, 'exclusive', { timeout: 1 }), 'TimeoutError');
  assert.deepEqual(await modes(holder.lock.name), [['exclusive'], []]);
});

test('requestFlag(): a timeout of 0 takes what is free', async () => {
  assert.equal((await requestFlag(unique(), 'exclusive', { timeout: 0 })).mode, 'exclusive');
});

test('requestFlag(): a timeout beyond what a timer counts is no timeout', async () => {
  const holder = await hold(unique());
  const flag = requestFlag(holder.lock.name, 'shared', { timeout: 2 ** 40 });
  holder.release();
  assert.equal((await flag).mode, 'shared');
});

test('requestFlag(): a mode that is none is a TypeError', async () => {
  await rejectsType(requestFlag(unique(), 'sideways'));
});

test('requestLock(): a signal aborts the request, which leaves the queue', async () => {
  const holder = await hold(unique());
  const controller = new AbortController();
  const request = requestLock(holder.lock.name, { signal: controller.signal });
  const reason = new Error('the reason');
  queueMicrotask(() => controller.abort(reason));
  await assert.rejects(request, reason);
  assert.deepEqual(await modes(holder.lock.name), [['exclusive'], []]);
});

test('requestLock(): ifAvailable gives null rather than wait', async () => {
  const holder = await hold(unique());
  assert.equal(await requestLock(holder.lock.name, { ifAvailable: true }), null);
  assert.equal(await requestExplicitLock(holder.lock.name, { ifAvailable: true }), null);
});

test('requestExplicitLock(): is held until release()', async () => {
  const name = unique();
  const lock = await requestExplicitLock([name]);
  assert.equal(await available(name), false);
  assert.deepEqual([lock.scope, lock.mode], [[name], 'exclusive']);
  lock.release();
  await lock.released;
  lock.release();
  assert.equal(await available(name), true);
});

test('requestScopedLock(): is held while the callback runs, and gives its result', async () => {
  const [a, b] = [unique(), unique()];
  const inside = async (lock) => {
    assert.deepEqual(lock.scope, [a, b].sort());
    return [await available(a), await available(b)];
  };
  assert.deepEqual(await requestScopedLock([b, a], inside), [false, false]);
  assert.equal(await available(a), true);
});

test('requestScopedLock(): a callback that throws releases', async () => {
  const name = unique();
  const reason = new Error('the reason');
  const failing = () => {
    throw reason;
  };
  await assert.rejects(requestScopedLock(name, failing, { mode: 'shared' }), reason);
  assert.equal(await available(name), true);
  await rejectsType(requestScopedLock(name, 'no function'));
});

test('requestScopedLock(): is rejected when its lock is stolen', async () => {
  const name = unique();
  const gate = deferred();
  const entered = deferred();
  const robbed = requestScopedLock(name, () => (entered.resolve(), gate.promise));
  const rejected = rejectsDOM(robbed, 'AbortError');
  await entered.promise;
  await locks.request(name, { steal: true }, () => {});
  await rejected;
  gate.resolve();
});

test('forceRelease(): breaks every lock of the name as a steal does, and takes none', async () => {
  const name = unique();
  const readers = [await hold(name, { mode: 'shared' }), await hold(name, { mode: 'shared' })];
  const broken = readers.map(({ released }) => rejectsDOM(released, 'AbortError'));
  const next = locks.request(name, (lock) => lock.mode);
  assert.equal(forceRelease(name), undefined);
  await Promise.all(broken);
  assert.equal(await next, 'exclusive');
  assert.deepEqual(await modes(name), [[], []]);
  forceRelease('nobody holds it');
});

test("the explainer's worked example: #3 and #6 are granted, #4 waits for all of 'a' and 'b', #5 waits for #4", async () => {
  const [a, b, c] = [unique('a'), unique('b'), unique('c')];
  const granted = [];
  const request = (number, scope, mode) =>
    requestExplicitLock(scope, { mode }).then((lock) => (granted.push(number), lock));
  const first = await request(1, a, 'exclusive');
  const second = await request(2, b, 'shared');
  const third = request(3, b, 'shared');
  const fourth = request(4, [a, b], 'exclusive');
  const fifth = request(5, b, 'shared');
  const sixth = request(6, c, 'exclusive');
  (await sixth).release();
  assert.deepEqual(granted, [1, 2, 3, 6]);
  for (const lock of [first, second, await third]) lock.release();
  const both = await fourth;
  assert.equal(await available(b, 'shared'), false);
  both.release();
  (await fifth).release();
  assert.deepEqual(granted, [1, 2, 3, 6, 4, 5]);
});
