/** What the tests of the lock manager share. Each test leaves the manager as it found it: empty. */

import { isDeepStrictEqual } from 'node:util';
import { connect, locks as inProcess } from 'lockkeeper';
import { afterEach, assert, cleanUp, deferred, test, until } from './harness.js';

/**
 * What is tested: the manager of this process, or, where LOCKKEEPER_URL names one, a daemon's. Test
 * files run at the same time, each in a bucket of its own.
 */
export const daemon = process.env.LOCKKEEPER_URL !== undefined;
export const locks = daemon ? await connect(undefined, { bucket: `test-${process.pid}` }) : inProcess;

/**
 * A test of what happens within one task, or between threads: a daemon is never that quick, nor in
 * one process.
 */
export const testInProcess = daemon ? () => {} : test;

let names = 0;

/** A name that no other test uses. */
export const unique = (label = 'resource') => `${label} ${(names += 1)}`;

/**
 * Holds a lock until `release` is called, or the test is over. Resolves when its callback runs, to
 * what the callback was given and the promise of `request()`.
 */
export async function hold(name, options = {}) {
  const granted = deferred();
  const held = request(name, options, granted.resolve);
  await Promise.race([granted.promise, held.released]);
  return Object.assign(held, { lock: await granted.promise });
}

/**
 * Requests a lock to hold until `release` is called, or the test is over. Does not wait for
 * anything.
 */
export function request(name, options = {}, granted = () => {}) {
  const waiting = deferred();
  const held = { ran: false, release: waiting.resolve, fail: waiting.reject };
  const released = locks.request(name, options, (lock) => {
    held.ran = true;
    granted(lock);
    return waiting.promise;
  });
  // Who does not look at it does not mind.
  released.catch(() => {});
  cleanUp(() => {
    waiting.resolve();
    return released.catch(() => {});
  });
  return Object.assign(held, { released });
}

/** The modes of a name in a snapshot: [held, pending]. */
export async function modes(name) {
  const { held, pending } = await locks.query();
  return [held, pending].map((list) => list.filter((info) => info.name === name).map((info) => info.mode));
}

/** Whether a request could be granted at once. */
export const available = (name, mode = 'exclusive') =>
  locks.request(name, { mode, ifAvailable: true }, (lock) => lock !== null);

/** Has all microtasks run that can, and those that they make: a thousand deep. */
export async function microtasks() {
  for (let i = 0; i < 1000; i++) await undefined;
}

/** Waits until so many requests wait for a name, on all threads together. */
export const untilPending = (name, count) => until(async () => (await modes(name))[1].length === count);

/** The error that a promise is rejected with, and nothing else. */
export async function rejection(promise) {
  const outcome = await promise.then(
    (value) => ({ value }),
    (error) => ({ error }),
  );
  assert.ok('error' in outcome, `fulfilled with ${String(outcome.value)} rather than rejected`);
  return outcome.error;
}

/** Asserts that a promise is rejected with a DOMException of that name. */
export async function rejectsDOM(promise, name) {
  const error = await rejection(promise);
  assert.ok(error instanceof DOMException, `not a DOMException: ${String(error?.stack ?? error)}`);
  assert.equal(error.name, name);
  return error;
}

/** Asserts that a promise is rejected with a TypeError. */
export async function rejectsType(promise) {
  const error = await rejection(promise);
  assert.ok(error instanceof TypeError, `not a TypeError: ${String(error?.stack ?? error)}`);
  return error;
}

/** What earlier tests have leaked: told once, not with every test that follows. */
let leaked = { held: [], pending: [] };

// A lock or request that outlives its test was leaked, by the test or by the manager. Threads that
// were terminated take their time to end, and what they had ends with them.
afterEach(async () => {
  const giveUp = performance.now() + 30_000;
  const before = leaked;
  await until(async () => {
    leaked = await locks.query();
    return isDeepStrictEqual(leaked, before) || performance.now() > giveUp;
  });
  assert.deepEqual(leaked, before, 'something was leaked');
});
