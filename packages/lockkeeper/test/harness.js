/**
 * A test harness for files that must run in Node, Bun and Deno alike: `test()` queues a test, the
 * tests of a file run one after another, and the last line printed counts them. Waiting is for
 * events; the only clock is a watchdog, which tells of a test that never settles.
 */

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';

export { assert };

export const runtime = 'Deno' in globalThis ? 'deno' : 'Bun' in globalThis ? 'bun' : 'node';

const WATCHDOG = Number(process.env.WATCHDOG ?? 60_000);
const tests = [];
const cleanups = [];
const checks = [];
let current = { name: 'outside of all tests', failed: false };

/** Queues a test. The first one starts the run, once its module has queued the others. */
export function test(name, run) {
  if (tests.push({ name, run, failed: false }) === 1) setImmediate(runAll);
}

/**
 * Runs `cleanup` when the current test is over, with its other cleanups; what it throws fails the
 * test.
 */
export function cleanUp(cleanup) {
  cleanups.push(cleanup);
}

/** Runs `check` after each test of this file and its cleanups. */
export function afterEach(check) {
  checks.push(check);
}

async function runAll() {
  for (current of tests) {
    await guarded(current.run);
    // All at once: the request that waits for another's release is not to wait for its cleanup.
    await Promise.all(cleanups.splice(0).map(guarded));
    for (const check of checks) await guarded(check);
  }
  const failed = tests.filter((test) => test.failed).length;
  console.log(`${tests.length - failed} passed, ${failed} failed`);
  process.exit(failed > 0 ? 1 : 0);
}

async function guarded(run) {
  let timer;
  const bark = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`has not settled within ${WATCHDOG} ms`)), WATCHDOG);
  });
  try {
    await Promise.race([(async () => run())(), bark]);
  } catch (error) {
    fail(error);
  } finally {
    clearTimeout(timer);
  }
}

function fail(error) {
  current.failed = true;
  console.log(`FAILED ${current.name}\n  ${String(error?.stack ?? error).replaceAll('\n', '\n  ')}`);
}

process.on('unhandledRejection', fail);
process.on('uncaughtException', fail);

/** A turn of the event loop: a task of later than now. */
export const turn = () => new Promise((resolve) => setImmediate(resolve));

/** Waits until `check` gives something. */
export async function until(check) {
  for (;;) {
    const found = await check();
    if (found) return found;
    await turn();
  }
}

/** A promise with its functions. */
export function deferred() {
  const made = {};
  made.promise = new Promise((resolve, reject) => Object.assign(made, { resolve, reject }));
  return made;
}

/**
 * A worker thread that runs `fixtures/<fixture>`. `message()` is its next message; `ask(op,
 * ...args)` the answer to a question, where the fixture is `agent.js`; `exited` its exit code. The
 * worker is terminated with the test.
 */
export function startWorker(fixture, workerData) {
  const worker = new Worker(new URL(`fixtures/${fixture}`, import.meta.url), { workerData });
  const { promise: exited, resolve: exit } = deferred();
  const answers = new Map();
  const inbox = [];
  const readers = [];
  let asked = 0;
  worker.on('message', (message) => {
    const answer = answers.get(message?.answer);
    if (answer) answer(message);
    else if (readers.length > 0) readers.shift()(message);
    else inbox.push(message);
  });
  // A worker that throws tells it here; its exit code tells it too.
  worker.on('error', () => {});
  worker.on('exit', exit);
  const ended = (code) => {
    throw new Error(`the worker has exited with ${code}`);
  };
  const self = {
    exited,
    post: (message) => worker.postMessage(message),
    message: () =>
      inbox.length > 0
        ? Promise.resolve(inbox.shift())
        : Promise.race([new Promise((resolve) => readers.push(resolve)), exited.then(ended)]),
    async ask(op, ...args) {
      const id = (asked += 1);
      const answered = new Promise((resolve) => answers.set(id, resolve));
      worker.postMessage({ id, op, args });
      const { value, error } = await Promise.race([answered, exited.then(ended)]);
      if (error) throw Object.assign(new Error(error.message), error);
      return value;
    },
    terminate: () => worker.terminate(),
    unref: () => worker.unref(),
  };
  cleanUp(() => {
    worker.terminate();
    return exited;
  });
  return self;
}

/** Runs a program of this runtime to its end. */
export async function run(file, args = [], options = {}) {
  const path = file instanceof URL ? fileURLToPath(file) : file;
  const program = runtime === 'deno' ? ['run', '-A', path, ...args] : [path, ...args];
  const child = spawn(process.execPath, program, { stdio: ['ignore', 'pipe', 'pipe'], ...options });
  cleanUp(() => void child.kill('SIGKILL'));
  const output = { stdout: '', stderr: '' };
  for (const stream of ['stdout', 'stderr']) child[stream].on('data', (data) => (output[stream] += data));
  const code = await new Promise((resolve, reject) => {
    child.on('error', reject);
    child.on('close', resolve);
  });
  return { code, ...output };
}
