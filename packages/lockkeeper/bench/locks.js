/**
 * One measurement in one process: `locks.js ROW ENGINE` prints what it measured as JSON. `run.js`
 * runs them all. ENGINE is `lockkeeper`, or `native` for the runtime's own `navigator.locks`.
 */

import { isMainThread, parentPort, Worker, workerData } from 'node:worker_threads';

const [row, engine] = isMainThread ? process.argv.slice(2) : [workerData.row, workerData.engine];
const locks = engine === 'native' ? globalThis.navigator?.locks : (await import('lockkeeper')).locks;

const nothing = async () => {};
const turn = () => new Promise((resolve) => setImmediate(resolve));

/** Microseconds that `work` takes, per one of `count`. */
async function time(count, work) {
  const start = performance.now();
  await work();
  return ((performance.now() - start) * 1000) / count;
}

/**
 * The tenth part of the blocks is quicker than this: what the machine's other work did not touch.
 */
function quick(blocks) {
  return blocks.sort((a, b) => a - b)[Math.floor(blocks.length / 10)];
}

async function sequential() {
  const N = 1500;
  const [turns, requests] = [[], []];
  for (let block = 0; block < 100; block++) {
    turns.push(await time(N, async () => { for (let i = 0; i < N; i++) await turn(); }));
    requests.push(await time(N, async () => { for (let i = 0; i < N; i++) await locks.request('name', nothing); }));
  }
  // The first blocks warm up.
  return { us: quick(requests.slice(20)), turn: quick(turns.slice(20)) };
}

/** Requests that are made without waiting for each other. */
async function atOnce(name, options = {}) {
  const N = 10_000;
  const blocks = [];
  for (let block = 0; block < 5; block++) {
    const all = () => Promise.all(Array.from({ length: N }, (_, i) => locks.request(name(i), options, nothing)));
    blocks.push(await time(N, all));
  }
  return { us: Math.min(...blocks) };
}

/** Exclusive requests that wait behind one lock, from the first request to the last release. */
async function waiters(N) {
  const drain = async (count) => {
    const { promise, resolve } = withResolvers();
    const first = locks.request('name', () => promise);
    const all = Array.from({ length: count }, () => locks.request('name', nothing));
    resolve();
    await Promise.all([first, ...all]);
  };
  // Few enough for an engine that recurses over its queue.
  for (let i = 0; i < 100; i++) await drain(100);
  return { us: await time(N, () => drain(N)) };
}

/** Names that are held all at once, from the first request to the last release. */
async function held() {
  const N = 20_000;
  const us = await time(N, async () => {
    const { promise, resolve } = withResolvers();
    let count = 0;
    const { promise: allHeld, resolve: last } = withResolvers();
    const hold = () => {
      if (++count === N) last();
      return promise;
    };
    const all = Array.from({ length: N }, (_, i) => locks.request(`name ${i}`, hold));
    await allHeld;
    resolve();
    await Promise.all(all);
  });
  return { us };
}

async function query() {
  const N = 10_000;
  const { promise, resolve } = withResolvers();
  const all = [locks.request('name', () => promise)];
  for (let i = 0; i < N; i++) all.push(locks.request('name', nothing));
  await turn();
  const blocks = [];
  for (let block = 0; block < 20; block++) {
    blocks.push(await time(1, async () => {
      const { pending } = await locks.query();
      if (pending.length !== N) throw new Error(`${pending.length} pending`);
    }));
  }
  resolve();
  await Promise.all(all);
  return { us: Math.min(...blocks) };
}

/**
 * Bytes that one more waiting request takes, the promise and callback it cannot do without
 * included.
 */
async function memory() {
  const N = 100_000;
  const used = () => {
    for (let i = 0; i < 3; i++) (globalThis.gc ?? globalThis.Bun?.gc)?.(true);
    return process.memoryUsage().rss;
  };
  const { promise, resolve } = withResolvers();
  const all = [locks.request('name', () => promise)];
  await turn();
  const before = used();
  for (let i = 0; i < N; i++) all.push(locks.request('name', nothing));
  await turn();
  const bytes = (used() - before) / N;
  resolve();
  if (engine !== 'native') await Promise.all(all);
  return { bytes };
}

/** Threads that all want one name, again and again. */
async function threads(count) {
  const N = 3000;
  const workers = Array.from(
    { length: count },
    () => new Worker(new URL(import.meta.url), { workerData: { row, engine, N } }),
  );
  const next = (worker) => new Promise((resolve, reject) => {
    worker.once('message', resolve);
    worker.once('error', reject);
    worker.once('exit', () => reject(new Error('the thread ended before its work was done')));
  });
  await Promise.all(workers.map(next));
  const us = await time(N * count, async () => {
    const done = workers.map(next);
    workers.forEach((worker) => worker.postMessage('go'));
    await Promise.all(done);
  });
  workers.forEach((worker) => worker.postMessage('stop'));
  return { us };
}

async function contend() {
  parentPort.once('message', async () => {
    for (let i = 0; i < workerData.N; i++) await locks.request('name', nothing);
    parentPort.once('message', () => process.exit());
    parentPort.postMessage('done');
  });
  parentPort.postMessage('ready');
}

function withResolvers() {
  let resolve;
  const promise = new Promise((settle) => (resolve = settle));
  return { promise, resolve };
}

const rows = {
  sequential,
  distinct: () => atOnce((i) => `name ${i}`),
  one: () => atOnce(() => 'name'),
  shared: () => atOnce(() => 'name', { mode: 'shared' }),
  'waiters-100': () => waiters(100),
  'waiters-1000': () => waiters(1000),
  'waiters-20000': () => waiters(20_000),
  'waiters-100000': () => waiters(100_000),
  held,
  query,
  'threads-2': () => threads(2),
  'threads-4': () => threads(4),
  memory,
};

if (isMainThread) {
  console.log(JSON.stringify(await rows[row]()));
  process.exit();
} else {
  await contend();
}
