/**
 * Exclusive and shared: §2.3, §2.5 (grantable), §4.4.
 *
 * WPT: mode-exclusive, mode-shared, mode-mixed (all of them).
 */

import { assert, deferred, test, turn } from './harness.js';
import { hold, locks, modes, request, unique } from './helpers.js';

const shared = { mode: 'shared' };

/** Requests that wait, for "s" and "x" in that order, each held until released. */
const queue = (name, pattern) =>
  [...pattern].map((mode) => request(name, { mode: mode === 's' ? 'shared' : 'exclusive' }));

/** The state of a name in that form: what is held, what waits. */
const state = async (name) => (await modes(name)).map((list) => list.map((mode) => mode[0]).join(''));

test('§2.3: shared locks of one name are held together', async () => {
  const name = unique();
  const all = queue(name, 'sss');
  assert.deepEqual(await state(name), ['sss', '']);
  await turn();
  await turn();
  assert.ok(all.every(({ ran }) => ran), 'no callback waits for another');
});

test('§2.3: shared locks are granted in the order in which they were requested', async () => {
  const [a, b, c] = [unique(), unique(), unique()];
  const order = [];
  await Promise.all([a, b, c, a, b, c].map((name, i) => locks.request(name, shared, () => order.push(i))));
  assert.deepEqual(order, [0, 1, 2, 3, 4, 5]);
});

test('§2.3: a shared lock can be taken within a shared lock of the same name', async () => {
  const name = unique();
  const inner = () => locks.request(name, shared, () => 'inner');
  assert.equal(await locks.request(name, shared, inner), 'inner');
});

test('§2.5 step 8: an exclusive request waits for every shared lock', async () => {
  const name = unique();
  const [first, second, third] = queue(name, 'ssx');
  first.release();
  await first.released;
  assert.deepEqual(await state(name), ['s', 'e']);
  assert.equal(third.ran, false);
  second.release();
  await second.released;
  assert.deepEqual(await state(name), ['e', '']);
});

test('§2.5 step 9: a shared request waits for an exclusive lock', async () => {
  const name = unique();
  const [exclusive, reader] = queue(name, 'xs');
  await turn();
  assert.equal(reader.ran, false);
  exclusive.release();
  await exclusive.released;
  assert.deepEqual(await state(name), ['s', '']);
});

test('§2.5 step 7: a shared request does not pass an exclusive one that waits', async () => {
  const name = unique();
  const [reader, writer, late] = queue(name, 'sxs');
  await turn();
  assert.deepEqual([await state(name), late.ran], [['s', 'es'], false]);
  reader.release();
  await reader.released;
  assert.deepEqual(await state(name), ['e', 's']);
  writer.release();
  await writer.released;
  assert.deepEqual(await state(name), ['s', '']);
});

test('§4.4: a release lets in all shared requests before the next exclusive one', async () => {
  const name = unique();
  const all = queue(name, 'xsssssxss');
  assert.deepEqual(await state(name), ['e', 'sssssess']);
  all[0].release();
  await all[0].released;
  assert.deepEqual(await state(name), ['sssss', 'ess']);
  for (const { release } of all.slice(1, 6)) release();
  await Promise.all(all.slice(1, 6).map(({ released }) => released));
  assert.deepEqual(await state(name), ['e', 'ss']);
  all[6].release();
  await all[6].released;
  assert.deepEqual(await state(name), ['ss', '']);
});

test('§4.4: requests of mixed modes are granted in their order', async () => {
  const [a, b] = [unique(), unique()];
  const { promise: blocked, resolve: unblock } = deferred();
  const order = [];
  const readers = [1, 2, 3].map((n) =>
    locks.request(a, shared, () => {
      order.push(`shared ${n}`);
      return blocked;
    }),
  );
  const writer = locks.request(a, () => order.push('exclusive'));
  await locks.request(b, () => order.push('other'));
  assert.deepEqual(order, ['shared 1', 'shared 2', 'shared 3', 'other']);
  unblock();
  await Promise.all([...readers, writer]);
  assert.deepEqual(order, ['shared 1', 'shared 2', 'shared 3', 'other', 'exclusive']);
});

test('§2.3: readers and writers never meet, whatever the order', async () => {
  const name = unique();
  let readers = 0;
  let writers = 0;
  let most = 0;
  // A fixed sequence that looks like none: the test is the same every time.
  let seed = 42;
  const random = () => (seed = (seed * 1_103_515_245 + 12_345) % 2 ** 31) / 2 ** 31;
  const read = async () => {
    readers += 1;
    most = Math.max(most, readers);
    assert.equal(writers, 0);
    if (random() < 0.5) await turn();
    readers -= 1;
  };
  const write = async () => {
    writers += 1;
    assert.deepEqual([readers, writers], [0, 1]);
    if (random() < 0.5) await turn();
    writers -= 1;
  };
  const pick = () => (random() < 0.7 ? locks.request(name, shared, read) : locks.request(name, write));
  for (let round = 0; round < 20; round++) await Promise.all(Array.from({ length: 50 }, pick));
  assert.ok(most > 1, 'readers did run together');
});

test('§2.5: a lock and a request of each mode stand side by side under different names', async () => {
  const held = await Promise.all(['exclusive', 'shared'].map((mode) => hold(unique(), { mode })));
  const states = await Promise.all(held.map(({ lock }) => state(lock.name)));
  assert.deepEqual(states, [
    ['e', ''],
    ['s', ''],
  ]);
});
