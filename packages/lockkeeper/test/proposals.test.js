/**
 * The shapes before the draft: the sketch Origin Flags, the sketch of locks with scopes, the
 * explainer, the proto-spec.
 */

import { AcquiredLock, LockManager, Lock as DraftLock, locks as inProcess } from 'lockkeeper';
import * as plain from 'lockkeeper/proposals';
import { ExplicitLock, Flag, Lock, proposals } from 'lockkeeper/proposals';
import { assert, cleanUp, deferred, test, turn } from './harness.js';
import {
  available,
  hold,
  locks,
  microtasks,
  modes,
  rejection,
  rejectsDOM,
  rejectsType,
  testInProcess,
  unique,
} from './helpers.js';

const { forceRelease, requestExplicitLock, requestFlag, requestLock, requestScopedLock } = proposals(locks);
const never = () => assert.fail('the callback ran');

/** Breaks the lock of a name, as `forceRelease` and a thief do. */
const breaks = {
  'force-released': (name) => locks.forceRelease(name),
  stolen: (name) => locks.request(name, { steal: true }, () => {}),
};

for (const [title, request] of [
  ['requestLock()', (scope, mode = 'exclusive') => requestLock(scope, { mode })],
  ['requestFlag()', (scope, mode = 'exclusive') => requestFlag(scope, mode)],
]) {
  test(`${title} step 1: a scope is a string or several, each once, frozen and sorted`, async () => {
    const [b, a] = [unique('b'), unique('a')];
    assert.deepEqual((await request(a)).scope, [a]);
    const lock = await request(new Set([b, a, b]));
    const { scope } = lock;
    assert.deepEqual(scope, [a, b]);
    assert.ok(Object.isFrozen(scope));
    assert.equal(lock.scope, scope, 'it is always the same array');
  });

  test(`${title} step 1: what is neither a string nor a sequence is converted`, async () => {
    const scopeOf = async (scope) => (await request(scope)).scope;
    assert.deepEqual(await scopeOf(5), ['5']);
    assert.deepEqual(await scopeOf(null), ['null']);
    assert.deepEqual(await scopeOf(undefined), ['undefined']);
    assert.deepEqual(await scopeOf({ toString: () => 'converted' }), ['converted']);
    assert.deepEqual(await scopeOf({ [Symbol.iterator]: null, toString: () => 'no method' }), ['no method']);
    assert.deepEqual(await scopeOf([5, { toString: () => 'in it' }]), ['5', 'in it']);
    assert.deepEqual(await scopeOf(new String('ba')), ['a', 'b'], 'an object that can be iterated is a sequence');
    let read = 0;
    const once = {
      get [Symbol.iterator]() {
        read += 1;
        return () => ['read'].values();
      },
    };
    assert.deepEqual([await scopeOf(once), read], [['read'], 1]);
  });

  test(`${title} step 1: what cannot be converted rejects, with what was thrown`, async () => {
    await rejectsType(request(Symbol('name')));
    await rejectsType(request([Symbol('name')]));
    await rejectsType(request({ [Symbol.iterator]: 1 }));
    const thrown = new Error('from the iterator');
    const failing = {
      get [Symbol.iterator]() {
        throw thrown;
      },
    };
    assert.equal(await rejection(request(failing)), thrown);
  });

  test(`${title} step 2: an empty scope is a TypeError`, async () => {
    await rejectsType(request([]));
    await rejectsType(request(new Set()));
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

  test(`${title}: waitUntil takes what Web IDL takes for a promise, and never throws`, async () => {
    const lock = await request(unique());
    const thenable = deferred();
    const released = lock.waitUntil({ then: (...both) => thenable.promise.then(...both) });
    await rejectsType(lock.waitUntil());
    await rejectsType(lock.waitUntil.call({}, Promise.resolve()));
    await turn();
    assert.equal(await available(lock.scope[0]), false, 'it waits for the thenable');
    thenable.resolve();
    await released;
  });

  test(`${title}: a lock that is broken before anybody has asked for released ends nothing else`, async () => {
    const name = unique();
    const lock = await request(name);
    await breaks['force-released'](name);
    await turn();
    await lock.released.catch((error) => assert.equal(error.cause, 'stolen'));
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

test('Flag and Lock are interfaces with these names, of which instances are granted, not made', async () => {
  const [flag, lock] = [await requestFlag(unique(), 'shared'), await requestLock(unique())];
  assert.deepEqual([flag instanceof Flag, flag instanceof Lock], [true, false]);
  assert.deepEqual([lock instanceof Lock, lock instanceof Flag, lock instanceof DraftLock], [true, false, false]);
  assert.deepEqual([Flag.name, Flag.length, Lock.name, Lock.length], ['Flag', 0, 'Lock', 0]);
  assert.deepEqual([String(flag), String(lock)], ['[object Flag]', '[object Lock]']);
  for (const Interface of [Flag, Lock, ExplicitLock]) {
    assert.throws(() => new Interface(), TypeError);
    for (const member of ['scope', 'mode', 'released', 'waitUntil']) assert.ok(member in Interface.prototype, member);
    assert.throws(() => Interface.prototype.scope, TypeError);
  }
  const explicit = await requestExplicitLock(unique());
  assert.ok(explicit instanceof ExplicitLock && explicit instanceof Lock);
  explicit.release();
});

test('a lock of any form has a token and a signal', async () => {
  const explicit = await requestExplicitLock(unique());
  const forms = [explicit, await requestLock(unique()), await requestFlag(unique(), 'exclusive')];
  await requestScopedLock(unique(), (lock) => void forms.push(lock));
  explicit.release();
  for (const { token, signal } of forms) {
    assert.equal(typeof token, 'bigint');
    assert.ok(signal instanceof AbortSignal);
  }
});

const forms = {
  requestFlag: (scope, options) => requestFlag(scope, 'exclusive', options),
  requestLock,
  requestExplicitLock,
  requestScopedLock: (scope, options) => requestScopedLock(scope, (lock) => lock, options),
};

for (const [form, request] of Object.entries(forms)) {
  test(`${form}(): options that are null or undefined are the defaults, other primitives are a TypeError`, async () => {
    for (const options of [null, undefined, {}]) {
      const lock = await request(unique(), options);
      assert.equal(lock.mode, 'exclusive');
      lock.release?.();
    }
    for (const options of [1, 'shared', true, 10n, Symbol('options')]) await rejectsType(request(unique(), options));
  });

  test(`${form}(): a function where options go is a TypeError that names the form wanted`, async () => {
    const { message } = await rejectsType(request(unique(), never));
    assert.ok(message.includes('requestScopedLock(scope, callback, options)'), message);
  });

  test(`${form}(): what an option throws is a rejection`, async () => {
    const members = form === 'requestFlag' ? ['timeout'] : ['ifAvailable', 'mode', 'signal'];
    for (const member of members) {
      const thrown = new Error(member);
      const options = {
        get [member]() {
          throw thrown;
        },
      };
      assert.equal(await rejection(request(unique(), options)), thrown);
    }
  });
}

test('the forms take the arguments that they need, and reject without them', async () => {
  await rejectsType(requestLock());
  await rejectsType(requestExplicitLock());
  await rejectsType(requestFlag());
  await rejectsType(requestFlag(unique()));
  await rejectsType(requestScopedLock(unique()));
  const { message } = await rejectsType(requestScopedLock(unique(), { mode: 'shared' }, never));
  assert.ok(message.includes('requestScopedLock(scope, callback, options)'), message);
});

test('options are read in the order of their names, each once, after the scope', async () => {
  const seen = [];
  const scope = { toString: () => (seen.push('scope'), unique()) };
  const options = new Proxy({}, { get: (_, member) => void seen.push(member) });
  await requestLock(scope, options);
  assert.deepEqual(seen, ['scope', 'ifAvailable', 'mode', 'signal']);
});

for (const form of ['requestLock', 'requestExplicitLock', 'requestScopedLock']) {
  const request = form === 'requestScopedLock' ? (...args) => requestScopedLock(args[0], never, args[1]) : forms[form];

  for (const when of ['in the turn of the request', 'in a microtask after it']) {
    test(`${form}(): an abort ${when} rejects, and the lock is free`, async () => {
      const names = [unique('a'), unique('b')];
      const controller = new AbortController();
      const rejected = rejection(request(names, { signal: controller.signal }));
      if (when !== 'in the turn of the request') await undefined;
      controller.abort('aborted');
      assert.equal(await rejected, 'aborted');
      assert.deepEqual([await available(names[0]), await available(names[1])], [true, true]);
    });
  }

  test(`${form}(): a signal that is aborted already rejects with its reason`, async () => {
    assert.equal(await rejection(request(unique(), { signal: AbortSignal.abort('before') })), 'before');
  });
}

test('requestFlag(): a timeout is converted to a number, and is none of NaN and less than 0', async () => {
  const holder = await hold(unique());
  for (const timeout of ['1', null, { valueOf: () => 1 }]) {
    await rejectsDOM(requestFlag(holder.lock.name, 'exclusive', { timeout }), 'TimeoutError');
  }
  for (const timeout of [NaN, 'soon', -1, {}, 1n, Symbol('1')]) {
    await rejectsType(requestFlag(unique(), 'exclusive', { timeout }));
  }
});

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
  assert.equal(lock.release(), true);
  await lock.released;
  assert.equal(lock.release(), false);
  assert.equal(await available(name), true);
});

test('requestExplicitLock(): release() is seen by an ifAvailable in the same turn', async () => {
  const name = unique();
  const lock = await requestExplicitLock(name);
  lock.release();
  const free = available(name);
  assert.equal(await free, true);
});

test('requestExplicitLock(): what waitUntil was given outlasts release()', async () => {
  const name = unique();
  const gate = deferred();
  const lock = await requestExplicitLock(name);
  lock.waitUntil(gate.promise);
  assert.deepEqual([lock.release(), lock.release()], [true, false]);
  assert.equal(await available(name), false);
  gate.resolve();
  assert.equal(await lock.released, undefined);
  assert.equal(await available(name), true);
});

for (const [how, breakLock] of Object.entries(breaks)) {
  test(`requestExplicitLock(): signal and the next use tell that it was ${how}, and no promise rejects`, async () => {
    const name = unique();
    const [unused, lock] = [await requestExplicitLock(unique()), await requestExplicitLock(name)];
    await Promise.all([breakLock(name), breakLock(unused.scope[0])]);
    // What nobody handles is told in a later turn, and fails the test.
    for (let i = 0; i < 3; i++) await turn();
    assert.deepEqual([lock.signal.aborted, lock.signal.reason.cause], [true, 'stolen']);
    assert.equal(lock.release(), false);
    const { cause } = await rejectsType(lock.waitUntil(Promise.resolve()));
    assert.equal(cause, lock.signal.reason);
    assert.equal(await rejection(lock.released), lock.signal.reason, 'who asks is told');
    assert.equal(await available(name), true);
  });
}

test('requestExplicitLock(): that nobody handles released is no mistake', async () => {
  const lock = await requestExplicitLock(unique());
  void lock.released;
  await breaks['force-released'](lock.scope[0]);
  for (let i = 0; i < 3; i++) await turn();
  assert.equal(lock.signal.aborted, true);
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

test('requestScopedLock(): the callback has a Lock with its scope, which ends with the callback alone', async () => {
  const names = [unique('b'), unique('a')];
  const lock = await requestScopedLock(names, (lock) => lock, { mode: 'shared' });
  assert.ok(lock instanceof DraftLock && !(lock instanceof AcquiredLock));
  assert.deepEqual([lock.mode, lock.scope], ['shared', [...names].sort()]);
  assert.equal(lock.scope, lock.scope);
  assert.equal('release' in lock, false);
});

test('requestScopedLock(): ifAvailable calls back with null rather than wait', async () => {
  const holder = await hold(unique());
  const result = await requestScopedLock([holder.lock.name], (lock) => [lock], { ifAvailable: true });
  assert.deepEqual(result, [null]);
});

test('requestScopedLock(): is rejected when its lock is stolen', async () => {
  const name = unique();
  const gate = deferred();
  const entered = deferred();
  const preempted = requestScopedLock(name, () => (entered.resolve(), gate.promise));
  const rejected = rejectsDOM(preempted, 'AbortError');
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
  assert.equal(await forceRelease(name), undefined);
  await Promise.all(broken);
  assert.equal(await next, 'exclusive');
  assert.deepEqual(await modes(name), [[], []]);
  await forceRelease('nobody holds it');
  assert.throws(() => forceRelease(), TypeError);
  assert.throws(() => forceRelease(Symbol('name')), TypeError);
});

testInProcess('forceRelease(): of the manager of a process returns nothing, as the proto-spec has it', async () => {
  const holder = await hold(unique());
  const broken = rejectsDOM(holder.released, 'AbortError');
  assert.equal(locks.forceRelease(holder.lock.name), undefined);
  assert.equal(await available(holder.lock.name), true);
  await broken;
});

test('proposals() takes a LockManager of this package, and nothing else', () => {
  const fakes = [undefined, null, {}, LockManager.prototype, Object.create(locks), new Proxy(locks, {}), never];
  for (const fake of fakes) assert.throws(() => proposals(fake), TypeError);
});

test('without lockkeeper/install, the plain exports are those of the process', async () => {
  const name = unique();
  const lock = await plain.requestExplicitLock(name);
  const ifAvailable = true;
  assert.equal(await proposals(inProcess).requestLock(name, { ifAvailable }), null);
  assert.equal(await inProcess.request(name, { ifAvailable }, (lock) => lock), null);
  assert.equal(plain.forceRelease(name), undefined);
  assert.equal(lock.signal.aborted, true);
  assert.equal(await inProcess.request(name, () => 'free'), 'free');
});

/** Replaces all members of objects with what throws. Returns how to undo it. */
function sabotage(targets) {
  const undo = [];
  const replaced = () => assert.fail('what user code has replaced was called');
  for (const [object, members] of targets) {
    for (const member of members) {
      const before = Object.getOwnPropertyDescriptor(object, member);
      const restore = before
        ? () => Object.defineProperty(object, member, before)
        : () => Reflect.deleteProperty(object, member);
      undo.push(restore);
      const accessor = before && 'get' in before ? { get: replaced } : { value: replaced, writable: true };
      Object.defineProperty(object, member, { ...accessor, configurable: true });
    }
  }
  return () => undo.forEach((restore) => restore());
}

test('nothing that user code puts on a lock, or on its interface, is on the path of a release', async () => {
  const names = [unique(), unique(), unique(), unique(), unique()];
  const [gate, both] = [deferred(), [deferred(), deferred()]];
  const requested = locks.request(names[0], (lock) => (both[0].resolve(lock), gate.promise));
  const scoped = requestScopedLock(names[1], (lock) => (both[1].resolve(lock), gate.promise));
  const acquired = await locks.acquire(names[2]);
  const explicit = await requestExplicitLock(names[3]);
  const granted = await Promise.all(both.map(({ promise }) => promise));
  const auto = await requestLock(names[4]);
  const released = auto.waitUntil(gate.promise);
  const { release: releaseExplicit } = ExplicitLock.prototype;
  const { release: releaseAcquired } = AcquiredLock.prototype;
  const members = ['release', 'released', 'waitUntil', 'signal', 'scope', 'mode', 'name', 'token', 'close', 'request'];
  members.push('abort', 'acquire', 'query');
  const prototypes = [AcquiredLock, DraftLock, ExplicitLock, Flag, Lock, Object.getPrototypeOf(Lock), LockManager];
  const objects = [...granted, acquired, explicit, auto, locks, ...prototypes.map(({ prototype }) => prototype)];
  const undo = sabotage(objects.map((object) => [object, members]));
  cleanUp(undo);
  gate.resolve('value');
  assert.equal(releaseExplicit.call(explicit), true);
  assert.equal(await releaseAcquired.call(acquired), true);
  assert.deepEqual([await requested, await scoped, await released], ['value', 'value', undefined]);
  undo();
  for (const name of names) assert.equal(await available(name), true);
});

testInProcess('nor is what user code replaces of the language and the platform', async () => {
  const names = [unique(), unique(), unique(), unique(), unique()];
  const gate = deferred();
  const entered = [deferred(), deferred()];
  const controller = new AbortController();
  const { signal } = controller;
  const all = [
    locks.request(names[0], { signal }, () => (entered[0].resolve(), gate.promise)),
    requestScopedLock(names[1], () => (entered[1].resolve(), gate.promise), { signal }),
  ];
  const acquired = await locks.acquire(names[2], { signal, timeout: 60_000 });
  const explicit = await requestExplicitLock(names[3], { signal });
  await Promise.all(entered.map(({ promise }) => promise));
  const served = deferred();
  const { signal: other } = new AbortController();
  // Its promise follows another one, by a `then` that is not the language's meanwhile. Its lock
  // does not.
  locks.request(names[3], { signal: other }, () => (served.resolve(), 'value')).catch(() => {});
  const auto = await requestLock(names[4]);
  auto.waitUntil(gate.promise);
  const undo = sabotage([
    [Promise, ['resolve', 'reject', 'all', 'race', 'withResolvers']],
    [Promise.prototype, ['then', 'catch', 'finally']],
    [globalThis, ['Promise', 'queueMicrotask', 'setImmediate', 'setTimeout', 'clearTimeout']],
    [EventTarget.prototype, ['addEventListener', 'removeEventListener', 'dispatchEvent']],
    ...[signal, other].map((signal) => [signal, ['addEventListener', 'removeEventListener', 'aborted', 'reason']]),
  ]);
  try {
    gate.resolve();
    assert.equal(explicit.release(), true);
    assert.equal(await acquired.release(), true);
    // It is released by a microtask.
    await requestLock(names[2]);
    await served.promise;
    await microtasks();
  } finally {
    undo();
  }
  await Promise.all(all);
  for (const name of names) assert.equal(await available(name), true);
});

