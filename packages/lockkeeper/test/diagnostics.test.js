/** Beyond the draft: the channels of node:diagnostics_channel. */

import { subscribe, unsubscribe } from 'node:diagnostics_channel';
import { assert, cleanUp, startWorker, test, turn, until } from './harness.js';
import { hold, locks, rejection, request, testInProcess, unique } from './helpers.js';
import { connected, machine, network } from './machine.js';

// Node 20 has no WebSocket.
const testWebSocket = 'WebSocket' in globalThis ? testInProcess : () => {};

const ends = ['release', 'steal', 'lost', 'abort', 'timeout', 'unavailable', 'error'];
const channels = ['request', 'grant', ...ends];

/** Listens to all channels until the test is over. */
function listen() {
  const seen = [];
  for (const channel of channels) {
    const listener = (message, name) => seen.push({ channel: name.replace('lockkeeper:', ''), ...message });
    subscribe(`lockkeeper:${channel}`, listener);
    cleanUp(() => void unsubscribe(`lockkeeper:${channel}`, listener));
  }
  return seen;
}

const order = (seen) => seen.map(({ channel }) => channel);

test('a lock is told of when it is requested, granted and released', async () => {
  const seen = listen();
  const name = unique();
  let token;
  await locks.request(name, { mode: 'shared' }, async (lock) => {
    assert.deepEqual(order(seen), ['request', 'grant'], 'granted before the callback runs');
    token = lock.token;
  });
  const { held } = await locks.query();
  assert.deepEqual(held, []);
  assert.deepEqual(order(seen), ['request', 'grant', 'release']);
  for (const { names, mode } of seen) assert.deepEqual([names, mode], [[name], 'shared']);
  assert.deepEqual(seen.map((message) => message.token), [undefined, token, token]);
});

test('messages have the clientId that query() shows', async () => {
  const seen = listen();
  await hold(unique());
  const { held } = await locks.query();
  assert.ok(seen.length > 0 && seen.every(({ clientId }) => clientId === held[0].clientId));
});

test('a scope is told of with all its names', async () => {
  const seen = listen();
  const names = [unique('b'), unique('a')];
  const lock = await locks.acquire(names);
  await lock.release();
  await lock.release();
  assert.deepEqual(order(seen), ['request', 'grant', 'release'], 'nothing is released twice');
  for (const message of seen) {
    assert.deepEqual([...message.names].sort(), [...names].sort());
    assert.equal(message.mode, 'exclusive');
  }
});

test('a request that waits is granted later, after the release that let it in', async () => {
  const name = unique();
  const holder = await hold(name);
  const seen = listen();
  const second = request(name);
  await turn();
  assert.deepEqual(order(seen), ['request']);
  holder.release();
  second.release();
  await second.released;
  assert.deepEqual(order(seen), ['request', 'release', 'grant', 'release']);
});

test('a request that is refused or aborted is told of as such, and never as granted or released', async () => {
  const name = unique();
  await hold(name);
  const seen = listen();
  await locks.request(name, { ifAvailable: true }, () => {});
  const controller = new AbortController();
  const aborted = rejection(locks.request(name, { signal: controller.signal }, () => {}));
  controller.abort();
  await aborted;
  assert.deepEqual(order(seen), ['request', 'unavailable', 'request', 'abort']);
  assert.equal(seen[3].cause, controller.signal.reason);
  const late = await rejection(locks.acquire(name, { timeout: 1 }));
  const now = await rejection(locks.acquire(name, { timeout: 0 }));
  assert.deepEqual([late.name, now.name], ['TimeoutError', 'TimeoutError']);
  await turn();
  assert.deepEqual(order(seen).slice(4), ['request', 'timeout', 'request', 'timeout']);
  assert.ok(seen[5].cause === late && seen[7].cause === now);
});

test('a lock that is stolen is told of with its token, and not as released', async () => {
  const { lock, release, released } = await hold(unique());
  const seen = listen();
  await locks.request(lock.name, { steal: true }, () => {});
  await rejection(released);
  release();
  await turn();
  const steals = seen.filter(({ channel }) => channel === 'steal');
  assert.deepEqual(steals.map(({ names, token, cause }) => [names, token, cause]), [[[lock.name], lock.token, 'stolen']]);
  const releases = seen.filter(({ channel }) => channel === 'release');
  assert.equal(releases.length, 1, 'the release is that of the thief');
});

testInProcess('a lock that another thread stole is told of here', async () => {
  const { lock, released } = await hold(unique());
  const seen = listen();
  const worker = startWorker('agent.js');
  await worker.ask('request', 'a', lock.name, { steal: true });
  await rejection(released);
  await turn();
  assert.deepEqual(order(seen), ['steal']);
});

test('a subscriber may make requests of its own', async () => {
  const name = unique();
  const made = [];
  let depth = 0;
  for (const channel of channels) {
    const listener = () => {
      if ((depth += 1) < 20) made.push(locks.request(name, () => channel).catch(() => channel));
    };
    subscribe(`lockkeeper:${channel}`, listener);
    cleanUp(() => void unsubscribe(`lockkeeper:${channel}`, listener));
  }
  const results = [locks.request(name, () => 'first').catch(() => 'stolen')];
  results.push(locks.request(name, { steal: true }, () => 'thief').catch(() => 'stolen'));
  await Promise.all(results);
  for (let i = 0; i < made.length; i++) await made[i];
  assert.ok(depth >= 20);
});

testInProcess('a lock that is stolen by who hears that it was granted is not delivered', async () => {
  const name = unique();
  let thief;
  const steal = ({ names }) => {
    if (names[0] === name) thief ??= locks.request(name, { steal: true }, () => 'thief');
  };
  subscribe('lockkeeper:grant', steal);
  cleanUp(() => void unsubscribe('lockkeeper:grant', steal));
  const preempted = rejection(locks.request(name, () => assert.fail('the callback ran')));
  assert.equal((await preempted).cause, 'stolen');
  assert.equal(await thief, 'thief');
});

test('all messages about a request have its id, so that its waiting time can be measured', async () => {
  const name = unique();
  const holder = await hold(name);
  const seen = listen();
  const waiting = [request(name), request(name)];
  holder.release();
  for (const { release, released } of waiting) {
    release();
    await released;
  }
  const ids = [...new Set(seen.map(({ id }) => id))];
  assert.equal(ids.length, 3);
  const lives = ids.map((id) => order(seen.filter((message) => message.id === id)).join()).sort();
  assert.deepEqual(lives, ['release', 'request,grant,release', 'request,grant,release']);
});

test('what the engine refuses is told of with the error', async () => {
  const seen = listen();
  const names = Array.from({ length: 1_025 }, (_, i) => unique(`${i}`));
  const error = await rejection(locks.acquire(names));
  assert.deepEqual(order(seen), ['request', 'error']);
  assert.equal(seen[1].cause, error);
});

testInProcess('a lock that ends by close() is told of as such, not as stolen', async () => {
  const there = machine();
  await there.start();
  const manager = await connected(there.url);
  const lock = await manager.acquire(unique());
  const waits = rejection(manager.acquire(lock.name));
  const seen = listen();
  await manager.close();
  await waits;
  await until(() => seen.length === 2);
  assert.deepEqual(seen.map(({ channel, cause }) => [channel, cause]), [['lost', 'closed'], ['lost', 'closed']]);
  assert.throws(() => lock.assertHeld(), { name: 'AbortError', cause: 'closed' });
});

testWebSocket('a lock whose lease is over is told of as lost, with its token', async () => {
  const there = machine({ network: true });
  await there.start('--ttl', '2s');
  const between = await network(there.url);
  const manager = await connected(between.url);
  const lock = await manager.acquire(unique());
  const waits = rejection(manager.acquire(lock.name));
  await until(async () => (await manager.query()).pending.length === 1);
  const seen = listen();
  between.cut();
  await waits;
  await until(() => seen.length === 2);
  assert.deepEqual(seen.map(({ channel, cause, token }) => [channel, cause, token]), [
    ['lost', 'lost', lock.token],
    ['lost', 'lost', undefined],
  ]);
});
