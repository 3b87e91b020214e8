/**
 * request() from the call to the release: §3.2.1 and §4.1 to §4.4, for one thread and one mode.
 *
 * WPT: acquire (order of "holding" and "returned"; throws, synchronous or not; a thrown thenable),
 * held (all of it), mode-exclusive (distinct resources).
 */

import { AsyncLocalStorage } from 'node:async_hooks';
import { assert, deferred, test, turn } from './harness.js';
import {
  available,
  daemon,
  hold,
  locks,
  microtasks,
  modes,
  rejection,
  rejectsDOM,
  request,
  testInProcess,
  unique,
} from './helpers.js';

test('§4.4 step 2.14: the callback runs in a later task, not in request() or its microtasks', async () => {
  let ran = false;
  const promise = locks.request(unique(), () => (ran = true));
  assert.equal(ran, false, 'inside request()');
  await microtasks();
  assert.equal(ran, false, 'in the same task');
  await promise;
  assert.equal(ran, true);
});

test('§4.1 step 3.5.1: a callback that is told null runs in a later task too', async () => {
  const { lock } = await hold(unique());
  let ran = false;
  const promise = locks.request(lock.name, { ifAvailable: true }, () => (ran = true));
  assert.equal(ran, false, 'inside request()');
  await microtasks();
  assert.equal(ran, false, 'in the same task');
  await promise;
  assert.equal(ran, true);
});

testInProcess('§4.4 step 2.14: the callback of a request that waited runs in a task of its own', async () => {
  const name = unique();
  const { release } = await hold(name);
  const second = request(name);
  release();
  await microtasks();
  assert.deepEqual(await modes(name), [['exclusive'], []], 'the lock has been passed on');
  assert.equal(second.ran, false, 'in the task of the release');
  await turn();
  await turn();
  assert.equal(second.ran, true);
});

test('§4.4 step 2.14: a checkpoint of microtasks comes between two callbacks', async () => {
  const order = [];
  const run = (label) => () => {
    order.push(label);
    Promise.resolve().then(() => order.push(`microtask of ${label}`));
  };
  await Promise.all([locks.request(unique(), run('one')), locks.request(unique(), run('two'))]);
  assert.deepEqual(order, ['one', 'microtask of one', 'two', 'microtask of two']);
});

test('§4.4 step 2.14: also between the callbacks of requests that one release lets in', async () => {
  const name = unique();
  const holder = await hold(name);
  const order = [];
  const run = (label) => () => {
    order.push(label);
    Promise.resolve().then(() => order.push(`microtask of ${label}`));
  };
  const all = ['one', 'two', 'three'].map((label) => locks.request(name, { mode: 'shared' }, run(label)));
  holder.release();
  await Promise.all(all);
  const expected = ['one', 'two', 'three'].flatMap((label) => [label, `microtask of ${label}`]);
  assert.deepEqual(order, expected);
});

test('§4.4 step 2.14.2: the callback gets the Lock as its only argument, and no this', async () => {
  let seen;
  const callback = function (...args) {
    seen = [this, args.length, args[0]?.mode];
  };
  await locks.request(unique(), callback);
  assert.deepEqual(seen, [undefined, 1, 'exclusive']);
});

test('§4.1 step 3.5.1.1: the callback is invoked with null as its only argument, and no this', async () => {
  const { lock } = await hold(unique());
  let seen;
  const callback = function (...args) {
    seen = [this, ...args];
  };
  await locks.request(lock.name, { ifAvailable: true }, callback);
  assert.deepEqual(seen, [undefined, null]);
});

test('§2.4: the promise resolves to what the callback returns', async () => {
  const object = { a: 1 };
  for (const value of [123, 'text', null, undefined, object, Symbol.iterator, 10n, Promise]) {
    assert.equal(await locks.request(unique(), () => value), value);
    assert.equal(await locks.request(unique(), async () => value), value);
    assert.equal(await locks.request(unique(), () => Promise.resolve(value)), value);
  }
});

test('§2.4: the lock is held until the promise that the callback returns fulfils', async () => {
  const name = unique();
  const order = [];
  const { release, released } = await hold(name);
  const second = locks.request(name, () => order.push('second granted'));
  await turn();
  await turn();
  assert.deepEqual(await modes(name), [['exclusive'], ['exclusive']]);
  order.push('first resolved');
  release('value');
  assert.equal(await released, 'value');
  await second;
  assert.deepEqual(order, ['first resolved', 'second granted']);
});

test('§2.4: the lock is held until the promise that the callback returns rejects', async () => {
  const name = unique();
  const { fail, released } = await hold(name);
  const second = request(name);
  await turn();
  assert.equal(second.ran, false);
  const reason = new Error('on purpose');
  fail(reason);
  assert.equal(await rejection(released), reason);
  second.release();
  await second.released;
  assert.deepEqual(await modes(name), [[], []]);
});

test('§2.4: a thenable is awaited before the lock is released', async () => {
  const name = unique();
  let finish;
  const called = deferred();
  const thenable = {
    then(resolve) {
      finish = resolve;
      called.resolve();
    },
  };
  const promise = locks.request(name, () => thenable);
  await called.promise;
  assert.equal(await available(name), false, 'the lock is held while the thenable is pending');
  const second = request(name);
  await turn();
  assert.equal(second.ran, false);
  finish('value');
  assert.equal(await promise, 'value');
  assert.deepEqual(await modes(name), [['exclusive'], []]);
});

test('Web IDL, promise types: `then` is read once before it is called, and its receiver is the value', async () => {
  let reads = 0;
  const promise = Promise.resolve('value');
  Object.defineProperty(promise, 'then', { get: () => (reads++, Promise.prototype.then) });
  assert.equal(await locks.request(unique(), () => promise), 'value');
  assert.equal(reads, 1);

  const thenable = {
    get then() {
      reads++;
      return function (resolve) {
        resolve(this === thenable);
      };
    },
  };
  assert.equal(await locks.request(unique(), () => thenable), true);
  assert.equal(reads, 2);
});

test('Web IDL, promise types: what only looks like a promise rejects, and releases', async () => {
  const name = unique();
  const fake = Object.create(Promise.prototype);
  assert.equal((await rejection(locks.request(name, () => fake))).name, 'TypeError');
  const error = new Error('then');
  const throwing = { get then() { throw error; } };
  assert.equal(await rejection(locks.request(name, () => throwing)), error);
  const species = Object.assign(Promise.resolve('value'), { constructor: { [Symbol.species]: class {} } });
  assert.equal((await rejection(locks.request(name, () => species))).name, 'TypeError');
  assert.equal(await locks.request(name, () => ({ then: 'no method' })).then((value) => value.then), 'no method');
  assert.equal(await available(name), true);
});

test('§2.4: so is a function with a then, a subclass of Promise, a thenable of a thenable', async () => {
  class Mine extends Promise {}
  const inner = deferred();
  const results = [
    Object.assign(() => {}, { then: (resolve) => inner.promise.then(resolve) }),
    Mine.resolve(inner.promise),
    { then: (resolve) => resolve({ then: (resolve) => inner.promise.then(resolve) }) },
  ];
  const names = results.map(() => unique());
  const promises = results.map((result, i) => locks.request(names[i], () => result));
  for (const name of names) assert.equal(await available(name), false);
  inner.resolve('inner');
  assert.deepEqual(await Promise.all(promises), ['inner', 'inner', 'inner']);
});

test('Web IDL, promises: the then of the result is read once, and called in a microtask', async () => {
  const order = [];
  const thenable = {
    get then() {
      order.push('read');
      return (resolve) => {
        order.push('called');
        resolve();
      };
    },
  };
  await locks.request(unique(), () => {
    queueMicrotask(() => order.push('microtask'));
    return thenable;
  });
  assert.deepEqual(order, ['read', 'microtask', 'called']);
});

test('Web IDL, promises: a then that throws rejects, and releases', async () => {
  const name = unique();
  const thrown = new Error('from then');
  const fail = () => {
    throw thrown;
  };
  assert.equal(await rejection(locks.request(name, () => ({ then: fail }))), thrown);
  const getter = Object.defineProperty({}, 'then', { get: fail });
  assert.equal(await rejection(locks.request(name, () => getter)), thrown);
  assert.equal(await available(name), true);
});

test('Web IDL, promises: the then of a Promise that has its own is read once, and called', async () => {
  let read = 0;
  const own = Object.defineProperty(Promise.resolve('inherited'), 'then', {
    get() {
      read += 1;
      return (resolve) => resolve('own');
    },
  });
  assert.equal(await locks.request(unique(), () => own), 'own');
  assert.equal(read, 1);
});

test('Web IDL, promises: what only looks like a Promise rejects with a TypeError, and releases', async () => {
  const name = unique();
  const fakes = [Object.create(Promise.prototype), new Proxy(Promise.resolve(), {}), Promise.prototype];
  for (const fake of fakes) {
    const error = await rejection(locks.request(name, () => fake));
    assert.ok(error instanceof TypeError, String(error));
    assert.deepEqual(await modes(name), [[], []], 'the lock has been released');
  }
});

test('Web IDL, callback functions: what the callback throws rejects the promise, and releases', async () => {
  const name = unique();
  for (const thrown of [new Error('on purpose'), { name: 'test' }, undefined, 1]) {
    const synchronous = locks.request(name, () => {
      throw thrown;
    });
    assert.equal(await rejection(synchronous), thrown);
    assert.deepEqual(await modes(name), [[], []], 'the lock has been released');
    const asynchronous = locks.request(name, async () => {
      throw thrown;
    });
    assert.equal(await rejection(asynchronous), thrown);
    assert.deepEqual(await modes(name), [[], []], 'the lock has been released');
  }
});

test('Web IDL, callback functions: a throw lets the next request in', async () => {
  const name = unique();
  const fail = () => {
    throw new Error('on purpose');
  };
  const first = rejection(locks.request(name, fail));
  const second = rejection(locks.request(name, fail));
  const third = locks.request(name, () => 'third');
  assert.equal((await first).message, 'on purpose');
  assert.equal((await second).message, 'on purpose');
  assert.equal(await third, 'third');
});

test('Web IDL, callback functions: a thenable that is thrown is a reason, not a promise', async () => {
  let called = false;
  const thenable = { then: () => (called = true) };
  const callbacks = [
    () => {
      throw thenable;
    },
    async () => {
      throw thenable;
    },
    () => Promise.reject(thenable),
  ];
  for (const callback of callbacks) {
    // Not `rejection()`: a promise for a thenable would call it.
    const [reason] = await locks.request(unique(), callback).then(assert.fail, (reason) => [reason]);
    assert.equal(reason, thenable);
    await turn();
    assert.equal(called, false, 'its then was called');
  }
});

test('§2.4: the promise settles after the promise that the callback returned', async () => {
  const order = [];
  const { promise: waiting, resolve: release } = deferred();
  const released = locks.request(unique(), () => waiting).then(() => order.push('released'));
  waiting.then(() => order.push('waiting'));
  release();
  await released;
  assert.deepEqual(order, ['waiting', 'released']);
});

test('§2.4: the promise settles after the release, before the next callback of the thread', async () => {
  const name = unique();
  const order = [];
  const { release, released } = await hold(name);
  const second = request(name, {}, () => order.push('second callback'));
  const seen = released.then(() => {
    order.push('first settled');
    return modes(name);
  });
  release();
  // Of the two that were asked for, one holds the lock: the other has been released.
  assert.deepEqual(await seen, [['exclusive'], []]);
  second.release();
  await second.released;
  assert.deepEqual(order, ['first settled', 'second callback']);
});

testInProcess('§2.4: a rejection, too, is told after the release and before the next callback', async () => {
  const name = unique();
  const order = [];
  const first = locks.request(name, async () => {
    throw new Error('on purpose');
  });
  const second = locks.request(name, () => order.push('second callback'));
  const seen = first.catch(() => {
    order.push('first settled');
    return modes(name);
  });
  assert.deepEqual(await seen, [['exclusive'], []]);
  await second;
  assert.deepEqual(order, ['first settled', 'second callback']);
});

test('§2.4: a chain of awaited requests finds the lock free each time', async () => {
  const name = unique();
  for (let i = 0; i < 200; i++) {
    assert.equal(await locks.request(name, { ifAvailable: true }, (lock) => lock !== null), true);
  }
});

test('§4.2: a lock is available once the release before it has been processed', async () => {
  const name = unique();
  await hold(unique());
  await locks.request(name, async () => {});
  assert.equal(await available(name), true);
});

test('§2.5: a held lock keeps its own thread out too', async () => {
  const name = unique();
  await locks.request(name, async () => {
    assert.equal(await available(name), false);
    assert.equal(await available(name, 'shared'), false);
  });
});

test('§2.5: requests for one name are granted in the order in which they were made', async () => {
  const name = unique();
  const order = [];
  const push = (n) => async () => {
    await turn();
    order.push(n);
  };
  await Promise.all([1, 2, 3].map((n) => locks.request(name, push(n))));
  assert.deepEqual(order, [1, 2, 3]);
});

test('§2.5: requests for other names do not wait', async () => {
  const [a, b] = [unique(), unique()];
  const order = [];
  let inner;
  await locks.request(a, async () => {
    inner = Promise.all([
      locks.request(a, () => order.push('a')),
      locks.request(b, () => order.push('b')),
    ]);
    await locks.request(b, () => {});
  });
  await inner;
  assert.deepEqual(order, ['b', 'a']);
});

test('§3.2.1 step 6: steal and ifAvailable together are refused with NotSupportedError', async () => {
  const options = { steal: true, ifAvailable: true };
  await rejectsDOM(locks.request(unique(), options, assert.fail), 'NotSupportedError');
});

test('§3.2.1 step 7: steal of a shared lock is refused with NotSupportedError', async () => {
  const options = { steal: true, mode: 'shared' };
  await rejectsDOM(locks.request(unique(), options, assert.fail), 'NotSupportedError');
});

test('§3.2.1 step 8: a signal with steal or ifAvailable is refused with NotSupportedError', async () => {
  const { signal } = new AbortController();
  await rejectsDOM(locks.request(unique(), { signal, steal: true }, assert.fail), 'NotSupportedError');
  await rejectsDOM(locks.request(unique(), { signal, ifAvailable: true }, assert.fail), 'NotSupportedError');
});

test('§3.2.1 steps 5 to 9: the steps are taken in their order', async () => {
  const signal = AbortSignal.abort('aborted');
  const all = { signal, steal: true, ifAvailable: true, mode: 'shared' };
  const texts = [];
  for (const [name, options] of [
    ['-', all],
    [unique(), { steal: true, ifAvailable: true, mode: 'shared', signal }],
    [unique(), { steal: true, mode: 'shared', signal }],
    [unique(), { steal: true, signal }],
  ]) {
    texts.push((await rejectsDOM(locks.request(name, options, assert.fail), 'NotSupportedError')).message);
  }
  assert.equal(new Set(texts).size, 4, `each step has a message of its own: ${texts.join('; ')}`);
  assert.equal(await rejection(locks.request(unique(), { signal }, assert.fail)), 'aborted');
});

test('§3.2.1 steps 5 to 9: a refused request leaves no trace', async () => {
  const name = unique();
  await hold(name);
  const before = await locks.query();
  await rejection(locks.request(name, { steal: true, ifAvailable: true }, assert.fail));
  await rejection(locks.request(name, { steal: true, mode: 'shared' }, assert.fail));
  await rejection(locks.request(name, { signal: AbortSignal.abort() }, assert.fail));
  assert.deepEqual(await locks.query(), before);
});

// More than a stack has room for; against a daemon, where each is a way to it and back, as many as
// a busy machine can do.
for (const count of [1_000, daemon ? 10_000 : 100_000]) {
  test(`§4.4: ${count} requests behind one lock are granted one after another, in their order`, async () => {
    const name = unique();
    const { release } = await hold(name);
    let inside = 0;
    let most = 0;
    const order = [];
    const all = Array.from({ length: count }, (_, i) =>
      locks.request(name, async () => {
        inside += 1;
        most = Math.max(most, inside);
        order.push(i);
        await undefined;
        inside -= 1;
        return i;
      }),
    );
    assert.equal((await modes(name))[1].length, count);
    release();
    const values = await Promise.all(all);
    assert.ok(values.every((value, i) => value === i) && order.every((value, i) => value === i));
    assert.deepEqual([order.length, most], [count, 1]);
  });
}

test('§4.4: 10,000 names at once are all granted, and all released', async () => {
  const names = Array.from({ length: 10_000 }, () => unique());
  const { promise: all, resolve: release } = deferred();
  let granted = 0;
  const done = names.map((name) =>
    locks.request(name, (lock) => {
      assert.equal(lock.name, name);
      if ((granted += 1) === names.length) release();
      return all;
    }),
  );
  await Promise.all(done);
  assert.equal(granted, names.length);
});

test('the asynchronous context of a callback is that of its request()', async () => {
  const storage = new AsyncLocalStorage();
  const name = unique();
  const seen = [];
  const look = async (label) => {
    seen.push(`${label}: ${storage.getStore()}`);
    await turn();
    seen.push(`${label}, later: ${storage.getStore()}`);
  };
  const { release } = await storage.run('holder', () => hold(name));
  const all = [
    storage.run('A', () => locks.request(name, () => look('waited'))),
    storage.run('B', () => locks.request(name, { ifAvailable: true }, () => look('refused'))),
    storage.run('C', () => locks.request(unique(), () => look('at once'))),
    storage.run('D', () => locks.request(name, () => look('waited behind another'))),
    locks.request(name, () => look('none')),
  ];
  await all[1];
  await all[2];
  storage.run('releaser', () => release());
  await Promise.all(all);
  const labels = { waited: 'A', refused: 'B', 'at once': 'C', 'waited behind another': 'D', none: undefined };
  const expected = Object.entries(labels).flatMap(([label, store]) => [
    `${label}: ${store}`,
    `${label}, later: ${store}`,
  ]);
  assert.deepEqual(seen.sort(), expected.sort());
});

test('the asynchronous context of who awaits a request is its own, too', async () => {
  const storage = new AsyncLocalStorage();
  const name = unique();
  const { release } = await hold(name);
  const after = storage.run('mine', async () => {
    await locks.request(name, () => {});
    return storage.getStore();
  });
  storage.run('releaser', () => release());
  assert.equal(await after, 'mine');
});

test('a lock can be requested in the callback of another, and outlive it', async () => {
  const [outer, inner] = [unique(), unique()];
  const { promise, resolve } = deferred();
  let second;
  await locks.request(outer, async () => {
    second = locks.request(inner, () => promise);
    await turn();
  });
  assert.deepEqual([await modes(outer), await modes(inner)], [[[], []], [['exclusive'], []]]);
  resolve();
  await second;
});
