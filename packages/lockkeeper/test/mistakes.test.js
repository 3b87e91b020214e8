/**
 * Beyond the draft: what people get wrong is told, not ignored; and what the draft has ignored is
 * ignored, with a warning.
 */

import { connect, createLocks } from 'lockkeeper';
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

test('a callback where options go, and options where the callback goes', async () => {
  const { message } = await rejectsType(locks.request(unique(), () => assert.fail('it ran'), { mode: 'shared' }));
  assert.match(message, /callback, the last argument/);
});

test('a method that was taken off its manager says so', async () => {
  const { acquire, inspect, query, request } = locks;
  for (const call of [() => request('a', () => {}), () => acquire('a'), () => query(), () => inspect()]) {
    const { message } = await rejectsType(call());
    assert.match(message, /call the method on one, or bind it/);
  }
});

test('assertHeld() throws unless the lock is held, and says why', async () => {
  const released = await locks.request(unique(), (lock) => (lock.assertHeld(), lock));
  assert.throws(() => released.assertHeld(), { name: 'InvalidStateError', message: /was released/ });
  const stolen = await hold(unique());
  await locks.request(stolen.lock.name, { steal: true }, () => {});
  await rejection(stolen.released);
  assert.throws(() => stolen.lock.assertHeld(), { name: 'AbortError', cause: 'stolen' });
});

testInProcess('createLocks() has names of its own, and cannot be closed', async () => {
  const [one, two] = [createLocks(), createLocks()];
  const name = unique();
  await one.request(name, () =>
    two.request(name, () =>
      locks.request(name, async () => {
        for (const manager of [one, two, locks]) {
          assert.deepEqual((await manager.query()).held.map((info) => info.name), [name]);
          assert.equal((await manager.inspect()).held.length, 1);
        }
      }),
    ),
  );
  const waiting = await one.acquire(name);
  const next = one.request(name, () => 'next');
  assert.equal((await one.query()).pending.length, 1);
  one.forceRelease(name);
  assert.equal(await next, 'next');
  assert.equal(waiting.held, false);
  await rejectsType(one.close());
});

testInProcess('a token is not for a Unix socket, and connect() has no other options', async () => {
  const there = machine();
  const { message } = await rejectsType(connect(there.url, { token: 'secret' }));
  assert.match(message, /ws: and wss:/);
  assert.match((await rejectsType(connect(there.url, { buckets: 'a' }))).message, /no option buckets/);
  assert.match((await rejectsType(connect('ws://127.0.0.1:1', { Token: 'a' }))).message, /no option Token/);
  assert.ok(!daemon);
});
