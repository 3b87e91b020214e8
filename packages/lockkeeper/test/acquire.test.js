/** Beyond the draft: acquire(), scopes, tokens, lock.signal, inspect(). */

import { AcquiredLock, Lock } from 'lockkeeper';
import { assert, cleanUp, startWorker, test, turn, until } from './harness.js';
import {
  available,
  hold,
  locks,
  modes,
  rejection,
  rejectsDOM,
  rejectsType,
  request,
  testInProcess,
  unique,
} from './helpers.js';

/** Acquires a lock that is released with the test, if it is held then. */
async function acquire(scope, options) {
  const lock = await locks.acquire(scope, options);
  if (lock !== null) cleanUp(() => lock.release());
  return lock;
}

/** Starts to acquire, and notes when that succeeds. */
function acquiring(scope, options) {
  const state = { lock: undefined };
  state.promise = locks.acquire(scope, options).then((lock) => (state.lock = lock));
  cleanUp(() => state.promise.then((lock) => lock?.release(), () => {}));
  return state;
}

test('acquire(name) gives a Lock, exclusive unless told otherwise, held until release()', async () => {
  const name = unique();
  const lock = await acquire(name);
  assert.ok(lock instanceof AcquiredLock && lock instanceof Lock);
  assert.deepEqual([lock.name, lock.mode, lock.scope], [name, 'exclusive', [name]]);
  assert.deepEqual(await modes(name), [['exclusive'], []]);
  assert.equal(await available(name), false);
  assert.equal(await lock.release(), true);
  assert.equal(await available(name), true);
  const shared = await acquire(name, { mode: 'shared' });
  assert.deepEqual([shared.mode, await available(name, 'shared')], ['shared', true]);
});

test('release() resolves to true once, then to false, and does no harm then', async () => {
  const name = unique();
  const lock = await acquire(name);
  assert.deepEqual([await lock.release(), await lock.release()], [true, false]);
  const second = await acquire(name);
  assert.equal(await lock.release(), false);
  assert.equal(await available(name), false, 'the second lock is held');
  assert.equal(await second.release(), true);
});

test('release() has released when it returns', async () => {
  const lock = await acquire(unique());
  const released = lock.release();
  assert.deepEqual(await modes(lock.name), [[], []]);
  assert.equal(await released, true);
});

test('acquire() and request() wait for each other, in their order', async () => {
  const name = unique();
  const first = await acquire(name);
  const order = [];
  const second = locks.request(name, () => order.push('request'));
  const third = locks.acquire(name).then((lock) => {
    order.push('acquire');
    return lock.release();
  });
  await turn();
  assert.deepEqual(order, []);
  await first.release();
  await Promise.all([second, third]);
  assert.deepEqual(order, ['request', 'acquire']);
});

test('Symbol.asyncDispose releases: that is what `await using` calls', async () => {
  const lock = await acquire(unique());
  assert.equal(await lock[Symbol.asyncDispose](), undefined);
  assert.equal(await available(lock.name), true);
  assert.equal(await lock[Symbol.asyncDispose](), undefined, 'twice does no harm');
  const preempted = await acquire(unique());
  await locks.request(preempted.name, { steal: true }, () => {});
  assert.equal(await preempted[Symbol.asyncDispose](), undefined);
});

test('acquire(names) takes any iterable, and holds all names together', async () => {
  const names = [unique('c'), unique('a'), unique('b')];
  function* generate() {
    yield* names;
  }
  for (const scope of [names, new Set(names), generate(), [...names, ...names]]) {
    const lock = await locks.acquire(scope);
    assert.deepEqual([lock.name, lock.mode], [names[0], 'exclusive']);
    assert.deepEqual(lock.scope, [...names].sort());
    assert.ok(Object.isFrozen(lock.scope));
    assert.equal(lock.scope, lock.scope, 'it is always the same array');
    for (const name of names) assert.deepEqual(await modes(name), [['exclusive'], []]);
    assert.equal(await lock.release(), true);
    for (const name of names) assert.deepEqual(await modes(name), [[], []]);
  }
});

test('acquire({name: mode}) gives each name its mode', async () => {
  const [a, b] = [unique('a'), unique('b')];
  const mixed = await locks.acquire({ [a]: 'shared', [b]: 'exclusive' });
  assert.deepEqual([mixed.name, mixed.mode, mixed.scope], [a, 'exclusive', [a, b]]);
  assert.deepEqual([await available(a, 'shared'), await available(a)], [true, false]);
  assert.equal(await available(b, 'shared'), false);
  await mixed.release();
  const shared = await locks.acquire({ [a]: 'shared', [b]: 'shared' }, { mode: 'exclusive' });
  assert.equal(shared.mode, 'shared');
  assert.deepEqual([await available(a, 'shared'), await available(b, 'shared')], [true, true]);
  await shared.release();
});

test('the mode option is that of the names that have none of their own', async () => {
  const names = [unique(), unique()];
  const lock = await acquire(names, { mode: 'shared' });
  assert.equal(lock.mode, 'shared');
  for (const name of names) assert.deepEqual(await modes(name), [['shared'], []]);
});

test('a scope is granted when all of its names can be, and keeps its place in every queue', async () => {
  const [a, b] = [unique('a'), unique('b')];
  const holder = await hold(a);
  const scope = acquiring([a, b]);
  const later = request(b);
  await turn();
  assert.deepEqual([scope.lock, later.ran], [undefined, false]);
  assert.deepEqual(await modes(b), [[], ['exclusive', 'exclusive']], 'nobody overtakes, and nobody holds');
  holder.release();
  const lock = await scope.promise;
  assert.deepEqual(await modes(b), [['exclusive'], ['exclusive']]);
  await lock.release();
  later.release();
  await later.released;
});

test('a shared request passes a waiting scope that is shared on that name', async () => {
  const [a, b] = [unique('a'), unique('b')];
  await hold(b);
  const scope = acquiring({ [a]: 'shared', [b]: 'exclusive' });
  await turn();
  assert.equal(scope.lock, undefined);
  assert.equal(await available(a, 'shared'), true);
  assert.equal(await available(a), false);
});

test('scopes in any order of their names do not deadlock', async () => {
  const names = [unique(), unique(), unique()];
  const orders = [
    [0, 1, 2],
    [2, 1, 0],
    [1, 0],
    [2, 0],
    [1, 2],
  ];
  const inside = new Map();
  const work = async (order) => {
    for (let i = 0; i < 50; i++) {
      const scope = order.map((index) => names[index]);
      const lock = await locks.acquire(scope);
      for (const name of scope) {
        assert.equal(inside.get(name), undefined);
        inside.set(name, true);
      }
      await turn();
      for (const name of scope) inside.delete(name);
      assert.equal(await lock.release(), true);
    }
  };
  await Promise.all(orders.map(work));
});

test('ifAvailable gives null if one of the names is not to be had, and takes none', async () => {
  const [a, b] = [unique('a'), unique('b')];
  await hold(b);
  assert.equal(await locks.acquire([a, b], { ifAvailable: true }), null);
  assert.equal(await locks.acquire(b, { ifAvailable: true }), null);
  assert.equal(await available(a), true);
  const lock = await locks.acquire([a], { ifAvailable: true });
  assert.equal(await lock.release(), true);
});

test('steal breaks every lock that has one of the names, whole', async () => {
  const [a, b, c] = [unique('a'), unique('b'), unique('c')];
  const victim = await acquire([a, b]);
  const other = await hold(c);
  const waiting = request(a);
  const thief = await acquire([b, c], { steal: true });
  assert.equal(victim.signal.aborted, true);
  assert.equal((await rejectsDOM(other.released, 'AbortError')).cause, 'stolen');
  waiting.release('free');
  assert.equal(await waiting.released, 'free', 'what the victim had beside it is free');
  assert.equal(await victim.release(), false);
  assert.equal(await available(b), false);
  assert.equal(await thief.release(), true);
});

test('steal of names of which one is shared is refused, as request() does', async () => {
  const scope = { [unique()]: 'exclusive', [unique()]: 'shared' };
  await rejectsDOM(locks.acquire(scope, { steal: true }), 'NotSupportedError');
});

test('the options that do not go together are refused with NotSupportedError, as by request()', async () => {
  const { signal } = new AbortController();
  const [steal, ifAvailable] = [true, true];
  for (const options of [{ steal, ifAvailable }, { steal, signal }, { ifAvailable, signal }]) {
    await rejectsDOM(locks.acquire([unique(), unique()], options), 'NotSupportedError');
  }
  await rejectsDOM(locks.acquire('-reserved'), 'NotSupportedError');
  await rejectsDOM(locks.acquire([unique(), '-reserved']), 'NotSupportedError');
});

test('a scope that is none is a TypeError, and a rejection', async () => {
  for (const scope of [[], {}, new Set(), undefined, null, 1, Symbol('name'), () => {}, [Symbol('name')]]) {
    await rejectsType(locks.acquire(scope));
  }
  for (const scope of [{ a: 'none' }, { a: undefined }, { a: null }]) await rejectsType(locks.acquire(scope));
  await rejectsType(locks.acquire(unique(), { mode: 'none' }));
  await rejectsType(locks.acquire(unique(), { signal: {} }));
});

test('options are an object: for a callback, the error says where it goes', async () => {
  const lock = await acquire(unique(), undefined);
  assert.equal(lock.mode, 'exclusive');
  for (const options of [null, () => assert.fail('the callback ran'), 'shared', 5000]) {
    const { message } = await rejectsType(locks.acquire(unique(), options));
    assert.match(message, /request\(name, options, callback\)/);
  }
  for (const options of [{}, undefined]) {
    const name = unique();
    const { message } = await rejectsType(locks.acquire(name, options, () => assert.fail('the callback ran')));
    assert.match(message, /^acquire\(scope, options\) .*request\(name, options, callback\)/);
    // It holds nothing.
    assert.notEqual(await acquire(name, { ifAvailable: true }), null);
  }
  const { message } = await rejectsType(locks.acquire(unique(), { time: 5000 }));
  assert.match(message, /no option time, but .*timeout/);
});

test('a scope of 1,024 names is the largest; a larger one is refused with QuotaExceededError', async () => {
  const names = Array.from({ length: 1_025 }, (_, i) => unique(`${i}`));
  await rejectsDOM(locks.acquire(names), 'QuotaExceededError');
  const lock = await locks.acquire(names.slice(1));
  assert.equal((await locks.query()).held.length, 1_024);
  assert.equal(await lock.release(), true);
});

test('acquire() of what is no LockManager rejects with a TypeError', async () => {
  await rejectsType(locks.acquire.call({}, unique()));
  await rejectsType(locks.inspect.call(undefined));
  assert.throws(() => new AcquiredLock(), TypeError);
});

test('release() of what acquire() did not give rejects with a TypeError, and releases nothing', async () => {
  const { release } = AcquiredLock.prototype;
  await rejectsType((async () => release.call({}))());
  const { lock, ...held } = await hold(unique());
  await rejectsType((async () => release.call(lock))());
  assert.equal(await available(lock.name), false, 'a request() holds until its callback is done');
  held.release('value');
  assert.equal(await held.released, 'value');
});

test('signal: an acquire() that waits is aborted with the reason', async () => {
  const { lock } = await hold(unique());
  const controller = new AbortController();
  const { signal } = controller;
  const single = rejection(locks.acquire(lock.name, { signal }));
  const scope = rejection(locks.acquire([lock.name, unique()], { signal }));
  controller.abort('aborted');
  assert.deepEqual(await modes(lock.name), [['exclusive'], []]);
  assert.deepEqual([await single, await scope], ['aborted', 'aborted']);
  assert.equal(await rejection(locks.acquire(unique(), { signal })), 'aborted');
});

test('signal: an abort counts until the lock is delivered, as it does for request()', async () => {
  for (const when of ['in the same turn', 'in a microtask']) {
    const names = [unique('a'), unique('b')];
    const controller = new AbortController();
    const { signal } = controller;
    const all = [
      locks.request(names[0], { signal }, () => assert.fail('the callback ran')),
      locks.acquire(names[1], { signal }),
      locks.acquire(names, { signal, timeout: 60_000 }),
    ].map(rejection);
    if (when === 'in a microtask') await undefined;
    controller.abort('aborted');
    assert.deepEqual(await Promise.all(all), ['aborted', 'aborted', 'aborted'], when);
    assert.deepEqual([await available(names[0]), await available(names[1])], [true, true], when);
  }
});

testInProcess('signal: a lock that is granted at once does not time out before it is delivered', async () => {
  const { signal } = new AbortController();
  const promise = locks.acquire(unique(), { signal, timeout: 1 });
  // The time is up before the task in which it is delivered.
  for (const end = performance.now() + 5; performance.now() < end; );
  assert.equal(await (await promise).release(), true);
});

test('signal: a lock that has been acquired does not mind an abort', async () => {
  const controller = new AbortController();
  const lock = await acquire(unique(), { signal: controller.signal });
  controller.abort();
  assert.deepEqual([lock.signal.aborted, await available(lock.name)], [false, false]);
  assert.equal(await lock.release(), true);
});

test('timeout: an acquire() that has waited so long leaves the queue with a TimeoutError', async () => {
  const name = unique('slow');
  await hold(name, { mode: 'shared' });
  const error = rejectsDOM(locks.acquire(name, { timeout: 5 }), 'TimeoutError');
  const behind = request(name, { mode: 'shared' });
  assert.deepEqual(await modes(name), [['shared'], ['exclusive', 'shared']]);
  const { message } = await error;
  assert.deepEqual(await modes(name), [['shared', 'shared'], []], 'and lets in what waited behind it');
  assert.ok(message.includes(JSON.stringify(name)) && message.includes('5 ms'), message);
  behind.release();
});

test('timeout: 0 does not wait, but takes what is there', async () => {
  const name = unique();
  const lock = await acquire(name, { timeout: 0 });
  await rejectsDOM(locks.acquire(name, { timeout: 0 }), 'TimeoutError');
  assert.equal(await lock.release(), true);
});

test('timeout: one that is granted in time is not disturbed later', async () => {
  const name = unique();
  let [timeout, lock] = [30, undefined];
  // On a busy machine, the time may be up before the release is.
  for (; !lock; timeout *= 2) {
    const first = await acquire(name);
    const second = acquiring(name, { timeout });
    const late = second.promise.catch((error) => assert.equal(error.name, 'TimeoutError'));
    await first.release();
    lock = await late;
  }
  // As long as it would have waited, and longer.
  await rejectsDOM(locks.acquire(name, { timeout }), 'TimeoutError');
  assert.deepEqual([lock.signal.aborted, await lock.release()], [false, true]);
});

test('timeout: Infinity, and more than a timer can count, is not soon', async () => {
  const name = unique();
  const first = await acquire(name);
  const patient = [Infinity, 2 ** 31, 1e12, Number.MAX_VALUE].map((timeout) => acquiring(name, { timeout }));
  await rejectsDOM(locks.acquire(name, { timeout: 50 }), 'TimeoutError');
  assert.equal((await modes(name))[1].length, patient.length);
  await first.release();
  for (const { promise } of patient) assert.equal(await (await promise).release(), true);
});

test('timeout: what is no number of milliseconds is a TypeError', async () => {
  for (const timeout of [-1, NaN, 'soon', {}]) await rejectsType(locks.acquire(unique(), { timeout }));
});

testInProcess('token: every grant of a name has a greater one than all before it, whatever its kind', async () => {
  const name = unique();
  const tokens = [];
  tokens.push(await locks.request(name, (lock) => lock.token));
  tokens.push(await locks.request(name, { mode: 'shared' }, (lock) => lock.token));
  const acquired = await acquire(name);
  tokens.push(acquired.token);
  const stolen = await acquire([name, unique()], { steal: true });
  tokens.push(stolen.token);
  const worker = startWorker('agent.js');
  await worker.ask('request', 'a', name, { steal: true });
  const { held } = await locks.inspect();
  tokens.push(held[0].token);
  await worker.ask('release', 'a');
  tokens.push(await locks.request(name, (lock) => lock.token));
  assert.ok(tokens.every((token) => typeof token === 'bigint'), String(tokens));
  assert.ok(tokens.every((token, i) => i === 0 || token > tokens[i - 1]), String(tokens));
});

test('token: it stays when the lock is gone, and inspect() shows the same', async () => {
  const lock = await acquire(unique());
  const { token } = lock;
  assert.equal((await locks.inspect()).held[0].token, token);
  await lock.release();
  assert.equal(lock.token, token);
});

test('lock.signal aborts when the lock is stolen, with the AbortError of the request', async () => {
  const { lock, released } = await hold(unique());
  const { signal } = lock;
  assert.ok(signal instanceof AbortSignal);
  assert.equal(signal.aborted, false);
  assert.equal(lock.signal, signal, 'it is always the same');
  const event = new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
  const broken = rejection(released);
  await locks.request(lock.name, { steal: true }, () => {});
  assert.equal((await event).type, 'abort');
  assert.ok(signal.reason instanceof DOMException);
  assert.deepEqual([signal.reason.name, signal.reason.cause], ['AbortError', 'stolen']);
  assert.equal(signal.reason, await broken);
});

test('lock.signal that is asked for only after the theft is aborted', async () => {
  const lock = await acquire(unique());
  await locks.request(lock.name, { steal: true }, () => {});
  assert.deepEqual([lock.signal.aborted, lock.signal.reason.cause], [true, 'stolen']);
  assert.equal(await lock.release(), false);
});

test('lock.held is true until the lock is released or stolen', async () => {
  const lock = await acquire(unique());
  assert.equal(lock.held, true);
  await lock.release();
  assert.equal(lock.held, false);
  const stolen = await acquire(unique());
  const thief = await locks.acquire(stolen.name, { steal: true });
  await until(() => !stolen.held);
  assert.deepEqual([thief.held, stolen.signal.aborted], [true, true]);
  await thief.release();
  const { get } = Object.getOwnPropertyDescriptor(Lock.prototype, 'held');
  assert.throws(() => get.call({}), TypeError);
});

test('lock.signal does not abort when the lock is released', async () => {
  const lock = await acquire(unique());
  const { signal } = lock;
  await lock.release();
  await locks.request(lock.name, { steal: true }, () => {});
  assert.equal(signal.aborted, false);
});

testInProcess('lock.signal tells an acquired lock that another thread stole it', async () => {
  const lock = await acquire(unique());
  const worker = startWorker('agent.js');
  const event = new Promise((resolve) => lock.signal.addEventListener('abort', resolve));
  await worker.ask('request', 'a', lock.name, { steal: true });
  await event;
  assert.equal(lock.signal.reason.cause, 'stolen');
  assert.equal(await lock.release(), false);
});

test('inspect() shows scopes, their names sorted, with modes, labels, tokens, and who stole', async () => {
  const [a, b] = [unique('a'), unique('b')];
  const lock = await acquire({ [b]: 'exclusive', [a]: 'shared' }, { info: 'nightly' });
  const thief = await acquire(unique('c'), { steal: true, info: 42 });
  const { held, pending, deadlocks } = await locks.inspect();
  assert.deepEqual([pending, deadlocks], [[], []]);
  const [{ clientId }] = (await locks.query()).held;
  const [first, second] = held;
  assert.deepEqual(first.scope, [
    { name: a, mode: 'shared' },
    { name: b, mode: 'exclusive' },
  ]);
  assert.deepEqual([first.info, first.token, first.stole], ['nightly', lock.token, false]);
  assert.deepEqual([second.info, second.token, second.stole], ['42', thief.token, true]);
  for (const info of held) {
    assert.equal(info.clientId, clientId);
    assert.equal(typeof info.request, 'bigint');
    assert.deepEqual([info.waited, info.nestedIn], [undefined, undefined]);
  }
  assert.ok(second.request > first.request);
});

test('inspect() shows for how long a request has waited, and no token', async () => {
  const name = unique();
  await hold(name);
  const waiting = acquiring([name, unique()], { info: 'patient', mode: 'shared' });
  const of = async () => (await locks.inspect()).pending[0];
  const first = await of();
  assert.deepEqual([first.info, first.token], ['patient', undefined]);
  assert.deepEqual(first.scope.map(({ mode }) => mode), ['shared', 'shared']);
  assert.ok(first.waited >= 0 && first.waited < 60_000, `${first.waited} ms`);
  await until(async () => (await of()).waited > first.waited);
  assert.equal(waiting.lock, undefined);
});

test('info is a string of any characters', async () => {
  for (const info of ['', 'Grüße 💧', 'a\0b', 'x'.repeat(4096)]) {
    const lock = await acquire(unique(), { info });
    assert.equal((await locks.inspect()).held.at(-1).info, info);
    await lock.release();
  }
});

test('query() shows a scope once for each of its names', async () => {
  const names = [unique('a'), unique('b')];
  const lock = await acquire(names);
  const waiting = acquiring([...names].reverse(), { mode: 'shared' });
  const { held, pending } = await locks.query();
  const sorted = [held, pending].map((list) => list.map(({ name }) => name).sort());
  assert.deepEqual(sorted, [names, names]);
  assert.deepEqual(Object.keys(held[0]).length, 3);
  await lock.release();
  await (await waiting.promise).release();
});

testInProcess('acquire() that was let in by a release, and stolen before it is told, rejects', async () => {
  const name = unique();
  const first = await acquire(name);
  const second = rejection(locks.acquire(name));
  void first.release();
  const thief = await acquire(name, { steal: true });
  assert.equal((await second).cause, 'stolen');
  assert.equal(await thief.release(), true);
});
