/**
 * A worker that uses the npm package: it asks for locks, touches what they protect, and writes down
 * all it sees.
 *
 * As `worker.rs`, with one hand. Arguments: the directory of the package, that of the run, the URL,
 * the number of the history, and the seed.
 */
import { openSync, writeSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';

const [packageDir, dir, url, process_, seed, stubborn] = process.argv.slice(2);
const { connect } = createRequire(import.meta.url)(packageDir);
const NAMES = ['a', 'b', 'c', 'd', 'e', 'f'];
const TOUCH = 2;

const openLines = (...path) => openSync(join(dir, ...path), 'a');
// One call: other processes append to the same file, and this one may be killed after any
// instruction.
const append = (lines, ...words) => writeSync(lines, `${[process.hrtime.bigint(), ...words].join(' ')}\n`);

const history = openLines('histories', process_);
const resources = new Map(NAMES.map((name) => [name, openLines('resources', name)]));

let state = (BigInt(seed) % 2147483647n) || 1n;
/** A number below `limit`. */
function choose(limit) {
  state = (state * 48271n) % 2147483647n;
  return Number(state % BigInt(limit));
}

async function open() {
  for (;;) {
    try {
      return await connect(url, { bucket: 'faults' });
    } catch {
      await sleep(3);
    }
  }
}

const locks = await open();
let requests = 0;

/** Touches what it has until it has had it for so long, or has lost it. Whether it still has it. */
async function hold(lock, scope, mode, number, milliseconds) {
  const until = performance.now() + milliseconds;
  for (;;) {
    if (!lock.held && stubborn === undefined) return false;
    for (const name of scope) append(resources.get(name), lock.token, mode, process_, number);
    if (performance.now() >= until) return lock.held;
    await sleep(TOUCH);
  }
}

/** Why a lock or a request was broken. */
const cause = (reason) => (reason?.cause === 'stolen' ? 'stolen' : 'lost');

/** Makes one request and sees it through to its end. */
async function carryOut(scope, shared, ifAvailable, milliseconds) {
  const number = requests++;
  const mode = shared ? 's' : 'x';
  append(history, number, 'asked', ifAvailable ? 'if-available' : 'wait', ...scope.map((name) => `${name}:${mode}`));
  let lock;
  try {
    lock = await locks.acquire(scope, { mode: shared ? 'shared' : 'exclusive', ifAvailable });
  } catch (error) {
    return append(history, number, 'broken', cause(error));
  }
  if (lock === null) return append(history, number, 'unavailable');
  append(history, number, 'granted', lock.token);
  if (!(await hold(lock, scope, mode, number, milliseconds))) {
    return append(history, number, 'broken', cause(lock.signal.reason));
  }
  append(history, number, 'releasing');
  lock.release();
  append(history, number, 'ended');
  if (stubborn !== undefined) await hold(lock, scope, mode, number, 30);
}

const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
let told;
const order = lines.next().then(({ value }) => (told = value ?? ''));
while (told === undefined) {
  const scope = [...new Set(Array.from({ length: [1, 1, 1, 2, 3][choose(5)] }, () => NAMES[choose(6)]))];
  await carryOut(scope, choose(10) < 3, choose(8) === 0, [0, 2, 20][choose(3)]);
  // What it was told is heard in between.
  await sleep(0);
}
await order;
if (told === 'settle') {
  for (const name of NAMES) await carryOut([name], false, false, 0);
  process.stdout.write('settled\n');
  await lines.next();
}
process.exit();
