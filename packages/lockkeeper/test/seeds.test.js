/**
 * The examples of the texts that this package implements, as they stand there. A test names the
 * text and the line at which its example begins. Only what an example lacks was added: the
 * functions that it calls, what its comments leave to the reader, and what the text has lost (the
 * Working Draft was once a PDF: underscores, ends of lines, and some blocks).
 *
 *     Proto-spec     the proto-spec: LockManager with forceRelease()
 *     Explainer      the explainer: scopes, and three ways to release
 *     Working Draft  the Working Draft of January 2023
 *
 * The two sketches (Origin Flags, and locks with scopes) have no examples; their steps are tested
 * in proposals.test.js.
 */

import { Lock, LockManager } from 'lockkeeper';
import { proposals } from 'lockkeeper/proposals';
import { assert, cleanUp, deferred, test, turn, until } from './harness.js';
import { available, hold, locks, modes, rejectsDOM } from './helpers.js';

const navigator = { locks };
const { requestExplicitLock, requestLock: requestAutoReleaseLock, requestScopedLock } = proposals(locks);

/**
 * What an example works with: it notes whether the lock is held then, and in which mode, and goes
 * on when told.
 */
function work(name = 'resource') {
  const gate = deferred();
  const entered = deferred();
  const state = { held: undefined, entered: entered.promise, finish: gate.resolve };
  state.run = async () => {
    const [held] = await modes(name);
    state.held = held;
    entered.resolve();
    await gate.promise;
  };
  cleanUp(gate.resolve);
  return state;
}

// The proto-spec

test('Proto-spec, line 45: p1 is the released promise and p2 the waiting promise', async () => {
  const finish = deferred();
  const p1 = navigator.locks.request('resource', lock => {
    const p2 = new Promise(r => { /* logic to use lock and resolve promise */
      finish.promise.then(() => r(lock.mode));
    });
    return p2;
  });
  assert.equal(await available('resource'), false, 'held while the waiting promise is pending');
  finish.resolve();
  assert.equal(await p1, 'exclusive', 'the released promise has the value of the waiting promise');
  assert.equal(await available('resource'), true);
});

test('Proto-spec, line 54: the waiting promise is what an async callback returns', async () => {
  let held;
  const p1 = navigator.locks.request('resource', async lock => {
    /* logic to use lock */
    held = await modes(lock.name);
  });
  assert.equal(await p1, undefined);
  assert.deepEqual(held, [['exclusive'], []]);
});

test('Proto-spec, line 117: interface LockManager has request, query and forceRelease', async () => {
  for (const operation of ['request', 'query', 'forceRelease']) {
    assert.equal(typeof LockManager.prototype[operation], 'function', operation);
  }
  const { released } = await hold('resource');
  const broken = rejectsDOM(released, 'AbortError');
  await navigator.locks.forceRelease('resource');
  await broken;
  assert.deepEqual(await modes('resource'), [[], []], 'and nothing is granted by it');
});

test('Proto-spec, line 195: interface Lock has name and mode', async () => {
  const lock = await navigator.locks.request('resource', { mode: 'shared' }, (lock) => lock);
  assert.ok(lock instanceof Lock);
  assert.deepEqual([lock.name, lock.mode], ['resource', 'shared']);
});

// The explainer

test('Explainer, line 47: a name may be db_name + "/" + store_name', async () => {
  const [db_name, store_name] = ['db', 'store'];
  const lock = await requestExplicitLock(db_name + '/' + store_name);
  assert.deepEqual(lock.scope, ['db/store']);
  lock.release();
});

test('Explainer, line 67: #3 and #6 are granted, #4 waits for #1, #2 and #3, #5 waits for #4', async () => {
  const granted = [];
  const request = (number, scope, mode) =>
    requestExplicitLock(scope, { mode }).then((lock) => (granted.push(number), lock));
  const first = await request(1, ['a'], 'exclusive');
  const second = await request(2, ['b'], 'shared');
  const third = request(3, ['b'], 'shared');
  const fourth = request(4, ['a', 'b'], 'exclusive');
  const fifth = request(5, ['b'], 'shared');
  const sixth = request(6, ['c'], 'exclusive');
  (await sixth).release();
  assert.deepEqual(granted, [1, 2, 3, 6]);
  for (const lock of [first, second, await third]) {
    assert.deepEqual(await modes('a'), [lock === first ? ['exclusive'] : [], ['exclusive']]);
    lock.release();
  }
  const both = await fourth;
  assert.equal(await available('b', 'shared'), false);
  both.release();
  (await fifth).release();
  assert.deepEqual(granted, [1, 2, 3, 6, 4, 5]);
});

test('Explainer, line 90: proposal 1, auto-releasing with waitUntil()', async () => {
  const requestLock = requestAutoReleaseLock;
  const [write, read] = [work(), work()];
  const [async_write_func, async_read_func] = [write.run, read.run];

  async function get_lock_then_write() {
    const lock = await requestLock('resource');
    lock.waitUntil(async_write_func());
  }

  async function get_lock_then_read() {
    const lock = await requestLock('resource', {mode: 'shared'});
    lock.waitUntil(async_read_func());
  }

  const both = [get_lock_then_write(), get_lock_then_read()];
  await write.entered;
  assert.deepEqual(await modes('resource'), [['exclusive'], ['shared']]);
  write.finish();
  await read.entered;
  assert.deepEqual([write.held, read.held], [['exclusive'], ['shared']]);
  read.finish();
  await Promise.all(both);
  await until(() => available('resource'));
});

test('Explainer, line 103: proposal 2, explicit release', async () => {
  const requestLock = requestExplicitLock;
  const [write, read] = [work(), work()];
  const [async_write_func, async_read_func] = [write.run, read.run];

  async function get_lock_then_write() {
    const lock = await requestLock('resource');
    await async_write_func();
    lock.release();
  }

  async function get_lock_then_read() {
    const lock = await requestLock('resource', {mode: 'shared'});
    await async_read_func();
    lock.release();
  }

  const both = [get_lock_then_write(), get_lock_then_read()];
  await write.entered;
  assert.deepEqual(await modes('resource'), [['exclusive'], ['shared']]);
  write.finish();
  await read.entered;
  assert.deepEqual([write.held, read.held], [['exclusive'], ['shared']]);
  read.finish();
  await Promise.all(both);
  assert.equal(await available('resource'), true);
});

test('Explainer, line 103: proposal 2, whose lock is force-released, has nothing to handle', async () => {
  const requestLock = requestExplicitLock;
  const write = work();
  const async_write_func = write.run;

  async function get_lock_then_write() {
    const lock = await requestLock('resource');
    await async_write_func();
    lock.release();
  }

  const written = get_lock_then_write();
  await write.entered;
  await navigator.locks.forceRelease('resource');
  // What nobody handles is told in a later turn, and fails the test.
  for (let i = 0; i < 3; i++) await turn();
  write.finish();
  await written;
  assert.equal(await available('resource'), true);
});

test('Explainer, line 118: proposal 3, scoped release', async () => {
  const requestLock = requestScopedLock;
  const [write, read] = [work(), work()];
  const [async_write_func, async_read_func] = [write.run, read.run];

  async function get_lock_then_write() {
    await requestLock('resource', async lock => {
      await async_write_func();
    });
  }

  async function get_lock_then_read() {
    await requestLock('resource', async lock => {
      await async_read_func();
    }, {mode: 'shared'});
  }

  const both = [get_lock_then_write(), get_lock_then_read()];
  await write.entered;
  assert.deepEqual(await modes('resource'), [['exclusive'], ['shared']]);
  write.finish();
  await read.entered;
  assert.deepEqual([write.held, read.held], [['exclusive'], ['shared']]);
  read.finish();
  await Promise.all(both);
  assert.equal(await available('resource'), true);
});

test("Explainer, line 139: a scope is 'thing' or ['thing1', 'thing2']", async () => {
  const one = await requestExplicitLock('thing');
  const two = await requestExplicitLock(['thing1', 'thing2']);
  assert.deepEqual([one.scope, two.scope], [['thing'], ['thing1', 'thing2']]);
  one.release();
  two.release();
});

for (const timely of [true, false]) {
  test(`Explainer, line 152: a signal that waits at most 200 ms, ${timely ? 'granted in time' : 'and no lock'}`, async () => {
    const requestLock = requestScopedLock;
    const holder = timely ? undefined : await hold('resource');
    const seen = [];

    const controller = new AbortController();
    setTimeout(() => controller.abort(), 200); // wait at most 200ms

    try {
      // NOTE: Using "scoped release" API proposal.
      await requestLock('resource', async lock => {
        // Use |lock| here.
        seen.push(lock.scope);
      }, {signal: controller.signal});
      // Done with lock here.
      seen.push('done');
    } catch (ex) {
      // |ex| will be a DOMException with error name "AbortError" if timer fired.
      seen.push(ex instanceof DOMException, ex.name);
    }

    assert.deepEqual(seen, timely ? [['resource'], 'done'] : [true, 'AbortError']);
    holder?.release();
  });
}

/** Line 192: explicit release in terms of auto-release. */
const explicitByAuto = (requestLock) => {
  async function requestExplicitLock(...args) {
    const lock = await requestLock(...args);
    lock.waitUntil(new Promise(resolve => { lock.release = resolve; }));
    return lock;
  }

  return requestExplicitLock;
};

/** Line 201: auto-release in terms of explicit release. The text forgets an `async`. */
const autoByExplicit = (requestLock) => {
  function Extendable() {
    let resolve, reject;
    const promise = new Promise((res, rej) => {
      resolve = res;
      reject = rej;
    });

    let ps;
    promise.waitUntil = function(p) {
      ps = ps ? Promise.all([ps, p]) : p;
      const snapshot = ps;
      ps.then(
        () => { if (snapshot === ps) resolve(); },
        err => { if (snapshot === ps) reject(err); }
      );
    };
    return promise;
  }

  async function requestAutoReleaseLock(...args) {
    const lock = await requestLock(...args);
    const ext = Extendable();
    ext.then(() => lock.release(), () => lock.release());
    ext.waitUntil(Promise.resolve().then(() => Promise.resolve().then()));
    lock.waitUntil = ext.waitUntil.bind(ext);
    return lock;
  }

  return requestAutoReleaseLock;
};

/** Line 232: explicit release in terms of scoped release. */
const explicitByScoped = (requestLock) => {
  function requestExplicitLock(scope, ...rest) {
    return new Promise(resolve => {
      requestLock(scope, lock => {
        // p waits until lock.release() is called
        const p = new Promise(r => { lock.release = r; });
        resolve(lock);
        return p;
      }, ...rest);
    });
  }

  return requestExplicitLock;
};

/** Line 246: scoped release in terms of explicit release. */
const scopedByExplicit = (requestLock) => {
  async function requestScopedLock(scope, callback, ...rest) {
    const lock = await requestLock(scope, ...rest);
    try {
      await callback(lock);
    } finally {
      lock.release();
    }
  }

  return requestScopedLock;
};

const explicitForms = {
  'line 192: explicit release in terms of auto-release': explicitByAuto(requestAutoReleaseLock),
  'line 232: explicit release in terms of scoped release': explicitByScoped(requestScopedLock),
};
for (const [title, request] of Object.entries(explicitForms)) {
  test(`Explainer, ${title}`, async () => {
    const lock = await request('resource');
    assert.deepEqual([lock.scope, lock.mode], [['resource'], 'exclusive']);
    await turn();
    assert.equal(await available('resource'), false, 'it is held until it is released');
    lock.release();
    await until(() => available('resource'));
    const [one, other] = await Promise.all([1, 2].map(() => request(['a', 'b'], { mode: 'shared' })));
    assert.deepEqual(await modes('b'), [['shared', 'shared'], []]);
    one.release();
    other.release();
    await until(() => available('b'));
  });
}

const autoForms = {
  'line 201: auto-release in terms of explicit release': autoByExplicit(requestExplicitLock),
  'line 137: auto-release in terms of explicit release in terms of scoped release': autoByExplicit(
    explicitByScoped(requestScopedLock),
  ),
};
for (const [title, request] of Object.entries(autoForms)) {
  test(`Explainer, ${title}`, async () => {
    const gate = deferred();
    const lock = await request('resource');
    lock.waitUntil(gate.promise);
    await turn();
    assert.equal(await available('resource'), false, 'it waits');
    gate.resolve();
    await until(() => available('resource'));
    await request(['resource'], { mode: 'shared' });
    await until(() => available('resource'));
    const failing = await request('resource');
    failing.waitUntil(Promise.reject(new Error('the write failed')));
    await until(() => available('resource'));
  });
}

const scopedForms = {
  'line 246: scoped release in terms of explicit release': scopedByExplicit(requestExplicitLock),
  'line 137: scoped release in terms of explicit release in terms of auto-release': scopedByExplicit(
    explicitByAuto(requestAutoReleaseLock),
  ),
};
for (const [title, request] of Object.entries(scopedForms)) {
  test(`Explainer, ${title}`, async () => {
    const inside = work();
    const scoped = request('resource', inside.run);
    await inside.entered;
    assert.deepEqual([inside.held, await available('resource')], [['exclusive'], false]);
    inside.finish();
    await scoped;
    await until(() => available('resource'));
    const failed = new Error('the callback failed');
    const failing = request('resource', () => Promise.reject(failed), { mode: 'shared' });
    await assert.rejects(failing, failed);
    await until(() => available('resource'));
  });
}

test('Explainer, line 267: to wrap a lock around a transaction, lock.waitUntil(tx.complete)', async () => {
  const complete = deferred();
  const tx = { complete: complete.promise };
  const lock = await requestAutoReleaseLock('resource');
  lock.waitUntil(tx.complete)
  await turn();
  assert.equal(await available('resource'), false);
  complete.resolve();
  await lock.released;
  assert.equal(await available('resource'), true);
});

test('Explainer, line 268: to wrap a transaction around a lock, tx.waitUntil(lock.released)', async () => {
  let complete;
  const tx = { waitUntil: (promise) => void (complete = promise) };
  const written = deferred();
  const lock = await requestAutoReleaseLock('resource');
  tx.waitUntil(lock.released)
  lock.waitUntil(written.promise);
  await turn();
  assert.equal(await available('resource'), false);
  written.resolve();
  assert.equal(await complete, undefined);
  assert.equal(await available('resource'), true);
});

// The Working Draft

test('Working Draft, line 139: example 1, a basic request', async () => {
  const done = deferred();
  const steps = [];
  const do_something = async () => steps.push((await modes('my resource'))[0]);
  const do_something_else = async () => done.resolve(steps.push('else'));
  navigator.locks.request('my resource', async lock => {
      // The lock has been acquired.
      await do_something();
      await do_something_else();
     // Now the lock will be released.
  });
  await done.promise;
  assert.deepEqual(steps, [['exclusive'], 'else']);
  await until(() => available('my resource'));
});

test('Working Draft, line 148: example 1, within an asynchronous function', async () => {
  const steps = [];
  const do_something = async () => steps.push((await modes('my resource'))[0]);
  // Before requesting the lock.
  steps.push(await available('my resource'));
  await navigator.locks.request('my resource', async lock => {
     // The lock has been acquired.
     await do_something();
     // Now the lock will be released.
  });
  // After the lock has been released
  steps.push(await available('my resource'));
  assert.deepEqual(steps, [true, ['exclusive'], true]);
});

test('Working Draft, line 183: example 2, whose names the text has lost: one for each store of a database', async () => {
  const [db_name, store_name] = ['a/b', 'c'];
  const encoded = encodeURIComponent(db_name) + '/' + encodeURIComponent(store_name);
  assert.equal(await navigator.locks.request(encoded, (lock) => lock.name), 'a%2Fb/c');
});

test('Working Draft, line 237: p1 is the released promise and p2 the waiting promise', async () => {
  const finish = deferred();
  const p1 = navigator.locks.request('resource', lock => {
    const p2 = new Promise(r => {
      // Logic to use lock and resolve promise...
      finish.promise.then(() => r(lock.name));
  });
    return p2;
  });
  assert.equal(await available('resource'), false);
  finish.resolve();
  assert.equal(await p1, 'resource');
  assert.equal(await available('resource'), true);
});

test('Working Draft, line 248: the waiting promise is what an async callback returns', async () => {
  let held;
  const p1 = navigator.locks.request('resource', async lock => {
     // Logic to use lock...
     held = await modes(lock.name);
  });
  assert.equal(await p1, undefined);
  assert.deepEqual(held, [['exclusive'], []]);
});

test('Working Draft, line 367: the two forms of request()', async () => {
  const [name, options, callback] = ['resource', { mode: 'shared' }, (lock) => lock.mode];
  let promise;
  promise = navigator . locks . request(name, callback)
  assert.equal(await promise, 'exclusive');
  promise = navigator . locks . request(name, options, callback)
  assert.equal(await promise, 'shared');
});

test('Working Draft, line 380: the example that the text has lost: released when the callback returns, or throws', async () => {
  const caught = [];
  for (const do_something of [async () => {}, async () => assert.fail('thrown')]) {
    try {
      const result = await navigator.locks.request('resource', async lock => {
        // The lock is held here.
        await do_something();
        return lock.name;
        // The lock will be released now.
      });
      // |result| has the return value of the callback.
      assert.equal(result, 'resource');
    } catch (ex) {
      // if the callback threw, it will be caught here.
      caught.push(ex.message);
    }
    assert.equal(await available('resource'), true);
  }
  assert.deepEqual(caught, ['thrown']);
});

test('Working Draft, line 392: options.mode', async () => {
  let held;
  const reader = await hold('resource', { mode: 'shared' });
  await navigator.locks.request('resource', {mode: 'shared'}, async lock => {
      // Lock is held here. Other contexts might also hold the lock in shared mode,
      // but no other contexts will hold the lock in exclusive mode.
      held = await modes(lock.name);
  });
  assert.deepEqual(held, [['shared', 'shared'], []]);
  reader.release();
});

for (const free of [true, false]) {
  test(`Working Draft, line 403: options.ifAvailable, ${free ? 'where it is' : 'where it is not'}`, async () => {
    const seen = [];
    const holder = free ? undefined : await hold('resource');
    await navigator.locks.request('resource', {ifAvailable: true}, async lock => {
      if (!lock) {
        // Didn't get it. Maybe take appropriate action.
        seen.push(lock);
        return;
      }
      // Lock is held here.
      seen.push((await modes('resource'))[0]);
    });
    assert.deepEqual(seen, free ? [['exclusive']] : [null]);
    holder?.release();
  });
}

for (const timely of [true, false]) {
  test(`Working Draft, line 417: options.signal, ${timely ? 'granted in time' : 'and no lock'}`, async () => {
    const holder = timely ? undefined : await hold('resource');
    const seen = [];

    const controller = new AbortController();
    setTimeout(() => controller.abort(), 200); // Wait at most 200ms.

    try {
       await navigator.locks.request(
        'resource', {signal: controller.signal}, async lock => {
            // Lock is held here.
            seen.push((await modes(lock.name))[0]);
       });
       // Done with lock here.
       seen.push('done');
    } catch (ex) {
       // |ex| will be a DOMException with error name "AbortError" if timer fired.
       seen.push(ex instanceof DOMException, ex.name);
    }

    assert.deepEqual(seen, timely ? [['exclusive'], 'done'] : [true, 'AbortError']);
    holder?.release();
  });
}

test('Working Draft, line 464: the state that query() gives, whose form the text has lost', async () => {
  let state;
  const holder = await hold('resource');
  const waiting = navigator.locks.request('resource', { mode: 'shared' }, () => {});
  state = await navigator . locks . query()
  const [{ clientId }] = state.held;
  assert.deepEqual(JSON.parse(JSON.stringify(state)), {
    held: [{ name: 'resource', mode: 'exclusive', clientId }],
    pending: [{ name: 'resource', mode: 'shared', clientId }],
  });
  holder.release();
  await waiting;
});

test('Working Draft, line 622: example 3, a deadlock, which blocks nothing else and which a steal undoes', async () => {
  const [first, second] = [deferred(), deferred()];
  // Script 1:
  const script1 = navigator.locks.request('A', async a => {
    await navigator.locks.request('B', async b => {
      // do stuff with A and B
      first.resolve();
    });
  });
  // Script 2:
  const script2 = navigator.locks.request('B', async b => {
     await navigator.locks.request('A', async a => {
        // do stuff with A and B
        second.resolve();
     });
  });
  const preempted = rejectsDOM(script1, 'AbortError');
  await until(async () => (await navigator.locks.query()).pending.length === 2);
  for (const name of ['A', 'B']) assert.deepEqual(await modes(name), [['exclusive'], ['exclusive']]);
  assert.equal(await available('C'), true, 'other script in the origin is not affected');
  await navigator.locks.request('A', { steal: true }, () => {});
  await preempted;
  await second.promise;
  await script2;
  await first.promise;
});

test('Working Draft, line 654: example 4, the helper that the text has lost: several locks in a consistent order', async () => {
  async function requestMultiple(resources, callback) {
    const sortedResources = [...resources];
    sortedResources.sort(); // Always request in the same order.

    async function requestNext(locks) {
      const resource = sortedResources.shift();
      return await navigator.locks.request(resource, async lock => {
        // Now holding this lock, plus all previously requested locks.
        locks.push(lock);

        // Recursively request the next lock in order if needed.
        if (sortedResources.length > 0)
          return await requestNext(locks);

        // Otherwise, run the callback.
        return await callback(locks);
      });
    }
    return await requestNext([]);
  }

  const run = (...resources) =>
    requestMultiple(resources, async (held) => {
      await turn();
      return held.map(({ name }) => name);
    });
  const results = await Promise.all([run('A', 'B'), run('B', 'A'), run('B', 'C', 'A')]);
  assert.deepEqual(results, [['A', 'B'], ['A', 'B'], ['A', 'B', 'C']]);
});
