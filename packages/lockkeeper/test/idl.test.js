/**
 * The interfaces as Web IDL has them: §3.2 (LockManager), §3.3 (Lock) and the IDL index, checked by
 * hand.
 *
 * WPT: acquire (arguments, enum, "callback must be a function"), signal (what is no AbortSignal),
 * lock-attributes, query (own properties of the dictionaries), idlharness (all but `navigator`: see
 * package.test.js).
 */

import { Lock, LockManager } from 'lockkeeper';
import { assert, test } from './harness.js';
import { hold, locks, microtasks, modes, rejection, rejectsType, request, unique } from './helpers.js';

const never = () => assert.fail('the callback ran');
const descriptor = Object.getOwnPropertyDescriptor;

for (const [name, Interface] of Object.entries({ LockManager, Lock })) {
  test(`Web IDL, interface objects: ${name} is a function with that name and length 0`, () => {
    assert.equal(typeof Interface, 'function');
    assert.equal(Object.getPrototypeOf(Interface), Function.prototype);
    const fixed = { writable: false, enumerable: false, configurable: true };
    assert.deepEqual(descriptor(Interface, 'name'), { value: name, ...fixed });
    assert.deepEqual(descriptor(Interface, 'length'), { value: 0, ...fixed });
    const own = Reflect.ownKeys(Interface).sort();
    assert.deepEqual(own, ['length', 'name', 'prototype'], 'it has nothing else');
  });

  test(`Web IDL, interface prototype objects: the interface prototype object of ${name}`, () => {
    assert.deepEqual(descriptor(Interface, 'prototype'), {
      value: Interface.prototype,
      writable: false,
      enumerable: false,
      configurable: false,
    });
    assert.equal(Object.getPrototypeOf(Interface.prototype), Object.prototype);
    assert.deepEqual(descriptor(Interface.prototype, 'constructor'), {
      value: Interface,
      writable: true,
      enumerable: false,
      configurable: true,
    });
    assert.deepEqual(descriptor(Interface.prototype, Symbol.toStringTag), {
      value: name,
      writable: false,
      enumerable: false,
      configurable: true,
    });
  });

  test(`Web IDL, interface objects: ${name} has no constructor, so to construct it is a TypeError`, () => {
    assert.throws(() => new Interface(), TypeError);
    assert.throws(() => new Interface('a', 'b'), TypeError);
    assert.throws(() => Interface(), TypeError);
    assert.throws(() => Interface.call(Object.create(Interface.prototype)), TypeError);
    assert.throws(() => Reflect.construct(Interface, [], Object), TypeError);
    assert.throws(() => new (class extends Interface {})(), TypeError);
  });
}

for (const [operation, length] of Object.entries({ request: 2, query: 0, forceRelease: 1 })) {
  test(`Web IDL, operations: ${operation} is a regular operation of length ${length}`, () => {
    const { value, ...flags } = descriptor(LockManager.prototype, operation);
    assert.deepEqual(flags, { writable: true, enumerable: true, configurable: true });
    assert.equal(typeof value, 'function');
    const fixed = { writable: false, enumerable: false, configurable: true };
    assert.deepEqual(descriptor(value, 'name'), { value: operation, ...fixed });
    assert.deepEqual(descriptor(value, 'length'), { value: length, ...fixed });
    assert.equal('prototype' in value, false);
    assert.throws(() => new value(), TypeError);
  });
}

for (const attribute of ['name', 'mode']) {
  test(`Web IDL, attributes: Lock's ${attribute} is a read-only attribute on the prototype`, async () => {
    const { get, ...rest } = descriptor(Lock.prototype, attribute);
    assert.deepEqual(rest, { set: undefined, enumerable: true, configurable: true });
    assert.equal(get.name, `get ${attribute}`);
    assert.equal(get.length, 0);
    const { lock } = await hold(unique());
    assert.throws(() => (lock[attribute] = 'other'), TypeError, 'assignment throws in strict mode');
    assert.equal(descriptor(lock, attribute), undefined);
  });

  test(`Web IDL, attributes: the getter of ${attribute} throws a TypeError for what is no Lock`, async () => {
    const { get } = descriptor(Lock.prototype, attribute);
    const fakes = [undefined, null, 1, 'lock', {}, Lock.prototype, Object.create(Lock.prototype), locks];
    for (const fake of fakes) assert.throws(() => get.call(fake), TypeError);
    assert.throws(() => Lock.prototype[attribute], TypeError);
    const { lock } = await hold(unique());
    assert.throws(() => get.call(new Proxy(lock, {})), TypeError);
    assert.throws(() => Object.create(lock)[attribute], TypeError);
  });
}

test('§3.3: the attributes of a lock are what was asked for', async () => {
  const name = unique();
  await locks.request(name, (lock) => assert.deepEqual([lock.name, lock.mode], [name, 'exclusive']));
  const shared = { mode: 'shared' };
  await locks.request(name, shared, (lock) => assert.deepEqual([lock.name, lock.mode], [name, 'shared']));
});

test('§3.3: the attributes of a lock stay when it is released', async () => {
  const name = unique();
  const lock = await locks.request(name, { mode: 'shared' }, (lock) => lock);
  assert.deepEqual([lock.name, lock.mode], [name, 'shared']);
});

test('Web IDL, platform objects: they are instances, and have no properties of their own', async () => {
  const { lock } = await hold(unique());
  assert.ok(lock instanceof Lock && locks instanceof LockManager);
  assert.equal(Object.getPrototypeOf(lock), Lock.prototype);
  assert.equal(Object.getPrototypeOf(locks), LockManager.prototype);
  assert.deepEqual([Reflect.ownKeys(lock), Reflect.ownKeys(locks)], [[], []]);
  assert.equal(Object.prototype.toString.call(lock), '[object Lock]');
  assert.equal(Object.prototype.toString.call(locks), '[object LockManager]');
});

test('§3.2.1: every call makes a new promise and every grant a new Lock', async () => {
  const name = unique();
  const seen = [];
  const promises = [1, 2].map(() => locks.request(name, (lock) => void seen.push(lock)));
  assert.ok(promises.every((promise) => promise.constructor === Promise));
  assert.notEqual(promises[0], promises[1]);
  await Promise.all(promises);
  assert.notEqual(seen[0], seen[1]);
  const snapshots = [locks.query(), locks.query()];
  assert.ok(snapshots.every((promise) => promise.constructor === Promise));
  assert.notEqual(await snapshots[0], await snapshots[1]);
});

test('Web IDL, operations: one that returns a promise rejects, not throws, for a wrong this', async () => {
  const { request, query } = LockManager.prototype;
  const fakes = [undefined, null, 1, {}, LockManager.prototype, Object.create(locks), new Proxy(locks, {})];
  for (const fake of fakes) {
    await rejectsType(request.call(fake, unique(), never));
    await rejectsType(query.call(fake));
  }
  let converted = false;
  const name = { toString: () => ((converted = true), 'a') };
  await rejectsType(request.call({}, name, never));
  assert.equal(converted, false, 'the brand is checked before the arguments are converted');
});

test('Web IDL, operations: forceRelease() is of a LockManager, and has a name that is a DOMString', async () => {
  for (const fake of [undefined, null, 1, {}, LockManager.prototype, Object.create(locks), new Proxy(locks, {})]) {
    assert.throws(() => LockManager.prototype.forceRelease.call(fake, unique()), TypeError);
  }
  assert.throws(() => locks.forceRelease(), TypeError);
  assert.throws(() => locks.forceRelease(Symbol('name')), TypeError);
  const { released, lock } = await hold('12.5');
  const broken = rejection(released);
  await locks.forceRelease(12.5);
  assert.equal((await broken).name, 'AbortError', lock.name);
});

test('Web IDL, overloads: fewer than two arguments are a TypeError, before any conversion', async () => {
  let converted = false;
  const name = { toString: () => ((converted = true), 'a') };
  await rejectsType(locks.request());
  await rejectsType(locks.request(name));
  assert.equal(converted, false);
});

test('Web IDL, overloads: with two arguments the second is the callback, whatever it is', async () => {
  const name = unique();
  const wrong = [undefined, null, 123, 'abc', [], {}, Symbol(), Promise.resolve(), { mode: 'shared' }];
  for (const callback of wrong) {
    await rejectsType(locks.request(name, callback));
  }
  assert.deepEqual(await modes(name), [[], []]);
});

test('Web IDL, overloads: with three arguments or more the third is the callback', async () => {
  const name = unique();
  for (const callback of [undefined, null, 123, 'abc', {}, Symbol()]) {
    await rejectsType(locks.request(name, {}, callback));
    await rejectsType(locks.request(name, never, callback));
  }
  assert.equal(await locks.request(name, {}, () => 'third', never), 'third', 'a fourth is ignored');
});

test('Web IDL, DOMString: the name is converted with ToString', async () => {
  const nameOf = (name) => locks.request(name, (lock) => lock.name);
  const prefix = unique();
  assert.equal(await nameOf({ toString: () => prefix }), prefix);
  const hinted = { toString: () => assert.fail(), [Symbol.toPrimitive]: (hint) => hint };
  assert.equal(await nameOf(hinted), 'string');
  assert.equal(await nameOf(null), 'null');
  assert.equal(await nameOf(undefined), 'undefined');
  assert.equal(await nameOf(12.5), '12.5');
  assert.equal(await nameOf(10n), '10');
  assert.equal(await nameOf(['a', 'b']), 'a,b');
  assert.equal(await nameOf(new String(prefix)), prefix);
});

test('Web IDL, DOMString: a name that cannot be converted rejects, with what was thrown', async () => {
  await rejectsType(locks.request(Symbol('name'), never));
  await rejectsType(locks.request(Object.create(null), never));
  const thrown = new Error('from toString');
  const name = {
    toString() {
      throw thrown;
    },
  };
  assert.equal(await rejection(locks.request(name, never)), thrown);
});

/** Options, a name and a mode that note in which order they are looked at. */
function witness(members) {
  const seen = [];
  const options = new Proxy(members, {
    get(target, member) {
      seen.push(`get ${String(member)}`);
      return target[member];
    },
    has: (_, member) => assert.fail(`has ${String(member)}`),
    ownKeys: () => assert.fail('ownKeys'),
    getOwnPropertyDescriptor: (_, member) => assert.fail(`own ${String(member)}`),
  });
  const string = (label, value) => ({ toString: () => (seen.push(`convert ${label}`), value) });
  return { seen, options, string };
}

test('Web IDL, dictionaries: after the name, the members by their names, each read once', async () => {
  const members = { ifAvailable: 0, steal: '', signal: undefined };
  const { seen, options, string } = witness(members);
  const name = unique();
  members.mode = string('mode', 'shared');
  const callback = (lock) => (seen.push('callback'), lock.mode);
  const mode = await locks.request(string('name', name), options, callback);
  assert.deepEqual(seen, [
    'convert name',
    'get ifAvailable',
    'get mode',
    'convert mode',
    'get signal',
    'get steal',
    'callback',
  ]);
  assert.equal(mode, 'shared');
});

test('Web IDL, overloads: the callback is converted last', async () => {
  const { seen, options, string } = witness({});
  await rejectsType(locks.request(string('name', unique()), options, 'not a function'));
  assert.deepEqual(seen, ['convert name', 'get ifAvailable', 'get mode', 'get signal', 'get steal']);
});

test('Web IDL, dictionaries: a member that cannot be converted ends the conversion', async () => {
  const bad = witness({ mode: 'none' });
  await rejectsType(locks.request(unique(), bad.options, never));
  assert.deepEqual(bad.seen, ['get ifAvailable', 'get mode']);
  const fake = witness({ signal: {} });
  await rejectsType(locks.request(unique(), fake.options, never));
  assert.deepEqual(fake.seen, ['get ifAvailable', 'get mode', 'get signal']);
});

test('Web IDL, dictionaries: all are converted before the steps of request() are taken', async () => {
  await rejectsType(locks.request('-reserved', { mode: 'none' }, never));
  await rejectsType(locks.request('-reserved', {}, 'not a function'));
  await rejectsType(locks.request(unique(), { steal: true, ifAvailable: true, signal: null }, never));
});

test('Web IDL, dictionaries: what a member throws is what request() rejects with', async () => {
  for (const member of ['ifAvailable', 'mode', 'signal', 'steal']) {
    const thrown = new Error(member);
    const options = {
      get [member]() {
        throw thrown;
      },
    };
    assert.equal(await rejection(locks.request(unique(), options, never)), thrown);
  }
});

test('Web IDL, dictionaries: options may be undefined, null or an object, no other primitive', async () => {
  const objects = [{}, [], () => {}, new Date(), Object.create(null), new Boolean(true)];
  for (const options of [undefined, null, ...objects]) {
    assert.equal(await locks.request(unique(), options, (lock) => lock.mode), 'exclusive');
  }
  for (const options of [1, 'shared', true, false, 10n, Symbol('options'), NaN, '']) {
    await rejectsType(locks.request(unique(), options, never));
  }
});

test('Web IDL, dictionaries: members are found on prototypes too, and others are ignored', async () => {
  class Options {
    get mode() {
      return 'shared';
    }
  }
  const others = { timeout: -1, info: Symbol(), deadlock: 'refuse', within: 1 };
  const options = Object.assign(new Options(), others);
  assert.equal(await locks.request(unique(), options, (lock) => lock.mode), 'shared');
});

test('Web IDL, enumerations: a mode that is no LockMode is a TypeError', async () => {
  for (const mode of ['foo', '', 'Shared', 'exclusive ', null, 1, {}, [], Symbol('shared')]) {
    await rejectsType(locks.request(unique(), { mode }, never));
  }
  assert.equal(await locks.request(unique(), { mode: ['shared'] }, (lock) => lock.mode), 'shared');
});

test('§3.2: the default of mode is "exclusive", also for an undefined one', async () => {
  assert.equal(await locks.request(unique(), {}, (lock) => lock.mode), 'exclusive');
  assert.equal(await locks.request(unique(), { mode: undefined }, (lock) => lock.mode), 'exclusive');
});

test('Web IDL, boolean: ifAvailable and steal are converted to booleans', async () => {
  const { released, lock } = await hold(unique());
  for (const ifAvailable of ['false', 1, {}, Symbol()]) {
    assert.equal(await locks.request(lock.name, { ifAvailable }, (lock) => lock), null);
  }
  const name = unique();
  await hold(name, { mode: 'shared' });
  for (const steal of ['', 0, null, NaN, undefined]) {
    const options = { mode: 'shared', steal, ifAvailable: steal };
    await locks.request(name, options, (lock) => assert.notEqual(lock, null));
  }
  const broken = rejection(released);
  await locks.request(lock.name, { steal: 'no' }, () => {});
  assert.equal((await broken).name, 'AbortError');
});

test('Web IDL, interface types: a signal that is no AbortSignal is a TypeError', async () => {
  const fakes = [
    ...[null, 'string', 12.34, false, {}, [], Symbol(), () => {}, globalThis, new EventTarget()],
    new AbortController(),
    { aborted: false, reason: undefined, addEventListener() {}, removeEventListener() {} },
    Object.create(AbortSignal.prototype),
    AbortSignal.prototype,
  ];
  const name = unique();
  for (const [index, fake] of fakes.entries()) {
    const error = await rejection(locks.request(name, { signal: fake }, never));
    assert.ok(error instanceof TypeError, `fake signal ${index}: ${String(error)}`);
  }
  assert.deepEqual(await modes(name), [[], []]);
});

test('Web IDL, interface types: an AbortSignal with another prototype is one all the same', async () => {
  const controller = new AbortController();
  const { signal } = controller;
  Object.setPrototypeOf(signal, Object.create(AbortSignal.prototype));
  const name = unique();
  await hold(name);
  const waiting = rejection(locks.request(name, { signal }, never));
  controller.abort('mine');
  assert.equal(await waiting, 'mine');
});

test('Web IDL, callback functions: the callback may be any callable object', async () => {
  const callable = new Proxy(() => 'called', {});
  assert.equal(await locks.request(unique(), callable), 'called');
  class Constructor {}
  await rejectsType(locks.request(unique(), Constructor));
});

test('request() never throws: what goes wrong is a rejection, and a later task at that', async () => {
  const order = [];
  const wrong = [
    () => locks.request(),
    () => locks.request(Symbol(), never),
    () => locks.request('a', 1),
    () => locks.request('a', { mode: 'none' }, never),
    () => locks.request('-', never),
    () => locks.request('a', { steal: true, ifAvailable: true }, never),
    () => locks.request('a', { signal: AbortSignal.abort() }, never),
    () => locks.query.call(1),
  ];
  const rejections = wrong.map((call) => call().catch(() => order.push('rejected')));
  order.push('returned');
  await Promise.all(rejections);
  assert.deepEqual(order, ['returned', ...wrong.map(() => 'rejected')]);
});

test('§4.5: a snapshot is a plain object of plain objects, each with exactly three members', async () => {
  const name = unique();
  await hold(name);
  request(name, { mode: 'shared' });
  await microtasks();
  const snapshot = await locks.query();
  const data = (object) => Object.values(Object.getOwnPropertyDescriptors(object));
  assert.deepEqual(Reflect.ownKeys(snapshot), ['held', 'pending']);
  for (const list of [snapshot.held, snapshot.pending]) {
    assert.ok(Array.isArray(list) && Object.getPrototypeOf(list) === Array.prototype);
    assert.equal(list.length, 1);
    for (const info of list) {
      assert.equal(Object.getPrototypeOf(info), Object.prototype);
      assert.deepEqual(Reflect.ownKeys(info).sort(), ['clientId', 'mode', 'name']);
      assert.deepEqual([typeof info.name, typeof info.mode, typeof info.clientId], Array(3).fill('string'));
      for (const { writable, enumerable, configurable } of data(info)) {
        assert.ok(writable && enumerable && configurable);
      }
    }
  }
  assert.equal(Object.getPrototypeOf(snapshot), Object.prototype);
});

test('Web IDL, dictionaries: the members of a dictionary come in the order of their names', async () => {
  const { lock } = await hold(unique());
  const { held } = await locks.query();
  assert.deepEqual(Object.keys(held.find(({ name }) => name === lock.name)), ['clientId', 'mode', 'name']);
});
