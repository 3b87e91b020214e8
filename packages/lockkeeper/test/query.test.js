/**
 * query(): §3.2.2 and §4.5, for one thread (more of them are in threads.test.js).
 *
 * WPT: query-empty, query (all but what needs workers), query-ordering (for one client).
 */

import { assert, test, turn } from './harness.js';
import { daemon, hold, locks, modes, request, unique } from './helpers.js';

test('§4.5: with no locks and no requests, both lists are empty', async () => {
  assert.deepEqual(await locks.query(), { held: [], pending: [] });
});

test('§4.5: a held lock is listed once, with its mode', async () => {
  for (const mode of ['exclusive', 'shared']) {
    const { lock } = await hold(unique(), { mode });
    assert.deepEqual(await modes(lock.name), [[mode], []]);
  }
});

test('§4.5: each holder of a shared lock is listed', async () => {
  const name = unique();
  await hold(name, { mode: 'shared' });
  await hold(name, { mode: 'shared' });
  assert.deepEqual(await modes(name), [['shared', 'shared'], []]);
});

test('§4.5: a request that waits is listed as pending, with its mode', async () => {
  const name = unique();
  await hold(name);
  for (const mode of ['shared', 'exclusive', 'shared']) request(name, { mode });
  assert.deepEqual(await modes(name), [['exclusive'], ['shared', 'exclusive', 'shared']]);
});

test('§4.5: the pending requests of one name come in the order in which they were made', async () => {
  const [a, b] = [unique('a'), unique('b')];
  await hold(a);
  await hold(b);
  const order = 'aabbabba';
  for (const [i, letter] of [...order].entries()) {
    request(letter === 'a' ? a : b, { mode: i % 3 === 0 ? 'shared' : 'exclusive' });
  }
  const expected = (wanted) =>
    [...order].flatMap((letter, i) => (letter === wanted ? [i % 3 === 0 ? 'shared' : 'exclusive'] : []));
  assert.deepEqual([(await modes(a))[1], (await modes(b))[1]], [expected('a'), expected('b')]);
});

test('§4.5: each entry has its own name, also if its neighbours have the same', async () => {
  const [a, wide, empty] = [unique('a'), unique('🔒\ud83d'), ''];
  const [order, all] = [[a, a, wide, wide, empty, empty, a, wide, a], [a, empty, wide]];
  await Promise.all(all.map((name) => hold(name)));
  for (const name of order) request(name);
  const { held, pending } = await locks.query();
  const names = (list) => list.map(({ name }) => name).filter((name) => all.includes(name));
  assert.deepEqual([names(held), names(pending)], [all, order]);
});

test('§4.5: a request appears in the snapshot as soon as request() has returned', async () => {
  const name = unique();
  const first = request(name);
  const granted = locks.query();
  const second = request(name);
  const queued = locks.query();
  const of = ({ held, pending }) => [held, pending].map((list) => list.filter((i) => i.name === name).length);
  assert.deepEqual([of(await granted), of(await queued)], [[1, 0], [1, 1]]);
  // A daemon's answer takes its time, in which the first may run.
  if (!daemon) assert.deepEqual([first.ran, second.ran], [false, false], 'a snapshot of then, not of now');
});

test('§4.5: a lock leaves the snapshot with its release', async () => {
  const { lock, release, released } = await hold(unique());
  release();
  await released;
  assert.deepEqual(await modes(lock.name), [[], []]);
});

test('§4.5: all locks and requests of one thread have one clientId', async () => {
  const [a, b] = [unique(), unique()];
  await hold(a);
  await hold(b, { mode: 'shared' });
  request(a);
  const { held, pending } = await locks.query();
  const ids = [...held, ...pending].map(({ clientId }) => clientId);
  assert.equal(ids.length, 3);
  assert.deepEqual([...new Set(ids)].length, 1);
  assert.notEqual(ids[0], '');
});

test('§3.2.2: a snapshot belongs to who asked for it: to change it changes nothing', async () => {
  const { lock } = await hold(unique());
  const first = await locks.query();
  first.held.length = 0;
  first.pending.push('nonsense');
  const second = await locks.query();
  second.held[0].name = 'other';
  assert.deepEqual(await modes(lock.name), [['exclusive'], []]);
});

test('§3.2.2: two snapshots of one state are equal', async () => {
  const names = Array.from({ length: 20 }, () => unique());
  for (const name of names) {
    await hold(name, { mode: 'shared' });
    request(name);
  }
  assert.deepEqual(await locks.query(), await locks.query());
});

test('§3.2.2: the promise of query() settles in a microtask, after those before it', async () => {
  const order = [];
  Promise.resolve().then(() => order.push('before'));
  const query = locks.query().then(() => order.push('query'));
  order.push('returned');
  await query;
  assert.deepEqual(order, ['returned', 'before', 'query']);
});

test('§4.5: ten thousand pending requests are all listed', async () => {
  const name = unique('many');
  const { release } = await hold(name);
  const all = Array.from({ length: 10_000 }, () => locks.request(name, () => {}));
  const { held, pending } = await locks.query();
  assert.deepEqual([held.length, pending.length], [1, 10_000]);
  assert.ok(pending.every((info) => info.name === name && info.mode === 'exclusive'));
  release();
  await Promise.all(all);
});

test('§4.5: names, modes and clients of a large snapshot are not mixed up', async () => {
  const kinds = ['', 'a', 'ä', '漢字', '💧', '\uD800', 'x'.repeat(300)];
  const held = [];
  for (let i = 0; i < 70; i++) {
    const name = unique(kinds[i % kinds.length]);
    const mode = i % 2 ? 'shared' : 'exclusive';
    request(name, { mode });
    held.push({ name, mode });
  }
  await turn();
  const snapshot = await locks.query();
  assert.deepEqual(
    snapshot.held.map(({ name, mode }) => ({ name, mode })),
    held,
  );
});
