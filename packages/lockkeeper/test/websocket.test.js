/**
 * connect('ws://…'): networks that drop, tokens, what keeps a process alive. What time does is in
 * session.test.js.
 */

import { createHmac } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { connect, locks } from 'lockkeeper';
import { WebSocket } from 'ws';
import { assert, run, runtime, test as testAnywhere, turn, until } from './harness.js';
import { connected, hold, machine, network } from './machine.js';

// Node 20 has no WebSocket.
const test = 'WebSocket' in globalThis ? testAnywhere : () => {};

/** A daemon on a port. */
async function serve(...args) {
  const there = machine({ network: true });
  await there.start(...args);
  return there;
}

test('a connection that drops: locks, places in queues and what was asked meanwhile are kept', async () => {
  const { url } = await serve();
  const between = await network(url);
  const [near, far] = [await connected(between.url), await connected(url)];
  const held = await hold(near, 'a');
  const order = [];
  const waiting = [far.request('a', () => order.push('far'))];
  await until(async () => (await far.query()).pending.length === 1);
  waiting.push(near.request('a', () => order.push('near')));
  await until(async () => (await far.query()).pending.length === 2);
  for (let i = 0; i < 5; i++) {
    between.drop();
    waiting.push(near.request('a', () => order.push(i)));
    // What is asked in a session is told in order.
    await until(() => near.query().then(() => true, () => false));
    assert.equal((await far.query()).pending.length, 3 + i);
  }
  assert.equal(held.lock.signal.aborted, false);
  held.release('value');
  assert.equal(await held.released, 'value');
  await Promise.all(waiting);
  assert.deepEqual(order, ['far', 'near', 0, 1, 2, 3, 4]);
});

test('networks that drop again and again: everybody has his turns, one at a time, in the order of the tokens', async () => {
  const { url } = await serve();
  const networks = await Promise.all([1, 2, 3, 4].map(() => network(url)));
  const managers = await Promise.all(networks.map((between) => connected(between.url)));
  const tokens = [];
  let inside = 0;
  const turns = managers.map(async (manager, who) => {
    for (let n = 0; n < 8; n++) {
      const value = await manager.request('a', async ({ token }) => {
        assert.equal((inside += 1), 1);
        tokens.push(token);
        // The holder's own, or that of one who waits: before, in and after the callback's last
        // task.
        const [before, during, after] = [0, 1, 2].map((i) => networks[(who + n + i) % (networks.length + i)]);
        before?.drop();
        await turn();
        during?.drop();
        inside -= 1;
        setImmediate(() => after?.drop());
        return n;
      });
      assert.equal(value, n);
    }
  });
  await Promise.all(turns);
  assert.equal(tokens.length, 32);
  assert.ok(tokens.every((token, i) => i === 0 || token > tokens[i - 1]), String(tokens));
});

test('several URLs: the next one is used when one fails, and locks and places are kept', async () => {
  const { url } = await serve();
  const [gone, one, other] = [await network(url), await network(url), await network(url)];
  gone.cut();
  const far = await connected(url);
  for (const urls of [[gone.url, one.url, other.url], [gone.url, one.url, other.url].join()]) {
    const near = await connected(urls);
    const held = await hold(near, 'a');
    const waiting = near.request('a', () => 'turn');
    // Whichever it uses, then the next one.
    for (const between of [one, other, one]) {
      between.cut();
      await until(() => near.query().then(() => true, () => false));
      assert.equal((await far.query()).pending.length, 1);
      between.mend();
    }
    assert.equal(held.lock.signal.aborted, false);
    held.release();
    assert.equal(await waiting, 'turn');
  }
});

test('several URLs: none answers, or one is not like the others', async () => {
  const { url } = await serve();
  const [one, other] = [await network(url), await network(url)];
  one.cut();
  other.cut();
  await assert.rejects(connect([one.url, other.url]), { name: 'NetworkError' });
  await assert.rejects(connect([]), TypeError);
  await assert.rejects(connect([url, 'http://127.0.0.1/']), /"http:\/\/127.0.0.1\/" is no ws: or wss: URL/);
  await assert.rejects(connect('unix:daemon.sock,ws://127.0.0.1:1'), /"unix:daemon.sock" is no ws: or wss: URL/);
  await assert.rejects(connect('unix:/nowhere/daemon.sock,ws://127.0.0.1:1'), { name: 'NetworkError' });
});

test('several URLs, of a Unix socket and a WebSocket: when one daemon ends, the other is used', async () => {
  const [here, there] = [machine(), await serve()];
  const first = await here.start();
  const manager = await connected(`${here.url},${there.url}`);
  // Frames of several messages, and messages that do not arrive at once.
  const names = Array.from({ length: 3000 }, (_, i) => `${i} ${'ü'.repeat(100)}`);
  const many = await Promise.all(names.map((name) => hold(manager, name)));
  const { held } = await manager.query();
  assert.deepEqual(held.map(({ name }) => name), names);
  await first.kill('SIGKILL');
  await Promise.all(many.map(({ released }) => assert.rejects(released, { name: 'AbortError', cause: 'lost' })));
  assert.equal(await manager.request(names[0], () => 'granted'), 'granted');
  // The other daemon has been told before this ends.
  const next = await hold(manager, names[0]);
  await manager.close();
  await assert.rejects(next.released, { cause: 'closed' });
  assert.deepEqual(await (await connected(there.url)).query(), { held: [], pending: [] });
});

test('a release that falls into the gap is done, and told', async () => {
  const { url } = await serve();
  const between = await network(url);
  const [near, far] = [await connected(between.url), await connected(url)];
  const held = await hold(near, 'a');
  const next = far.request('a', () => 'next');
  between.cut();
  held.release('value');
  between.mend();
  assert.equal(await held.released, 'value');
  assert.equal(await next, 'next');
});

test('a network that is gone: locks are lost, others are let in, and the manager comes back', async () => {
  const { url } = await serve('--ttl', '4s');
  const between = await network(url);
  const [near, far] = [await connected(between.url), await connected(url)];
  const held = await hold(near, 'a');
  const next = far.request('a', () => 'next');
  between.cut();
  await assert.rejects(held.released, { name: 'AbortError', cause: 'lost' });
  assert.deepEqual([held.lock.signal.aborted, held.lock.signal.reason.cause], [true, 'lost']);
  const again = near.request('a', () => 'again');
  assert.equal(await next, 'next');
  between.mend();
  assert.equal(await again, 'again');
});

test('nobody is there, or it is no daemon', async () => {
  const there = await serve();
  const { url } = there;
  await assert.rejects(connect(url.replace('ws:', 'wss:')), { name: 'NetworkError' });
  await assert.rejects(connect(url, { bucket: 'a\nb' }), { name: 'NetworkError', message: /bucket/ });
  await assert.rejects(connect('ws://127.0.0.1:1/'), { name: 'NetworkError', message: /serve --listen/ });
});

test('connects that fail leave nothing behind', async () => {
  const failed = await run(new URL('fixtures/failing.js', import.meta.url));
  assert.deepEqual([failed.stdout.trim(), failed.code], ['TypeError NetworkError NetworkError 0', 0], failed.stderr);
});

test('code that blocks its thread past the lease sees at once that its lock is lost', async () => {
  const { url } = await serve('--ttl', '3s');
  const blocked = await run(new URL('fixtures/network.js', import.meta.url), ['blocked', url]);
  assert.deepEqual([blocked.stdout.trim(), blocked.code], ['true false false true lost', 0], blocked.stderr);
});

test('a token is sent in clear to this machine only, unless that is meant', async () => {
  class Tried {
    constructor(url) {
      throw new Error(`tried ${url}`);
    }
  }
  const tries = (url, options) => connect(url, { token: () => assert.fail('it is not asked for'), WebSocket: Tried, ...options });
  const refused = { name: 'SecurityError', message: /use wss:, or \{ insecure: true \}/ };
  for (const host of ['locks.example', '192.0.2.1:7420', '[2001:db8::1]', 'localhost.example', '127.0.0.1.example']) {
    for (const url of [`ws://${host}/`, `WS://${host}/`]) await assert.rejects(tries(url), refused, url);
    await assert.rejects(tries(`ws://${host}/`, { token: 'x' }), refused);
    for (const [url, options] of [
      [`wss://${host}/`, {}],
      [`ws://${host}/`, { insecure: true }],
      [`ws://${host}/`, { token: undefined }],
    ]) {
      await assert.rejects(tries(url, options), { name: 'NetworkError', message: /tried/ }, url);
    }
  }
  for (const host of ['localhost', '127.0.0.1', '127.1.2.3:7420', '[::1]:7420']) {
    await assert.rejects(tries(`ws://${host}/`), { name: 'NetworkError', message: /tried/ }, host);
  }
  process.env.LOCKKEEPER_INSECURE = '1';
  await assert.rejects(tries('ws://locks.example/'), { name: 'NetworkError', message: /tried/ });
  delete process.env.LOCKKEEPER_INSECURE;
});

/** A daemon that takes tokens of one key, and what signs them. */
async function guarded() {
  const there = machine({ network: true });
  const key = Buffer.alloc(32, 7);
  const keys = join(there.dir, 'keys.json');
  writeFileSync(keys, JSON.stringify({ keys: [{ kty: 'oct', k: key.toString('base64url') }] }));
  await there.start('--keys', keys);
  const encode = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const sign = (claims) => {
    const signed = `${encode({ alg: 'HS256' })}.${encode({ exp: Date.now() / 1000 + 600, ...claims })}`;
    return `${signed}.${createHmac('sha256', key).update(signed).digest('base64url')}`;
  };
  return { there, sign };
}

test('tokens: without one, or with one for something else, there is no session; what it allows is done', async () => {
  const { there, sign } = await guarded();
  const refused = { name: 'NotAllowedError', message: /token/ };
  const token = sign({ buckets: ['mine'] });
  await assert.rejects(connect(there.url, { bucket: 'mine' }), refused);
  await assert.rejects(connect(there.url, { token }), refused, 'the bucket is not its own');
  await assert.rejects(connect(there.url, { bucket: 'mine', token: `${token}x` }), refused);
  const manager = await connected(there.url, { bucket: 'mine', token });
  await hold(manager, 'a');
  await assert.rejects(manager.request('a', { steal: true }, () => {}), { name: 'NotAllowedError' });
  await assert.rejects(manager.forceRelease('a'), { name: 'NotAllowedError' });
  const thief = await connected(there.url, { bucket: 'mine', token: sign({ buckets: ['m*'], steal: true }) });
  assert.equal(await thief.request('a', { steal: true }, () => 'thief'), 'thief');
});

test('a token that has expired is named as the cause: on connecting, of what is lost, and of what is asked later', async () => {
  const { there, sign } = await guarded();
  const fresh = sign({ buckets: ['mine'] });
  const expired = sign({ buckets: ['mine'], exp: Date.now() / 1000 - 1 });
  const refused = { name: 'NotAllowedError', message: 'the token has expired: get a new one' };
  await assert.rejects(connect(there.url, { bucket: 'mine', token: expired }), refused);
  await assert.rejects(connect(there.url, { bucket: 'mine', token: async () => expired, retry: true }), refused);
  const between = await network(there.url);
  let token = fresh;
  const manager = await connected(between.url, { bucket: 'mine', token: () => token });
  const held = await hold(manager, 'a');
  const waits = manager.acquire('a');
  await until(async () => (await manager.query()).pending.length === 1);
  // A session goes on when its token expires. The next connection needs one that is valid.
  token = expired;
  between.drop();
  const lost = { name: 'AbortError', cause: 'lost', message: 'The lock "a" was lost: the token has expired: get a new one' };
  await Promise.all([held.released, waits].map((ended) => assert.rejects(ended, lost)));
  assert.equal(held.lock.signal.reason.message, lost.message);
  assert.throws(() => held.lock.assertHeld(), lost);
  await until(() => manager.status === 'closed');
  for (const ask of [() => manager.request('b', () => {}), () => manager.acquire('b'), () => manager.query()]) {
    await assert.rejects(ask(), refused);
  }
  token = fresh;
  assert.equal(await manager.request('b', () => 'again'), 'again');
});

testAnywhere('where there is no WebSocket, the error says what to do', async () => {
  const own = Object.getOwnPropertyDescriptor(globalThis, 'WebSocket');
  Object.defineProperty(globalThis, 'WebSocket', { value: undefined, configurable: true });
  try {
    const told = { name: 'NotSupportedError', message: /Node 22.*\{ WebSocket \}/ };
    await assert.rejects(connect('ws://127.0.0.1:1/'), told);
  } finally {
    delete globalThis.WebSocket;
    if (own) Object.defineProperty(globalThis, 'WebSocket', own);
  }
});

// Bun and Deno have no use for it.
const testNode = runtime === 'node' ? testAnywhere : () => {};

testNode('the WebSocket of the package ws will do, in Node 20 too', async () => {
  const { url } = await serve();
  const between = await network(url);
  const manager = await connected(between.url, { WebSocket });
  const held = await hold(manager, 'a\uD83D');
  between.drop();
  assert.equal(await manager.request('b', () => 'b'), 'b');
  assert.equal(held.lock.signal.aborted, false);
  held.release('value');
  assert.equal(await held.released, 'value');
  const ended = await run(new URL('fixtures/network.js', import.meta.url), ['held', url, 'ws']);
  assert.deepEqual([ended.stdout.trim(), ended.code], ['held', 0], ended.stderr);
  await assert.rejects(connect('ws://127.0.0.1:1/', { WebSocket }), { name: 'NetworkError', message: /ECONNREFUSED/ });
});

test('timeouts are told apart from other aborts', async () => {
  const { url } = await serve();
  const manager = await connected(url);
  await hold(manager, 'a');
  await assert.rejects(manager.acquire('a', { timeout: 1 }), { name: 'TimeoutError' });
  const aborted = new AbortController();
  const waiting = manager.acquire('a', { signal: aborted.signal });
  aborted.abort();
  await assert.rejects(waiting, { name: 'AbortError' });
  await manager.query();
  const page = await (await fetch(url.replace('ws:', 'http:') + 'metrics')).text();
  const [aborts, timeouts] = ['aborts', 'timeouts'].map((what) => page.match(`lockkeeper_${what}_total (\\d+)\n`)?.[1]);
  assert.deepEqual([aborts, timeouts], ['2', '1'], page);
});

test('wss://: who trusts the certificate has its locks, who does not has a NetworkError', async () => {
  // Made for this test: `openssl req -x509 -newkey ec … -subj /CN=localhost`, for a hundred years.
  const [cert, key] = ['cert', 'key'].map((file) => fileURLToPath(new URL(`fixtures/tls/${file}.pem`, import.meta.url)));
  const there = await serve('--tls-cert', cert, '--tls-key', key);
  const url = `wss://localhost:${new URL(there.url).port}/`;
  const program = [new URL('fixtures/network.js', import.meta.url), ['closed', url]];
  const trust = { env: { ...process.env, NODE_EXTRA_CA_CERTS: cert, DENO_CERT: cert } };
  const served = await run(...program, trust);
  assert.deepEqual([served.stdout.trim(), served.code], ['closed', 0], served.stderr);
  const refused = await run(...program);
  assert.match(refused.stderr, /NetworkError/);
  assert.notEqual(refused.code, 0);
});

const programs = {
  idle: ['idle', 'does not live on for a connection'],
  waiting: ['granted', 'waits for a lock, and ends when it has been granted'],
  held: ['held', 'does not live on for a lock that it holds, which is free when it has ended'],
  unawaited: ['unawaited', 'ends in order while it holds a lock and waits for nothing'],
  closed: ['closed', 'ends after close(), and what it had is free'],
};
// A WebSocket of Bun or Deno keeps its process alive until it is closed.
const ending = runtime === 'node' ? Object.keys(programs) : ['closed'];
for (const program of ending) {
  const [output, what] = programs[program];
  test(`a process ${what}`, async () => {
    // A ttl that would be noticed.
    const { url } = await serve('--ttl', '1h');
    const ended = await run(new URL('fixtures/network.js', import.meta.url), [program, url]);
    assert.deepEqual([ended.stdout.trim(), ended.code], [output, 0], ended.stderr);
    const manager = await connected(url);
    assert.equal(await manager.request('resource', () => 'free'), 'free');
  });
}

test('status: connecting, connected, reconnecting, closed; each change is an event', async () => {
  const there = machine({ network: true });
  const daemon = await there.start();
  const manager = await connected(there.url);
  assert.equal(manager.status, 'connected');
  const seen = [];
  const listener = () => seen.push(manager.status);
  manager.addEventListener('statuschange', listener);
  await daemon.kill('SIGKILL');
  await until(() => manager.status === 'reconnecting');
  await there.start();
  await until(() => manager.status === 'connected');
  await manager.close();
  assert.equal(manager.status, 'closed');
  await turn();
  assert.deepEqual(seen, ['reconnecting', 'connected', 'closed']);
  manager.removeEventListener('statuschange', listener);
  assert.equal(locks.status, 'connected', 'a manager of this process is always connected');
});

test('connect(url, { retry }) waits for a daemon that is not there yet, until its signal aborts', async () => {
  const there = machine({ network: true });
  const daemon = await there.start();
  await daemon.kill('SIGKILL');
  await assert.rejects(connect(there.url), { name: 'NetworkError' });
  const controller = new AbortController();
  const given = connect(there.url, { retry: true, signal: controller.signal });
  controller.abort(new Error('enough'));
  await assert.rejects(given, /enough/);
  await assert.rejects(connect(there.url, { signal: AbortSignal.abort(new Error('before')) }), /before/);
  const waiting = connect(there.url, { retry: true });
  await there.start();
  const manager = await waiting;
  assert.equal(await manager.request('a', () => manager.status), 'connected');
  await manager[Symbol.asyncDispose]();
  await assert.rejects(manager.request('a', () => {}), { name: 'InvalidStateError' });
});

test('a signal that aborts once there is a session does nothing', async () => {
  const there = machine({ network: true });
  await there.start();
  const controller = new AbortController();
  const manager = await connected(there.url, { signal: controller.signal });
  controller.abort();
  assert.equal(await manager.request('a', () => 'granted'), 'granted');
  await assert.rejects(connect('unix:/nowhere', { retry: true }), /retry is for ws:/);
});
