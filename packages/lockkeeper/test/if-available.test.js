/**
 * The ifAvailable option: §4.1 step 3.5.1.
 *
 * WPT: ifAvailable (all of it), held ("held lock prevents the same client from acquiring it").
 */

import { assert, test, turn } from './harness.js';
import { available, hold, locks, modes, rejection, request, unique } from './helpers.js';

const ifAvailable = { ifAvailable: true };

test('§4.1 step 3.5.1: what nobody holds is granted', async () => {
  assert.equal(await locks.request(unique(), ifAvailable, (lock) => lock.mode), 'exclusive');
});

test('§4.1 step 3.5.1: what is held is not waited for: the callback gets null', async () => {
  const { lock } = await hold(unique());
  assert.equal(await locks.request(lock.name, ifAvailable, (lock) => lock), null);
});

test('§4.1 step 3.5.1.2: the promise resolves with what the callback makes of null', async () => {
  const { lock } = await hold(unique());
  const thrown = { name: 'test' };
  const fail = () => {
    throw thrown;
  };
  assert.equal(await locks.request(lock.name, ifAvailable, () => 123), 123);
  assert.equal(await locks.request(lock.name, ifAvailable, async () => 123), 123);
  const thenable = { then: (resolve) => resolve(123) };
  assert.equal(await locks.request(lock.name, ifAvailable, () => thenable), 123);
  assert.equal(await rejection(locks.request(lock.name, ifAvailable, fail)), thrown);
  assert.equal(await rejection(locks.request(lock.name, ifAvailable, async () => fail())), thrown);
});

test('§4.1 step 3.5.1: a refused request is in no snapshot, not even while its callback runs', async () => {
  const { lock } = await hold(unique());
  const seen = await locks.request(lock.name, ifAvailable, async () => {
    await turn();
    return modes(lock.name);
  });
  assert.deepEqual(seen, [['exclusive'], []]);
});

test('§4.1 step 3.5.1: a lock of another name does not matter', async () => {
  await hold(unique());
  assert.equal(await available(unique()), true);
});

test('§2.5 step 9: shared is available beside shared, and nothing else is beside anything', async () => {
  const [shared, exclusive] = [unique(), unique()];
  await hold(shared, { mode: 'shared' });
  await hold(exclusive);
  assert.equal(await available(shared, 'shared'), true);
  assert.equal(await available(shared, 'exclusive'), false);
  assert.equal(await available(exclusive, 'shared'), false);
  assert.equal(await available(exclusive, 'exclusive'), false);
});

test('§2.5 step 7: shared is not available behind a queued exclusive request', async () => {
  const name = unique();
  const { release } = await hold(name, { mode: 'shared' });
  const exclusive = request(name);
  assert.equal(await available(name, 'shared'), false);
  assert.deepEqual(await modes(name), [['shared'], ['exclusive']]);
  release();
  exclusive.release();
  await exclusive.released;
  assert.equal(await available(name, 'shared'), true);
});

test('§4.1 step 3.5.1: a lock that is granted is not available, before its callback runs', async () => {
  const name = unique();
  const first = request(name);
  const second = available(name);
  assert.equal(first.ran, false);
  assert.equal(await second, false);
});

test('§4.1 step 3.5.1: it is available when the promise of its holder settles', async () => {
  const { lock, release, released } = await hold(unique());
  const after = released.then(() => available(lock.name));
  release();
  assert.equal(await after, true);
});

test('§4.1 step 3.5.1: one that was granted is held, as others are', async () => {
  const name = unique();
  const holder = await hold(name, ifAvailable);
  const second = request(name);
  await turn();
  assert.equal(second.ran, false);
  holder.release();
  second.release();
  await second.released;
});
