/**
 * Beyond the draft: what people get wrong is told, not ignored; and what the draft has ignored is
 * ignored, with a warning.
 */

import { connect } from 'lockkeeper';
import { assert, cleanUp, run, test, until } from './harness.js';
import { daemon, hold, locks, rejection, rejectsType, testInProcess, unique } from './helpers.js';
import { machine } from './machine.js';

/** The warnings of this process, from now on until the test is over. */
function warnings() {
  const seen = [];
  const listener = ({ code, message }) => seen.push(`${code} ${message}`);
  process.on('warning', listener);
  cleanUp(() => void process.off('warning', listener));
  return seen;
}

test('request() ignores what acquire() has, as the draft has it, and warns once', async () => {
  const seen = warnings();
  for (let i = 0; i < 2; i++) await locks.request(unique(), { timeout: 1 }, () => {});
  await until(() => seen.length > 0);
  assert.equal(seen.length, 1);
  assert.match(seen[0], /LOCKKEEPER_IGNORED .*"timeout".*acquire\(name, \{ timeout \}\)/);
});

test('request() takes an array for one name, as the draft has it, and warns', async () => {
  const seen = warnings();
  assert.equal(await locks.request(['a', 'b'], (lock) => lock.name), 'a,b');
  await until(() => seen.length > 0);
  assert.match(seen[0], /LOCKKEEPER_IGNORED .*acquire\(names\)/);
});

test('request() warns of an option that nothing has, and reads none of it', async () => {
  const seen = warnings();
  const options = {
    get exclusive() {
      return assert.fail('it was read');
    },
  };
  await locks.request(unique(), options, () => {});
  await until(() => seen.length > 0);
  assert.match(seen[0], /"exclusive".*mode, ifAvailable, steal, signal/);
});

test('in production, there are no warnings', async () => {
  const env = { ...process.env, NODE_ENV: 'production' };
  const { stdout, stderr } = await run(new URL('fixtures/ignored.js', import.meta.url), [], { env });
  assert.deepEqual([stdout, stderr], ['done\n', '']);
});

test('a function where options go is ignored, as the draft has it, with a warning', async () => {
  const seen = warnings();
  assert.equal(await locks.request(unique(), () => assert.fail('it ran'), () => 'ran'), 'ran');
  await until(() => seen.length > 0);
  assert.match(seen[0], /LOCKKEEPER_IGNORED .*function as its options/);
});

test('a callback where options go, and options where the callback goes', async () => {
  const { message } = await rejectsType(locks.request(unique(), () => assert.fail('it ran'), { mode: 'shared' }));
  assert.match(message, /request\(name, options, callback\)/);
});

test('request() without a callback names acquire(), which needs none', async () => {
  for (const args of [[unique(), { timeout: 1 }], [['a', 'b']], [unique(), { mode: 'shared' }, undefined], []]) {
    const { message } = await rejectsType(locks.request(...args));
    assert.match(message, /acquire\(scope, options\) needs none/);
  }
});

test('a method that was taken off its manager or its lock says so', async () => {
  const { acquire, addEventListener, close, forceRelease, inspect, query, removeEventListener, request } = locks;
  const { [Symbol.asyncDispose]: dispose } = locks;
  for (const call of [() => request('a', () => {}), () => acquire('a'), query, inspect, close, dispose]) {
    const { message } = await rejectsType(call());
    assert.equal(message, 'call the method on its LockManager, or bind it');
  }
  const listening = [addEventListener, removeEventListener].map((listen) => () => listen('statuschange', () => {}));
  for (const call of [() => forceRelease('a'), ...listening]) {
    assert.throws(call, { name: 'TypeError', message: 'call the method on its LockManager, or bind it' });
  }
  const lock = await locks.acquire(unique());
  const { assertHeld, release, [Symbol.asyncDispose]: end } = lock;
  assert.throws(assertHeld, { name: 'TypeError', message: 'call the method on its Lock, or bind it' });
  for (const call of [release, end]) assert.equal((await rejectsType(call())).message, 'call the method on its Lock, or bind it');
  assert.equal(await lock.release(), true);
});

test('assertHeld() throws unless the lock is held, and says why', async () => {
  const released = await locks.request(unique(), (lock) => (lock.assertHeld(), lock));
  assert.throws(() => released.assertHeld(), { name: 'InvalidStateError', message: /was released/ });
  const stolen = await hold(unique());
  await locks.request(stolen.lock.name, { steal: true }, () => {});
  await rejection(stolen.released);
  assert.throws(() => stolen.lock.assertHeld(), { name: 'AbortError', cause: 'stolen' });
});

testInProcess('what is for a WebSocket is not for a Unix socket, and connect() has no other options', async () => {
  const there = machine();
  for (const options of [{ token: 'secret' }, { insecure: true }, { WebSocket: class {} }, { retry: true }]) {
    const { message } = await rejectsType(connect(there.url, options));
    assert.match(message, new RegExp(`^${Object.keys(options)} is for ws: and wss: URLs`));
  }
  assert.match((await rejectsType(connect(there.url, { buckets: 'a' }))).message, /no option buckets/);
  assert.match((await rejectsType(connect('ws://127.0.0.1:1', { Token: 'a' }))).message, /no option Token/);
  assert.ok(!daemon);
});
