/**
 * How agents end (§2.6: terminate remaining locks and requests), and what keeps them from it.
 *
 * WPT: workers ("Terminated Worker"), crashtests/after-worker-termination,
 * crashtests/worker-termination.
 */

import { locks } from 'lockkeeper';
import { assert, run, runtime, startWorker, test, turn, until } from './harness.js';
import { available, hold, modes, request, unique, untilPending } from './helpers.js';

const agent = () => startWorker('agent.js');

/** Ways in which a worker thread ends: what to do, and its exit code. */
const ends = {
  'is terminated': [(worker) => worker.terminate(), 1],
  'calls process.exit': [(worker) => void worker.ask('exit', 3).catch(() => {}), 3],
  throws: [(worker) => void worker.ask('fail').catch(() => {}), 1],
  'has nothing left to do': [(worker) => void worker.ask('finish').catch(() => {}), 0],
};

for (const [how, [end, code]] of Object.entries(ends)) {
  test(`§2.6 step 2: a worker that ${how} while it holds a lock passes it on`, async () => {
    const name = unique();
    const worker = agent();
    await worker.ask('request', 'a', name);
    await worker.ask('granted', 'a');
    const next = locks.request(name, () => 'next');
    await turn();
    assert.deepEqual(await modes(name), [['exclusive'], ['exclusive']]);
    end(worker);
    assert.equal(await next, 'next');
    assert.equal(await worker.exited, code);
  });

  test(`§2.6: all that a worker had goes when it ${how}`, async () => {
    const names = Array.from({ length: 20 }, () => unique());
    const worker = agent();
    const [held, waiting] = [names.slice(0, 10), names.slice(10)];
    for (const name of waiting) await hold(name);
    for (const name of held) await worker.ask('request', name, name, { mode: 'shared' });
    for (const name of held) await worker.ask('granted', name);
    await worker.ask('acquire', 'scope', [unique(), unique()]);
    // It has work to do as long as a request of its own waits, so that one who finishes has none.
    if (code !== 0) for (const name of waiting) await worker.ask('request', name, name);
    const next = held.map((name) => request(name));
    end(worker);
    for (const { release, released } of next) {
      release();
      await released;
    }
    const { pending } = await locks.query();
    assert.deepEqual(pending, []);
    for (const name of held) assert.equal(await available(name), true);
  });
}

test('§2.6 step 1: the request of a worker that is terminated while it waits leaves the queue', async () => {
  const name = unique();
  const holder = await hold(name);
  const worker = agent();
  await worker.ask('request', 'a', name);
  const next = request(name);
  assert.deepEqual(await modes(name), [['exclusive'], ['exclusive', 'exclusive']]);
  worker.terminate();
  await worker.exited;
  await untilPending(name, 1);
  holder.release();
  next.release('next');
  assert.equal(await next.released, 'next');
});

test('§2.6 step 1: shared requests behind it are let in', async () => {
  const name = unique();
  await hold(name, { mode: 'shared' });
  const worker = agent();
  await worker.ask('request', 'a', name);
  const reader = request(name, { mode: 'shared' }, () => reader.release());
  assert.deepEqual(await modes(name), [['shared'], ['exclusive', 'shared']]);
  worker.terminate();
  await reader.released;
  assert.equal(reader.ran, true);
});

test('§2.6: its locks go to those that wait in the order in which they asked, across threads', async () => {
  const name = unique();
  const [first, second, third] = [agent(), agent(), agent()];
  for (const worker of [first, second, third]) await worker.ask('request', 'a', name);
  first.terminate();
  await second.ask('granted', 'a');
  assert.deepEqual(await modes(name), [['exclusive'], ['exclusive']]);
  second.terminate();
  await third.ask('granted', 'a');
  assert.deepEqual(await modes(name), [['exclusive'], []]);
});

test('§2.6: a worker whose code still runs still holds: an endless loop, until it is stopped', async () => {
  const { stdout, stderr, code } = await run(new URL('fixtures/terminate-busy.js', import.meta.url));
  // Deno 2.9 never stops such a worker, not even after the event that says so.
  const right = runtime === 'deno' ? ['passed on', 'still runs, still holds'] : ['passed on'];
  assert.ok(right.includes(stdout.trim()), `${stdout}${stderr}`);
  assert.equal(code, 0);
});

test('§2.6: workers that are terminated in the midst of everything leave the manager in order', async () => {
  const name = unique();
  for (let round = 0; round < 5; round++) {
    const workers = [1, 2, 3].map(() => startWorker('contender.js', { name }));
    for (const worker of workers) await worker.message();
    for (let i = 0; i < 20; i++) await locks.request(name, { steal: true }, () => {}).catch(() => {});
    for (const worker of workers) worker.terminate();
    for (const worker of workers) await worker.exited;
  }
  await until(async () => {
    const { held, pending } = await locks.query();
    return held.length + pending.length === 0;
  });
  // In Deno, one that was terminated may steal a last time before it stops.
  await until(() => locks.request(name, () => true).catch(() => false));
});

test('§2.6: a worker that is terminated as it starts does no harm', async () => {
  const name = unique();
  for (let i = 0; i < 5; i++) {
    const worker = startWorker('waiter.js', { name });
    for (let turns = 0; turns < i * 50; turns++) await turn();
    worker.terminate();
    await worker.exited;
  }
  assert.equal(await locks.request(name, () => 'mine'), 'mine');
});

for (const acquire of [false, true]) {
  const which = acquire ? 'acquire()' : 'request()';

  test(`${which} that waits keeps its thread alive until it is granted`, async () => {
    const name = unique();
    const { release } = await hold(name);
    const worker = startWorker('waiter.js', { name, acquire });
    let exited = false;
    void worker.exited.then(() => (exited = true));
    await untilPending(name, 1);
    // Others come and go meanwhile, each as long as that one would take to end.
    for (let i = 0; i < 2; i++) assert.equal(await startWorker('waiter.js', { name: unique() }).exited, 0);
    assert.equal(exited, false);
    assert.deepEqual(await modes(name), [['exclusive'], ['exclusive']]);
    release();
    assert.equal(await worker.message(), 'granted');
    assert.equal(await worker.exited, 0);
  });

  test(`a lock of ${which} that is held does not keep its thread alive, and ends with it`, async () => {
    const name = unique();
    const worker = startWorker('holder.js', { name, acquire });
    assert.equal(await worker.message(), 'held');
    assert.equal(await worker.exited, 0);
    assert.equal(await locks.request(name, () => 'next'), 'next');
  });
}

const programs = {
  waiting: ['granted', 'waits for a lock, and ends when it has been granted'],
  'waiting to acquire': ['granted', 'waits for acquire(), and ends when it has been granted'],
  'waiting with a signal': ['TimeoutError', 'waits with a signal, and ends when it is aborted'],
  granted: ['granted', 'runs a callback whose lock was granted at once'],
  refused: ['null', 'runs a callback that is told null'],
  held: ['held', 'does not live on for a lock whose callback has begun'],
  acquired: ['held', 'does not live on for a lock that it has acquired'],
  aborted: ['aborted', 'does not live on for a request that was aborted'],
  'timed out': ['TimeoutError', 'does not live on for a request whose time is up'],
  'granted in time': ['granted', 'does not live on for the timeout of a request that was granted'],
  stolen: ['stolen', 'does not live on for a lock that was stolen'],
  'released and passed on': ['first\nsecond', 'runs the callbacks that one release after another lets run'],
  closed: ['closed\nclosed', 'does not live on for a request of a manager that it has closed'],
  nothing: ['nothing', 'does not live on because it has imported the package'],
  'exit in a crowd': ['exit', 'exits at once, whatever its threads are doing'],
};
for (const [program, [output, what]] of Object.entries(programs)) {
  test(`a process ${what}`, async () => {
    const ended = await run(new URL('fixtures/lifetime.js', import.meta.url), [program]);
    assert.deepEqual([ended.stdout.trim(), ended.code], [output, 0], ended.stderr);
  });
}

test('waiting costs no processor time', async () => {
  const name = unique();
  const { release } = await hold(name);
  const workers = [agent(), agent()];
  for (const worker of workers) await worker.ask('request', 'a', name);
  const mine = request(name);
  // The runtime itself has something to do while threads are new. A wait that polls would never be
  // quiet.
  await until(async () => {
    const wall = performance.now();
    const before = process.cpuUsage();
    await new Promise((resolve) => setTimeout(resolve, 800));
    const { user, system } = process.cpuUsage(before);
    return (user + system) / 1000 / (performance.now() - wall) < 0.3;
  });
  assert.deepEqual(await modes(name), [['exclusive'], ['exclusive', 'exclusive', 'exclusive']]);
  release();
  for (const worker of workers) await worker.ask('release', 'a');
  mine.release();
  await mine.released;
});
