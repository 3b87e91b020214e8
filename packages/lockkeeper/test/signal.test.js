/**
 * The signal option: §3.2.1 steps 8 and 9, §4.1 step 2, §4.3, §4.4 step 2.14.1.
 *
 * WPT: signal (all of it but what is no AbortSignal: see idl.test.js).
 */

import * as events from 'node:events';
import { assert, deferred, test, turn } from './harness.js';
import {
  available,
  hold,
  locks,
  modes,
  rejection,
  rejectsDOM,
  request,
  testInProcess,
  unique,
} from './helpers.js';

const never = () => assert.fail('the callback ran');

/** A request with a controller, which waits behind a lock that is held. */
async function waiting(name = unique(), options = {}) {
  const holder = await hold(name);
  const controller = new AbortController();
  const promise = locks.request(name, { signal: controller.signal, ...options }, never);
  promise.catch(() => {});
  assert.equal((await modes(name))[1].length, 1);
  return { name, holder, controller, promise };
}

test('§3.2.1 step 9: a signal that is aborted rejects with its reason, and makes no request', async () => {
  const name = unique();
  const reason = { my: 'dog ate it' };
  for (const given of [reason, 'text', 0, null, new Error('mine')]) {
    const rejected = rejection(locks.request(name, { signal: AbortSignal.abort(given) }, never));
    assert.deepEqual(await modes(name), [[], []]);
    assert.equal(await rejected, given);
  }
});

test('§3.2.1 step 9: without a reason of its own, the reason is an AbortError', async () => {
  const signal = AbortSignal.abort();
  const error = await rejectsDOM(locks.request(unique(), { signal }, never), 'AbortError');
  assert.equal(error, signal.reason);
});

test('§4.3: a waiting request that is aborted rejects with the reason of the signal', async () => {
  for (const reason of ['my cat handled it', 0, null, new Error('mine')]) {
    const { controller, promise } = await waiting();
    controller.abort(reason);
    assert.equal(await rejection(promise), reason);
  }
});

test('§4.3: without a reason of its own, the request rejects with the AbortError of the signal', async () => {
  const { controller, promise } = await waiting();
  controller.abort();
  assert.equal(await rejectsDOM(promise, 'AbortError'), controller.signal.reason);
});

test('§4.3: an aborted request has left the queue when abort() returns', async () => {
  const { name, controller } = await waiting();
  controller.abort();
  assert.deepEqual(await modes(name), [['exclusive'], []]);
});

test('§4.3: an abort event tells of a request that has left the queue', async () => {
  const { name, controller } = await waiting();
  let seen;
  controller.signal.addEventListener('abort', () => (seen = modes(name)));
  controller.abort();
  assert.deepEqual(await seen, [['exclusive'], []]);
});

test('§4.3: the callback of an aborted request is not run when its turn would have come', async () => {
  const { holder, controller, promise, name } = await waiting();
  const after = request(name);
  controller.abort('aborted');
  await rejection(promise);
  holder.release();
  after.release();
  await after.released;
  assert.equal(after.ran, true);
});

test('§4.3 step 7: to abort a queued exclusive request lets the shared ones behind it in', async () => {
  const name = unique();
  await hold(name, { mode: 'shared' });
  const controller = new AbortController();
  const exclusive = rejection(locks.request(name, { signal: controller.signal }, never));
  const shared = [1, 2].map(() => request(name, { mode: 'shared' }));
  await turn();
  assert.deepEqual(await modes(name), [['shared'], ['exclusive', 'shared', 'shared']]);
  controller.abort('aborted');
  assert.deepEqual(await modes(name), [['shared', 'shared', 'shared'], []]);
  assert.equal(await exclusive, 'aborted');
  for (const { release, released } of shared) {
    release();
    await released;
  }
  assert.ok(shared.every(({ ran }) => ran));
});

test('§4.3: to abort one in the middle of the queue leaves the others in their order', async () => {
  const name = unique();
  const { release } = await hold(name);
  const order = [];
  const controller = new AbortController();
  const first = locks.request(name, () => order.push('first'));
  const middle = rejection(locks.request(name, { signal: controller.signal }, never));
  const last = locks.request(name, () => order.push('last'));
  controller.abort('aborted');
  release();
  await Promise.all([first, middle, last]);
  assert.deepEqual(order, ['first', 'last']);
});

test('§4.3: to abort a shared request of a batch leaves the others in it', async () => {
  const name = unique();
  const { release } = await hold(name);
  const controller = new AbortController();
  const before = request(name, { mode: 'shared' });
  const aborted = rejection(locks.request(name, { mode: 'shared', signal: controller.signal }, never));
  const after = request(name, { mode: 'shared' });
  controller.abort('aborted');
  release();
  await aborted;
  assert.deepEqual(await modes(name), [['shared', 'shared'], []]);
  before.release();
  after.release();
});

testInProcess('§4.4 step 2.14.1.1: aborted between grant and callback, the lock is released, unseen', async () => {
  const name = unique();
  const controller = new AbortController();
  const promise = locks.request(name, { signal: controller.signal }, never);
  assert.deepEqual(await modes(name), [['exclusive'], []], 'it is granted');
  controller.abort('aborted');
  assert.deepEqual(await modes(name), [[], []], 'it is released');
  assert.equal(await rejection(promise), 'aborted');
  await turn();
  await turn();
  assert.equal(await locks.request(name, () => 'next'), 'next');
});

test('§4.4 step 2.14.1.1: the next request is granted, then', async () => {
  const name = unique();
  const controller = new AbortController();
  const first = rejection(locks.request(name, { signal: controller.signal }, never));
  const next = locks.request(name, () => 'next');
  controller.abort('aborted');
  assert.equal(await first, 'aborted');
  assert.equal(await next, 'next');
});

testInProcess('§4.4 step 2.14.1.1: the same holds for a request that was let in by a release', async () => {
  const name = unique();
  const holder = await hold(name);
  const controller = new AbortController();
  const second = rejection(locks.request(name, { signal: controller.signal }, never));
  const third = request(name);
  // A promise settles between the grant of the next request and its callback.
  const aborted = holder.released.then(async () => {
    assert.deepEqual(await modes(name), [['exclusive'], ['exclusive']], 'the second is granted');
    controller.abort('aborted');
    assert.deepEqual(await modes(name), [['exclusive'], []], 'the third is granted');
  });
  holder.release();
  await aborted;
  assert.equal(await second, 'aborted');
  third.release();
  await third.released;
  assert.equal(third.ran, true);
});

test('§4.4 step 2.14.1.2: once the callback runs, the signal is ignored', async () => {
  const controller = new AbortController();
  const { lock, release, released } = await hold(unique(), { signal: controller.signal });
  controller.abort();
  assert.equal(await available(lock.name), false, 'it is held');
  release('value');
  assert.equal(await released, 'value');
});

test('§4.4 step 2.14.1.2: to abort in the callback itself is too late, too', async () => {
  const controller = new AbortController();
  const { signal } = controller;
  const callback = async () => {
    controller.abort();
    await turn();
    return 'value';
  };
  assert.equal(await locks.request(unique(), { signal }, callback), 'value');
});

test('§4.4 step 2.14.1.2: to abort after the release is too late, too', async () => {
  const controller = new AbortController();
  const { release, released } = await hold(unique(), { signal: controller.signal });
  release('value');
  controller.abort();
  assert.equal(await released, 'value');
});

test('a signal that is not aborted changes nothing', async () => {
  const { signal } = new AbortController();
  assert.equal(await locks.request(unique(), { signal }, (lock) => lock.mode), 'exclusive');
});

test('§4.1 step 2: an abort algorithm is no listener: nothing stops its propagation', async () => {
  const name = unique();
  await hold(name);
  const controller = new AbortController();
  controller.signal.addEventListener('abort', (event) => event.stopImmediatePropagation());
  const promise = rejection(locks.request(name, { signal: controller.signal }, never));
  controller.abort('aborted');
  assert.deepEqual(await modes(name), [['exclusive'], []]);
  assert.equal(await promise, 'aborted');
});

testInProcess('§4.1 step 2: stopImmediatePropagation() does not save a request that is granted, either', async () => {
  const name = unique();
  const controller = new AbortController();
  controller.signal.addEventListener('abort', (event) => event.stopImmediatePropagation());
  const promise = rejection(locks.request(name, { signal: controller.signal }, never));
  controller.abort('aborted');
  assert.equal(await promise, 'aborted');
  assert.equal(await available(name), true);
});

test('§4.1 step 2: an event that others dispatch on the signal aborts nothing', async () => {
  const { name, controller, promise } = await waiting();
  controller.signal.dispatchEvent(new Event('abort'));
  await turn();
  assert.deepEqual(await modes(name), [['exclusive'], ['exclusive']]);
  controller.abort('aborted');
  assert.equal(await rejection(promise), 'aborted');
});

test('§4.1 step 2: one signal aborts all requests that were made with it', async () => {
  const name = unique();
  await hold(name);
  const controller = new AbortController();
  const { signal } = controller;
  const all = Array.from({ length: 50 }, () => rejection(locks.request(name, { signal }, never)));
  const granted = rejection(locks.request(unique(), { signal }, never));
  controller.abort('aborted');
  assert.deepEqual(await modes(name), [['exclusive'], []]);
  assert.deepEqual(new Set(await Promise.all([...all, granted])), new Set(['aborted']));
});

test('§4.1 step 2: many requests with one signal are no leak, and no warning tells of one', async () => {
  const name = unique();
  await hold(name);
  const warnings = [];
  const note = (warning) => warnings.push(warning.name);
  process.on('warning', note);
  const controller = new AbortController();
  const { signal } = controller;
  const all = Array.from({ length: 50 }, () => rejection(locks.request(name, { signal }, never)));
  // Warnings are emitted in a later tick.
  await turn();
  await turn();
  process.off('warning', note);
  controller.abort('aborted');
  await Promise.all(all);
  assert.deepEqual(warnings, []);
});

test('§4.4 step 2.14.1.2: the signal forgets a request that is granted, aborted or done', async () => {
  const listeners = (signal) => events.getEventListeners(signal, 'abort').length;
  const holder = await hold(unique());
  const controllers = [1, 2, 3].map(() => new AbortController());
  const [granted, aborted, waited] = controllers.map(({ signal }) => signal);
  await locks.request(unique(), { signal: granted }, () => assert.equal(listeners(granted), 0));
  assert.equal(listeners(granted), 0);
  const promise = rejection(locks.request(holder.lock.name, { signal: aborted }, never));
  assert.equal(listeners(aborted), 1, 'while it waits, it is known to the signal');
  controllers[1].abort();
  await promise;
  assert.equal(listeners(aborted), 0);
  const last = locks.request(holder.lock.name, { signal: waited }, () => assert.equal(listeners(waited), 0));
  holder.release();
  await last;
  assert.equal(listeners(waited), 0);
});

test('AbortSignal.any() and AbortSignal.timeout() are signals like others', async () => {
  const name = unique();
  await hold(name);
  const controller = new AbortController();
  const any = AbortSignal.any([new AbortController().signal, controller.signal]);
  const first = rejection(locks.request(name, { signal: any }, never));
  controller.abort('any');
  assert.equal(await first, 'any');
  const timeout = locks.request(name, { signal: AbortSignal.timeout(5) }, never);
  await rejectsDOM(timeout, 'TimeoutError');
});

testInProcess('a request that was stolen does not mind an abort that comes later', async () => {
  const controller = new AbortController();
  const name = unique();
  const preempted = rejection(locks.request(name, { signal: controller.signal }, never));
  const thief = locks.request(name, { steal: true }, () => 'thief');
  controller.abort('aborted');
  assert.equal((await preempted).cause, 'stolen');
  assert.equal(await thief, 'thief');
});

test('a listener that requests the same name again finds it free', async () => {
  const name = unique();
  const controller = new AbortController();
  const { promise: again, resolve } = deferred();
  const first = rejection(locks.request(name, { signal: controller.signal }, never));
  controller.signal.addEventListener('abort', () => resolve(available(name)));
  controller.abort('aborted');
  assert.equal(await first, 'aborted');
  assert.equal(await again, true);
});
