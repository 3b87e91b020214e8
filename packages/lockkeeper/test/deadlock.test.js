/**
 * Beyond the draft: which requests are nested in which locks, and what is told of deadlocks (§5.1).
 */

import { DeadlockError, detectDeadlocks } from 'lockkeeper';
import { assert, cleanUp, deferred, startWorker, test, turn, until } from './harness.js';
import { available, hold, locks, modes, rejection, rejectsType, testInProcess, unique } from './helpers.js';

const warnings = [];
process.on('warning', (warning) => warnings.push(warning));

/** Runs `inside` in the callback of a lock, and keeps the lock until the test is over. */
async function within(name, inside) {
  const { promise, resolve, reject } = deferred();
  const over = deferred();
  const released = locks.request(name, async (lock) => {
    try {
      resolve(await inside(lock));
    } catch (error) {
      reject(error);
    }
    await over.promise;
  });
  cleanUp(() => {
    over.resolve();
    return released.catch(() => {});
  });
  return promise;
}

/** Starts a request that is aborted with the test. */
function start(name) {
  const controller = new AbortController();
  cleanUp(() => controller.abort());
  locks.request(name, { signal: controller.signal }, () => {}).catch(() => {});
  return controller;
}

test('until detectDeadlocks() is called, nothing is known to be nested', async () => {
  const name = unique();
  await within(name, () => void start(name));
  const { pending, deadlocks } = await locks.inspect();
  assert.deepEqual([pending.length, pending[0].nestedIn, deadlocks], [1, undefined, []]);
});

test('within: without detectDeadlocks(), too, a request that would wait for itself is refused', async () => {
  const outer = await locks.acquire(unique());
  const error = await rejection(locks.acquire(outer.name, { within: outer, deadlock: 'refuse' }));
  assert.ok(error instanceof DeadlockError);
  assert.deepEqual(await modes(outer.name), [['exclusive'], []], 'nothing waits');
  await outer.release();
});

test('within: a lock that is released is none to be within; what is no lock is a TypeError', async () => {
  const outer = await locks.acquire(unique());
  await outer.release();
  const lock = await locks.acquire(outer.name, { within: outer, deadlock: 'refuse' });
  assert.equal((await locks.inspect()).held[0].nestedIn, undefined);
  await lock.release();
  for (const fake of [{}, null, 'lock', locks]) await rejectsType(locks.acquire(unique(), { within: fake }));
});

test('within: a lock of request() will do, and a lock of another name is granted', async () => {
  const { lock } = await hold(unique());
  const inner = await locks.acquire(unique(), { within: lock, deadlock: 'refuse' });
  const { held } = await locks.inspect();
  assert.equal(held[1].nestedIn, held[0].request);
  await inner.release();
});

test('detectDeadlocks(): a request in the callback of a lock is nested in it', async () => {
  detectDeadlocks();
  detectDeadlocks();
  const inner = unique();
  const { promise, resolve } = deferred();
  const outer = within(unique(), async () => {
    const held = locks.request(inner, () => promise);
    await turn();
    cleanUp(() => (resolve(), held));
  });
  await outer;
  const { held } = await locks.inspect();
  assert.equal(held[1].nestedIn, held[0].request);
  assert.equal(held[0].nestedIn, undefined);
});

test('detectDeadlocks(): so it is in what the callback started, after any await or timer', async () => {
  const name = unique();
  const nested = await within(unique(), async () => {
    await turn();
    await new Promise((resolve) => setTimeout(resolve, 1));
    return new Promise((resolve, reject) => {
      setImmediate(() => {
        const look = async () => (await locks.inspect()).held.find(({ scope }) => scope[0].name === name);
        locks.request(name, look).then(resolve, reject);
      });
    });
  });
  assert.equal(typeof nested.nestedIn, 'bigint');
});

test('detectDeadlocks(): a request beside the callback is not nested', async () => {
  await hold(unique());
  const { lock } = await hold(unique());
  const { held } = await locks.inspect();
  assert.equal(held.find(({ scope }) => scope[0].name === lock.name).nestedIn, undefined);
});

test('detectDeadlocks(): a request after the release of the lock is not nested', async () => {
  const inner = unique();
  const { promise, resolve } = deferred();
  let late;
  await locks.request(unique(), () => {
    late = promise.then(() => locks.request(inner, async () => (await locks.inspect()).held[0]));
  });
  resolve();
  assert.equal((await late).nestedIn, undefined);
});

test('detectDeadlocks(): arguments, results and errors of callbacks stay as they are', async () => {
  const callback = function (...args) {
    return [this, args.length, args[0].mode];
  };
  assert.deepEqual(await locks.request(unique(), callback), [undefined, 1, 'exclusive']);
  const thrown = { then: () => assert.fail('its then was called') };
  const [reason] = await locks
    .request(unique(), () => {
      throw thrown;
    })
    .then(assert.fail, (reason) => [reason]);
  assert.equal(reason, thrown);
});

test('inspect() shows the cycle of a request that waits for the lock it is nested in', async () => {
  const name = unique('self');
  await within(name, () => void start(name));
  const { held, pending, deadlocks } = await locks.inspect();
  assert.equal(deadlocks.length, 1);
  const [{ message, cycle }] = deadlocks;
  assert.match(message, /^deadlock, if each awaits its nested request: /);
  assert.ok(message.includes(name), message);
  assert.deepEqual(cycle.map((step) => step.request), [pending[0].request, held[0].request]);
  assert.deepEqual(cycle.map((step) => step.waitsFor), [name, undefined]);
  assert.deepEqual(cycle.map((step) => step.clientId), [held[0].clientId, held[0].clientId]);
});

test('inspect() shows no deadlock where a request merely waits', async () => {
  const name = unique();
  await hold(name);
  await within(unique(), () => void start(name));
  const { pending, deadlocks } = await locks.inspect();
  assert.deepEqual([pending.length, deadlocks], [1, []]);
});

test('inspect() shows the cycle of two locks taken in opposite orders (§5.1, example 3)', async () => {
  const [a, b] = [unique('a'), unique('b')];
  const both = [deferred(), deferred()];
  const script = (first, second, me) =>
    within(first, async () => {
      both[me].resolve();
      await Promise.all(both.map(({ promise }) => promise));
      start(second);
    });
  await Promise.all([script(a, b, 0), script(b, a, 1)]);
  const { deadlocks } = await locks.inspect();
  assert.equal(deadlocks.length, 1);
  const waitsFor = deadlocks[0].cycle.map((step) => step.waitsFor).filter(Boolean);
  assert.deepEqual(waitsFor.sort(), [a, b]);
});

test('a deadlock is gone from inspect() when one of its requests is aborted', async () => {
  const name = unique();
  const controller = await within(name, () => start(name));
  assert.equal((await locks.inspect()).deadlocks.length, 1);
  controller.abort();
  assert.equal((await locks.inspect()).deadlocks.length, 0);
});

test('deadlock: "refuse" rejects with a DeadlockError that tells of the cycle, and makes no request', async () => {
  const name = unique('self');
  const error = await within(name, () => rejection(locks.acquire([name, unique()], { deadlock: 'refuse' })));
  assert.ok(error instanceof DeadlockError && error instanceof Error);
  assert.equal(error.name, 'DeadlockError');
  assert.ok(error.message.includes(name), error.message);
  assert.deepEqual(error.cycle.map(({ waitsFor }) => waitsFor), [name, undefined]);
  assert.equal(new Set(error.cycle.map(({ clientId }) => clientId)).size, 1);
  assert.equal(new Set(error.cycle.map(({ request }) => request)).size, 2);
  assert.deepEqual(await modes(name), [['exclusive'], []]);
});

test('deadlock: "refuse" waits where there is no cycle', async () => {
  const name = unique();
  const { release } = await hold(name);
  const acquired = within(unique(), () => locks.acquire(name, { deadlock: 'refuse' }));
  await until(async () => (await modes(name))[1].length === 1);
  release();
  const lock = await acquired;
  assert.equal(await lock.release(), true);
});

test('deadlock: "refuse" takes what is free, in a lock of its own', async () => {
  const name = unique();
  const lock = await within(unique(), () => locks.acquire(name, { deadlock: 'refuse' }));
  assert.equal(await available(name), false);
  await lock.release();
});

test('deadlock: what is neither "refuse" nor "report" is a TypeError', async () => {
  await rejectsType(locks.acquire(unique(), { deadlock: 'Refuse' }));
});

testInProcess('deadlock: a cycle of two threads is found from either', async () => {
  const [a, b] = [unique('a'), unique('b')];
  const worker = startWorker('agent.js');
  await worker.ask('acquire', 'outer', b);
  const outer = await locks.acquire(a);
  await worker.ask('acquireWithin', 'inner', 'outer', a);
  await until(async () => (await modes(a))[1].length === 1);
  const { cycle } = await rejection(locks.acquire(b, { within: outer, deadlock: 'refuse' }));
  assert.equal(cycle.length, 4);
  assert.equal(new Set(cycle.map(({ clientId }) => clientId)).size, 2);
  await outer.release();
  assert.equal(await worker.ask('outcome', 'inner'), 'acquired');
});

test('DeadlockWarning: tells of a nested request that waits for itself for a second, once', async () => {
  const name = unique('told');
  const before = warnings.length;
  await within(name, () => void start(name));
  const warning = await until(() => warnings.slice(before).find(({ message }) => message.includes(name)));
  assert.deepEqual([warning.name, warning.code], ['DeadlockWarning', 'LOCKKEEPER_DEADLOCK']);
  assert.match(warning.message, /waits for/);
  assert.equal(warnings.slice(before).length, 1);
});

test('DeadlockWarning: none of a request that merely waits, or was aborted in time', async () => {
  const before = warnings.length;
  const [waits, aborted, told] = [unique('waits'), unique('aborted'), unique('told')];
  await hold(waits);
  await within(unique(), () => void start(waits));
  (await within(aborted, () => start(aborted))).abort();
  // One that is told of, and was made last, marks the time at which the others would have been.
  await within(told, () => void start(told));
  await until(() => warnings.length > before);
  await turn();
  assert.deepEqual(warnings.slice(before).map(({ message }) => message.includes(told)), [true]);
});
