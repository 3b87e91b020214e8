/**
 * The steal option: §4.1 step 3.4, and the one departure from the draft (stolen between grant and
 * callback).
 *
 * WPT: steal (all of it), crashtests/settle-after-steal.
 */

import { assert, deferred, test, turn } from './harness.js';
import {
  available,
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

const steal = { steal: true };

test('§4.1 step 3.4: a steal of what nobody holds is a request like any other', async () => {
  assert.equal(await locks.request(unique(), steal, (lock) => lock.mode), 'exclusive');
});

test('§4.1 step 3.4.1: the holder is rejected with an AbortError that says it was stolen', async () => {
  const { lock, released } = await hold(unique());
  const broken = rejectsDOM(released, 'AbortError');
  assert.equal(await locks.request(lock.name, steal, () => 'thief'), 'thief');
  const error = await broken;
  assert.equal(error.code, DOMException.ABORT_ERR);
  assert.equal(error.cause, 'stolen');
  assert.ok(error.message.includes(JSON.stringify(lock.name)), error.message);
});

testInProcess('§4.1 step 3.4.1: the held lock has changed hands when request() returns', async () => {
  const { lock } = await hold(unique());
  const thief = request(lock.name, steal);
  assert.deepEqual(await modes(lock.name), [['exclusive'], []]);
  assert.equal(thief.ran, false, 'its callback runs in a task, as always');
  await microtasks();
  assert.equal(thief.ran, false);
});

test('§4.1 step 3.4.1: all holders of a shared lock are preempted', async () => {
  const name = unique();
  const readers = [];
  for (let i = 0; i < 3; i++) readers.push(await hold(name, { mode: 'shared' }));
  const errors = readers.map(({ released }) => rejectsDOM(released, 'AbortError'));
  const thief = request(name, steal);
  assert.deepEqual(await modes(name), [['exclusive'], []]);
  await Promise.all(errors);
  thief.release();
  await thief.released;
});

test('§4.1 step 3.4.1: locks of other names are left alone', async () => {
  const other = await hold(unique());
  await locks.request(unique(), steal, () => {});
  assert.equal(await available(other.lock.name), false);
  other.release('value');
  assert.equal(await other.released, 'value');
});

test('§4.1 step 3.4.2: a steal goes before the queue, and the queue stays as it was', async () => {
  const { lock } = await hold(unique());
  const order = [];
  const queued = [1, 2].map((n) => locks.request(lock.name, () => order.push(n)));
  const thief = locks.request(lock.name, steal, async () => {
    assert.deepEqual(await modes(lock.name), [['exclusive'], ['exclusive', 'exclusive']]);
    await turn();
    order.push('thief');
  });
  await Promise.all([thief, ...queued]);
  assert.deepEqual(order, ['thief', 1, 2]);
});

test('§4.1 step 3.4: the last thief wins', async () => {
  const name = unique();
  const first = await hold(name);
  const second = await hold(name, steal);
  const third = await hold(name, steal);
  for (const { released } of [first, second]) await rejectsDOM(released, 'AbortError');
  assert.deepEqual(await modes(name), [['exclusive'], []]);
  third.release('last');
  assert.equal(await third.released, 'last');
});

testInProcess('departure: stolen between grant and callback, the callback is not run, and it rejects', async () => {
  const name = unique();
  let ran = false;
  const preempted = rejectsDOM(
    locks.request(name, () => (ran = true)),
    'AbortError',
  );
  assert.equal(await locks.request(name, steal, () => 'thief'), 'thief');
  assert.equal((await preempted).cause, 'stolen');
  await turn();
  await turn();
  assert.equal(ran, false);
});

testInProcess('departure: the same holds for a thief, and for a request that was let in by a release', async () => {
  const name = unique();
  const holder = await hold(name);
  const waited = request(name);
  let thieves;
  // A promise settles between the grant of the next request and its callback.
  const stolen = holder.released.then(() => {
    thieves = [1, 2, 3].map(() => request(name, steal));
  });
  holder.release();
  await stolen;
  for (const preempted of [waited, thieves[0], thieves[1]]) {
    assert.equal((await rejectsDOM(preempted.released, 'AbortError')).cause, 'stolen');
    assert.equal(preempted.ran, false);
  }
  thieves[2].release('last');
  assert.equal(await thieves[2].released, 'last');
});

testInProcess('departure: the same holds for one that is stolen by code that runs while it is delivered', async () => {
  const name = unique();
  const holder = await hold(name);
  const waited = request(name);
  let thief;
  // The language looks for it in whatever a promise is resolved with.
  Object.defineProperty(Object.prototype, 'then', {
    configurable: true,
    get() {
      if (this?.name !== name || thief) return undefined;
      delete Object.prototype.then;
      thief = request(name, steal);
      return undefined;
    },
  });
  holder.release();
  assert.equal((await rejectsDOM(waited.released, 'AbortError')).cause, 'stolen');
  assert.equal(waited.ran, false);
  thief.release('last');
  assert.equal(await thief.released, 'last');
});

test('§4.1 step 3.4: what a preempted holder does later changes nothing', async () => {
  const name = unique();
  const preempted = await hold(name);
  const thief = await hold(name, steal);
  const queued = request(name);
  await rejectsDOM(preempted.released, 'AbortError');
  const before = await locks.query();
  preempted.release('late');
  await microtasks();
  await turn();
  await turn();
  assert.deepEqual(await locks.query(), before, 'the thief holds, the queue waits');
  assert.equal(queued.ran, false);
  await rejectsDOM(preempted.released, 'AbortError');
  thief.release();
  queued.release();
  await queued.released;
});

test('§4.1 step 3.4: a preempted holder that fails later is not an unhandled rejection', async () => {
  const name = unique();
  const preempted = await hold(name);
  await locks.request(name, steal, () => {});
  await rejectsDOM(preempted.released, 'AbortError');
  // The harness counts unhandled rejections as failures.
  preempted.fail(new Error('late'));
  await turn();
  await turn();
});

test('§4.1 step 3.4: a holder preempted within its own callback settles later, to no effect', async () => {
  const name = unique();
  const done = deferred();
  let thief;
  const preempted = locks.request(name, async () => {
    thief = locks.request(name, steal, () => 'thief');
    await turn();
    done.resolve();
  });
  assert.equal((await rejectsDOM(preempted, 'AbortError')).cause, 'stolen');
  assert.equal(await thief, 'thief');
  await done.promise;
});

test('§4.1 step 3.4: who was preempted may ask again, and waits behind the thief', async () => {
  const name = unique();
  const preempted = await hold(name);
  const thief = await hold(name, steal);
  const again = request(name);
  await turn();
  assert.deepEqual([again.ran, await modes(name)], [false, [['exclusive'], ['exclusive']]]);
  thief.release();
  again.release('again');
  assert.equal(await again.released, 'again');
  assert.equal((await rejection(preempted.released)).cause, 'stolen');
});

test('a thousand thieves in one task: all but the last are preempted, in their order', async () => {
  const name = unique();
  const order = [];
  const thieves = Array.from({ length: 1000 }, (_, i) =>
    locks.request(name, steal, () => i).catch((error) => {
      assert.equal(error.cause, 'stolen');
      order.push(i);
    }),
  );
  const values = await Promise.all(thieves);
  assert.deepEqual(order, Array.from({ length: 999 }, (_, i) => i));
  assert.equal(values.at(-1), 999);
});
