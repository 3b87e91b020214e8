/**
 * Agents: all threads of a process share one lock manager (§2.2), and each is a client of its own
 * (§2.4).
 *
 * WPT: workers (all of it), query (different contexts, a deadlock seen from outside),
 * query-ordering (several clients).
 */

import { locks } from 'lockkeeper';
import { assert, startWorker, test, turn } from './harness.js';
import { available, hold, modes, rejectsDOM, request, unique, untilPending } from './helpers.js';

const agent = () => startWorker('agent.js');

test('§2.2: locks exclude across threads: not one of many increments is lost', async () => {
  const name = unique();
  const times = 2_000;
  const buffer = new SharedArrayBuffer(4);
  const numbers = new Int32Array(buffer);
  const workers = [agent(), agent(), agent()];
  const all = workers.map((worker) => worker.ask('increment', name, times, buffer));
  for (let i = 0; i < times; i++) {
    await locks.request(name, async () => {
      const value = numbers[0];
      await turn();
      numbers[0] = value + 1;
    });
  }
  await Promise.all(all);
  assert.equal(numbers[0], times * 4);
});

test('§2.2: an exclusive lock of one thread keeps the others out until it is released', async () => {
  const name = unique();
  const worker = agent();
  await worker.ask('request', 'a', name);
  await worker.ask('granted', 'a');
  const blocked = request(name);
  assert.equal(await available(name), false);
  assert.equal(blocked.ran, false);
  await worker.ask('release', 'a', 'value');
  blocked.release('mine');
  assert.equal(await blocked.released, 'mine');
  assert.deepEqual(await worker.ask('outcome', 'a'), { value: 'value' });
});

test('§2.2: the same between two worker threads', async () => {
  const name = unique();
  const [first, second] = [agent(), agent()];
  await first.ask('request', 'a', name);
  await first.ask('granted', 'a');
  await second.ask('request', 'a', name);
  await second.ask('request', 'b', name, { ifAvailable: true });
  assert.equal((await second.ask('granted', 'b')).lock, null);
  assert.deepEqual(await modes(name), [['exclusive'], ['exclusive']]);
  await first.ask('release', 'a');
  assert.deepEqual((await second.ask('granted', 'a')).lock, { name, mode: 'exclusive' });
});

test('§2.3: shared locks are held by several threads together', async () => {
  const name = unique();
  const worker = agent();
  await worker.ask('request', 'a', name, { mode: 'shared' });
  await worker.ask('granted', 'a');
  const mine = await hold(name, { mode: 'shared' });
  assert.deepEqual(await modes(name), [['shared', 'shared'], []]);
  await worker.ask('request', 'b', name);
  assert.equal(await available(name, 'shared'), false);
  mine.release();
  await worker.ask('release', 'a');
  assert.equal((await worker.ask('granted', 'b')).lock.mode, 'exclusive');
});

test('§2.5: requests of several threads are granted in the order in which they were made', async () => {
  const name = unique();
  const { release } = await hold(name);
  const workers = [agent(), agent(), agent()];
  const order = [];
  const turns = [0, 1, 2, 'main', 2, 1, 0, 'main', 1, 0, 2];
  const granted = [];
  for (const [i, who] of turns.entries()) {
    if (who === 'main') {
      granted.push(locks.request(name, () => void order.push(i)));
    } else {
      await workers[who].ask('request', i, name);
      const held = workers[who].ask('granted', i).then(() => {
        order.push(i);
        return workers[who].ask('release', i);
      });
      granted.push(held);
    }
    await untilPending(name, i + 1);
  }
  release();
  await Promise.all(granted);
  assert.deepEqual(order, [...turns.keys()]);
});

test('§4.5: query() sees the locks and requests of all threads, from every thread', async () => {
  const name = unique();
  const [first, second] = [agent(), agent()];
  await first.ask('request', 'a', name);
  await second.ask('request', 'a', name, { mode: 'shared' });
  request(name);
  const here = await locks.query();
  const summary = ({ held, pending }) => [held, pending].map((list) => list.map((info) => info.mode));
  assert.deepEqual(summary(here), [['exclusive'], ['shared', 'exclusive']]);
  assert.deepEqual(await first.ask('query'), here);
  assert.deepEqual(await second.ask('query'), here);
  await first.ask('release', 'a');
  await second.ask('granted', 'a');
  await second.ask('release', 'a');
});

test('§2.4: each thread has a clientId of its own, for all it has', async () => {
  const [first, second] = [agent(), agent()];
  const names = [unique(), unique()];
  for (const worker of [first, second]) {
    for (const name of names) await worker.ask('request', name, name, { mode: 'shared' });
  }
  for (const name of names) await hold(name, { mode: 'shared' });
  const { held } = await locks.query();
  const idsOf = (name) => held.filter((info) => info.name === name).map(({ clientId }) => clientId);
  assert.equal(new Set(idsOf(names[0])).size, 3);
  assert.deepEqual(idsOf(names[0]), idsOf(names[1]));
});

test('§2.4: a thread that comes later is not taken for one that has ended', async () => {
  const ids = new Set();
  for (let i = 0; i < 3; i++) {
    const worker = agent();
    const name = unique();
    await worker.ask('request', 'a', name);
    const { held } = await locks.query();
    ids.add(held.find((info) => info.name === name).clientId);
    worker.terminate();
    await worker.exited;
  }
  assert.equal(ids.size, 3);
});

test('§4.5: pending requests of several clients come in the order in which they were made', async () => {
  const name = unique();
  const { release } = await hold(name);
  const workers = [agent(), agent(), agent()];
  const ids = [];
  for (const worker of workers) {
    const own = unique();
    await worker.ask('request', own, own);
    const { held } = await locks.query();
    ids.push(held.find((info) => info.name === own).clientId);
  }
  const order = [2, 0, 1, 1, 0, 2];
  for (const [i, who] of order.entries()) await workers[who].ask('request', i, name);
  const { pending } = await locks.query();
  assert.deepEqual(pending.map(({ clientId }) => clientId), order.map((who) => ids[who]));
  release();
});

test('§4.5: a deadlock of two threads can be seen in query()', async () => {
  const [a, b] = [unique('a'), unique('b')];
  const worker = agent();
  await worker.ask('request', 'a', a);
  await worker.ask('granted', 'a');
  await hold(b);
  await worker.ask('request', 'b', b);
  request(a);
  const { held, pending } = await locks.query();
  const idOf = (list, name) => list.find((info) => info.name === name).clientId;
  assert.equal(idOf(held, a), idOf(pending, b));
  assert.equal(idOf(held, b), idOf(pending, a));
  assert.notEqual(idOf(held, a), idOf(held, b));
});

test('§4.1 step 3.4: a steal from another thread rejects on the thread that was preempted', async () => {
  const name = unique();
  const worker = agent();
  await worker.ask('request', 'a', name);
  await worker.ask('granted', 'a');
  assert.equal(await locks.request(name, { steal: true }, () => 'thief'), 'thief');
  const { error } = await worker.ask('outcome', 'a');
  assert.deepEqual([error.name, error.cause], ['AbortError', 'stolen']);
  assert.equal(await worker.ask('signal', 'a'), true, 'lock.signal says it too');
  await worker.ask('release', 'a', 'late');
  assert.equal((await worker.ask('outcome', 'a')).error.name, 'AbortError');
});

test('§4.1 step 3.4: a worker thread steals from this one', async () => {
  const name = unique();
  const mine = await hold(name);
  const worker = agent();
  const broken = rejectsDOM(mine.released, 'AbortError');
  await worker.ask('request', 'a', name, { steal: true });
  assert.equal((await worker.ask('granted', 'a')).lock.name, name);
  assert.equal((await broken).cause, 'stolen');
  mine.release('late');
  await turn();
  assert.equal(await available(name), false, 'what the preempted holder does later changes nothing');
});

test('§4.1 step 3.4: threads that steal from each other all the time lose nothing but locks', async () => {
  const name = unique();
  const workers = [agent(), agent()];
  const rounds = 100;
  const all = [];
  for (let i = 0; i < rounds; i++) {
    for (const worker of workers) {
      all.push(worker.ask('request', i, name, { steal: true }).then(() => worker.ask('release', i, 'held')));
    }
    const mine = locks.request(name, { steal: true }, () => {});
    all.push(mine.catch((error) => assert.equal(error.cause, 'stolen')));
  }
  await Promise.all(all);
  for (const worker of workers) {
    for (let i = 0; i < rounds; i++) {
      const { value, error } = await worker.ask('outcome', i);
      assert.ok(value === 'held' || error.cause === 'stolen');
    }
  }
});

test('§4.3: an abort on another thread lets in what waits behind it here', async () => {
  const name = unique();
  const reader = await hold(name, { mode: 'shared' });
  const worker = agent();
  await worker.ask('request', 'a', name, { abortable: true });
  const second = request(name, { mode: 'shared' });
  assert.deepEqual(await modes(name), [['shared'], ['exclusive', 'shared']]);
  await worker.ask('abort', 'a', 'aborted');
  assert.deepEqual(await modes(name), [['shared', 'shared'], []]);
  assert.equal((await worker.ask('outcome', 'a')).reason, 'aborted');
  reader.release();
  second.release();
  await second.released;
});

test('§4.4 step 2.14: the callback runs in the context of its request(), whoever released', async () => {
  const name = unique();
  const { release } = await hold(name);
  const worker = agent();
  await worker.ask('request', 'a', name);
  release();
  assert.equal((await worker.ask('granted', 'a')).store, 'a');
});

test('§2.1: lone surrogates are the same name on every thread', async () => {
  const worker = agent();
  await worker.ask('request', 'a', '\uD800');
  assert.deepEqual((await worker.ask('granted', 'a')).lock.name, '\uD800');
  assert.equal(await available('\uD800'), false);
  assert.equal(await available('\uFFFD'), true);
  const { held } = await worker.ask('query');
  assert.equal(held[0].name, '\uD800');
});

test('two threads that hand one lock to and fro do so in turn', async () => {
  const name = unique();
  const buffer = new SharedArrayBuffer(4);
  const workers = [agent(), agent()];
  await Promise.all(workers.map((worker) => worker.ask('increment', name, 500, buffer)));
  assert.equal(new Int32Array(buffer)[0], 1000);
});

test('a burst of grants that another thread gives is delivered whole', async () => {
  const name = unique();
  const worker = agent();
  await worker.ask('request', 'a', name);
  await worker.ask('granted', 'a');
  // More than one call collects: the mail has room for 256.
  const all = Array.from({ length: 1_000 }, (_, i) => locks.request(name, { mode: 'shared' }, () => i));
  await worker.ask('release', 'a');
  const values = await Promise.all(all);
  assert.ok(values.every((value, i) => value === i));
});

test('a burst of locks that another thread steals is told whole', async () => {
  const name = unique();
  const worker = agent();
  const readers = [];
  for (let i = 0; i < 600; i++) readers.push(request(name, { mode: 'shared' }));
  await worker.ask('request', 'a', name, { steal: true });
  for (const { released } of readers) {
    assert.equal((await rejectsDOM(released, 'AbortError')).cause, 'stolen');
  }
  await worker.ask('granted', 'a');
});
