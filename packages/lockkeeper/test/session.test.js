/**
 * The session over WebSocket: what it sends when a connection is lost, when its lease ends, and
 * what it tells of it. The server, the network and the time are the test's. That the machine inside
 * does as the Rust one is in transcripts.test.js.
 */

import { DeadlockError } from '../dist/errors.js';
import { clockOf } from '../dist/host.js';
import { Remote } from '../dist/remote.js';
import { newManager } from '../dist/manager.js';
import { proposals } from '../dist/proposals-of.js';
import { pack, packAll, unpackAll } from '../dist/pack.js';
import { WebSocketSession } from '../dist/websocket-session.js';
import * as R from '../dist/to-client.js';
import { fromName, toName } from '../dist/wire.js';
import { assert, test, turn, until } from './harness.js';

const SECRET = new Uint8Array(16).fill(7);
const TTL = 10_000;
const kinds = ['hello', 'request', 'release', 'force', 'end', 'query', 'ping', 'confirm', 'bye'];

/** A WebSocket whose other end is the test. */
class FakeSocket {
  said = [];
  frames = 0;
  closed = false;
  #listeners = [];

  constructor(url, protocol) {
    Object.assign(this, { url, protocol });
  }
  addEventListener(type, listener) {
    this.#listeners.push({ type, listener });
  }
  send(data) {
    this.frames += 1;
    for (const [kind, ...rest] of unpackAll(data)) this.said.push([kinds[kind], ...rest]);
  }
  close() {
    this.closed = true;
  }
  emit(type, event = {}) {
    for (const listener of this.#listeners) if (listener.type === type) listener.listener(event);
  }
  /** What has been sent since the last time. */
  take() {
    return this.said.splice(0);
  }
  open() {
    this.emit('open');
  }
  hear(...message) {
    this.hearAll(message);
  }
  /** Messages in one frame. */
  hearAll(...messages) {
    const [frame] = packAll(messages, Infinity);
    this.emit('message', { data: frame.buffer });
  }
  /**
   * Answers the Hello: with these requests, and this as the greatest number that the server has.
   */
  answer({ resumed = false, id = 'me', number = 1, lastRid = 0, listed = [], ttl = TTL } = {}) {
    this.hear(R.WELCOME, 2, 0, number, id, SECRET, ttl, resumed, lastRid);
    if (listed.length > 0) this.hear(R.LISTED, listed);
    this.hear(R.SYNCED);
  }
  welcome(given) {
    this.open();
    this.answer(given);
  }
  /** Goes on with the session. */
  resume(given) {
    this.welcome({ resumed: true, number: 2, ...given });
  }
  cut() {
    this.emit('close');
  }
}

/** A runtime with a clock that the test moves, and a page that it shows and hides. */
function fakeRuntime() {
  const timers = new Set();
  const world = {
    sockets: [],
    /** Milliseconds by either clock. */
    steady: 0,
    wall: 1_000_000,
    page: {},
    goingAwayEnds: false,
    watchPage: (left, shown) => (Object.assign(world.page, { left, shown }), () => (world.page = {})),
    open(url, protocol) {
      const socket = new FakeSocket(url, protocol);
      this.sockets.push(socket);
      return socket;
    },
    later(run, milliseconds) {
      const timer = { run, at: world.steady + Math.ceil(milliseconds) };
      timers.add(timer);
      return () => timers.delete(timer);
    },
    /** Lets time pass, and whatever is to happen meanwhile. */
    pass(milliseconds) {
      const end = world.steady + milliseconds;
      for (;;) {
        const next = [...timers].filter(({ at }) => at <= end).sort((a, b) => a.at - b.at)[0];
        const at = next ? Math.max(next.at, world.steady) : end;
        world.block(at - world.steady);
        if (!next) return;
        timers.delete(next);
        next.run();
      }
    },
    /** Time passes, and nothing happens: the thread is busy. */
    block(milliseconds) {
      world.wall += milliseconds;
      world.steady += milliseconds;
    },
    get timers() {
      return timers.size;
    },
    get socket() {
      return world.sockets.at(-1);
    },
  };
  world.now = clockOf(
    () => world.steady,
    () => world.wall,
  );
  return world;
}

function remoteOn(world, credentials = { bucket: 'b', token: 'secret' }, urls = ['ws://test/']) {
  const remote = new Remote((listener) => new WebSocketSession(listener, urls, credentials, world));
  // To ask for it starts it.
  void remote.opened;
  return remote;
}

/** A manager on a fake runtime, connected. */
async function connected(credentials) {
  const world = fakeRuntime();
  const remote = remoteOn(world, credentials);
  const manager = newManager(remote);
  world.socket.welcome();
  await remote.opened;
  const hello = world.socket.take()[0];
  return { world, manager, remote, hello };
}

/** Asks for a lock. `state` tells how it is. */
function ask(manager, name, options = {}) {
  const asked = { state: 'waiting' };
  asked.done = manager.request(name, options, (lock) => {
    Object.assign(asked, { state: 'held', lock });
    return new Promise((resolve) => (asked.release = resolve));
  });
  asked.done.then(
    () => (asked.state = 'released'),
    (error) => (asked.state = error.cause ?? error.name),
  );
  return asked;
}

/** Has grants delivered and promises settled. */
async function settle() {
  for (let i = 0; i < 3; i++) await turn();
}

/** Has what was asked in this turn sent. */
const sent = () => Promise.resolve();

async function held(manager, world, name, rid, token = 40 + rid) {
  const asked = ask(manager, name);
  await sent();
  world.socket.take();
  world.socket.hear(R.GRANTED, rid, token);
  await settle();
  assert.equal(asked.state, 'held');
  return asked;
}

/** The kinds and numbers of what was sent. */
const brief = (said) => said.map(([kind, , rid]) => [kind, rid]);

test('a session begins when something is first asked of it, and nobody else hears that it fails', async () => {
  const world = fakeRuntime();
  const remote = new Remote((listener) => new WebSocketSession(listener, ['ws://test/'], { bucket: 'b', token: null }, world));
  assert.equal(world.sockets.length, 0);
  const asked = newManager(remote).query();
  world.socket.emit('close');
  await assert.rejects(asked, { name: 'NetworkError' });
  assert.equal(remote.state, 'closed');
  // A rejection that nobody handles would fail the test.
  await settle();
  const other = new Remote(() => assert.fail('to close it does not begin it'));
  await other.close();
});

const SEVERAL = ['ws://a/', 'ws://b/', 'ws://c/'];

test('several URLs: each attempt goes to the next one, and it fails when all have', async () => {
  const world = fakeRuntime();
  const remote = remoteOn(world, undefined, SEVERAL);
  const failures = [
    (socket) => socket.emit('error', { message: 'refused' }),
    // The first daemons are not waited for as long as one alone would be.
    () => world.pass(2000),
    // It was there, and went before it had answered.
    (socket) => (socket.open(), socket.cut()),
  ];
  for (const [i, fail] of failures.entries()) {
    assert.equal(world.sockets.length, i + 1);
    assert.equal(remote.state, 'connecting');
    fail(world.socket);
    world.pass(100);
  }
  await assert.rejects(remote.opened, { name: 'NetworkError', message: /^no session at ws:\/\/a\/,ws:\/\/b\/,ws:\/\/c\/: refused or interrupted/ });
  assert.deepEqual(world.sockets.map(({ url }) => url), SEVERAL);
  // What is asked then is asked of all again.
  void newManager(remote).query();
  world.socket.emit('close');
  world.pass(100);
  world.socket.welcome();
  for (let i = 0; i < 3; i++) {
    world.socket.cut();
    world.pass(100);
  }
  assert.deepEqual(world.sockets.slice(3).map(({ url }) => url), ['ws://a/', 'ws://b/', 'ws://c/', 'ws://a/', 'ws://b/']);
});

test('several URLs: the last one is waited for as long as one alone, and one that serves nobody is not the last', async () => {
  const world = fakeRuntime();
  const remote = remoteOn(world, undefined, SEVERAL.slice(1));
  world.socket.open();
  world.socket.hear(R.GOODBYE, 33, 'nobody leads');
  world.pass(100);
  assert.equal(world.socket.url, 'ws://c/');
  world.pass(9000);
  world.socket.welcome();
  await remote.opened;
});

test('several URLs: one that is stopped takes no more than its share of the time in which a session can be resumed', async () => {
  const world = fakeRuntime();
  const remote = remoteOn(world, undefined, SEVERAL);
  world.socket.welcome();
  await remote.opened;
  const first = world.sockets.length;
  // It answers no ping. The others do not lead yet.
  while (world.sockets.length === first) world.pass(100);
  for (const url of ['ws://b/', 'ws://c/']) {
    while (world.socket.closed) world.pass(10);
    assert.equal(world.socket.url, url);
    world.socket.open();
    world.socket.hear(R.GOODBYE, 33, 'nobody leads');
  }
  while (world.socket.closed) world.pass(10);
  assert.equal(world.socket.url, 'ws://a/');
  const silent = world.socket;
  world.pass(Math.ceil(TTL / 4 / SEVERAL.length));
  assert.ok(silent.closed, 'the others are asked again');
});

test('a refusal that comes before the token is one all the same', async () => {
  const world = fakeRuntime();
  const remote = remoteOn(world, { bucket: 'b', token: () => new Promise(() => {}) });
  world.socket.open();
  world.socket.hear(R.GOODBYE, 20, 'the origin is not allowed');
  await assert.rejects(remote.opened, { name: 'NotAllowedError', message: 'the origin is not allowed' });
});

test('a token that is missing, or a policy that forbids the connection, ends the attempts of { retry }', async () => {
  const world = fakeRuntime();
  const remote = remoteOn(world, { bucket: 'b', token: null, retry: true });
  world.socket.emit('close');
  world.pass(100);
  assert.equal(remote.state, 'connecting');
  assert.ok(world.sockets.length > 1, 'it tries again');
  world.blocked = () => 'the policy forbids it';
  world.socket.emit('error');
  await assert.rejects(remote.opened, { name: 'NetworkError', message: /the policy forbids it/ });
  assert.equal(remote.state, 'closed');
  assert.equal(world.timers, 0);
});

test('hello: version, features, its number, bucket, no session to resume, no acknowledgement, token', async () => {
  const { world, hello } = await connected();
  assert.deepEqual(hello, ['hello', 2, 0, 1, 'b', null, 0, 'secret', null, null]);
  assert.deepEqual([world.socket.url, world.socket.protocol], ['ws://test/', 'lockkeeper.v2']);
  const other = await connected({ bucket: 'c', token: null });
  assert.deepEqual(other.hello, ['hello', 2, 0, 1, 'c', null, 0, null, null, null]);
});

test('hello: a browser says that its connections end with status 1001 when it does', () => {
  const world = fakeRuntime();
  world.goingAwayEnds = true;
  remoteOn(world).opened.catch(() => {});
  world.socket.open();
  assert.equal(world.socket.take()[0][2], 2);
});

test('nothing is sent before the end marker', async () => {
  const world = fakeRuntime();
  const remote = remoteOn(world);
  ask(newManager(remote), 'a');
  world.socket.open();
  world.socket.hear(R.WELCOME, 2, 0, 1, 'me', SECRET, TTL, false, 0);
  assert.deepEqual(brief(world.socket.take()), [['hello', 0]]);
  world.socket.hear(R.SYNCED);
  assert.deepEqual(brief(world.socket.take()), [['request', 1]]);
  await remote.opened;
});

test('a request, its grant and its release', async () => {
  const { world, manager } = await connected();
  const asked = ask(manager, 'a', { mode: 'shared' });
  await sent();
  const [[kind, ack, rid, [[name, shared]], ...rest]] = world.socket.take();
  assert.deepEqual([kind, ack, rid, fromName(name), shared, ...rest], ['request', 1, 1, 'a', true, 0, null, null]);
  world.socket.hear(R.QUEUED, 1, 5);
  world.socket.hear(R.GRANTED, 1, 2n ** 63n);
  await settle();
  assert.deepEqual([asked.lock.token, asked.lock.held], [2n ** 63n, true]);
  asked.release('value');
  await settle();
  assert.deepEqual(world.socket.take(), [['release', 1, 1, 0]]);
  assert.deepEqual([asked.state, asked.lock.held], ['held', false], 'not before the server has said so');
  world.socket.hear(R.RELEASED, 1);
  assert.equal(await asked.done, 'value');
});

test('flags: those of the protocol', async () => {
  const { world, manager } = await connected();
  ask(manager, 'a', { ifAvailable: true });
  ask(manager, 'a', { steal: true });
  manager.acquire('a', { deadlock: 'refuse', info: 'label' }).catch(() => {});
  await sent();
  assert.deepEqual(world.socket.take().map((said) => [said[4], said[6]]), [[1, null], [2, null], [4, 'label']]);
});

test('a connection is lost: what the server has is compared with what is wanted', async () => {
  const { world, manager } = await connected();
  const one = await held(manager, world, 'held', 1);
  const two = ask(manager, 'waiting');
  world.socket.hear(R.QUEUED, 2, 17);
  const three = ask(manager, 'asked, and recorded');
  const four = await held(manager, world, 'releasing', 4);
  four.release();
  await settle();
  const controller = new AbortController();
  const five = ask(manager, 'aborting', { signal: controller.signal });
  controller.abort('enough');
  const six = ask(manager, 'asked, without effect', { ifAvailable: true });
  const seven = ask(manager, 'never received');
  world.socket.cut();
  const eight = ask(manager, 'new');
  const shown = manager.query();
  world.pass(20);
  assert.equal(world.sockets.length, 2, 'after a pause of 20 ms at most');
  const listed = [[1, 16, 41], [2, 17, 50], [3, 18, null], [5, 19, null], [99, 20, null]];
  world.socket.resume({ lastRid: 6, listed });
  const said = world.socket.take();
  assert.deepEqual(said[0], ['hello', 2, 0, 2, 'b', ['me', SECRET], 1, 'secret', null, null]);
  assert.deepEqual(
    said.slice(1).map(([kind, ack, rid, rest]) => [kind, ack, rid, kind === 'release' ? rest : null]),
    [
      ['release', 2, 5, 0],
      // It is listed, and nobody wants it.
      ['release', 2, 99, 1],
      ['request', 2, 7, null],
      // The new number exceeds all that were used.
      ['request', 2, 8, null],
      ['request', 2, 9, null],
      ['query', 2, 10, null],
    ],
  );
  await settle();
  assert.deepEqual(
    [one, two, three, four].map(({ state }) => state),
    ['held', 'held', 'waiting', 'released'],
  );
  assert.equal(one.lock.signal.aborted, false);
  assert.equal(two.lock.token, 50n);
  world.socket.hear(R.RELEASED, 5);
  assert.equal(await five.done.catch((reason) => reason), 'enough');
  world.socket.hear(R.UNAVAILABLE, 8);
  world.socket.hear(R.GRANTED, 7, 51);
  world.socket.hear(R.GRANTED, 9, 52);
  world.socket.hear(R.SNAPSHOT, 10, [], [], 0, false);
  assert.deepEqual(await shown, { held: [], pending: [] });
  await settle();
  assert.deepEqual([six.lock, seven.state, eight.state], [null, 'held', 'held']);
});

test('a lock that was stolen meanwhile is told of as stolen, and that is acknowledged', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  world.socket.cut();
  world.pass(20);
  world.socket.open();
  world.socket.hear(R.WELCOME, 2, 0, 9, 'me', SECRET, TTL, true, 1);
  world.socket.hear(R.BROKEN, 8, 1, 0, 'somebody');
  world.socket.hear(R.SYNCED);
  await settle();
  assert.equal(asked.state, 'stolen');
  assert.deepEqual([asked.lock.signal.aborted, asked.lock.signal.reason.cause], [true, 'stolen']);
  world.socket.take();
  world.pass(TTL / 5);
  assert.deepEqual(world.socket.take(), [['ping', 9, 1]]);
});

test('a server that has another session for us: all is lost that was sent, and the rest is sent to it', async () => {
  const { world, manager, remote } = await connected();
  const one = await held(manager, world, 'a', 1);
  const two = ask(manager, 'b');
  world.socket.cut();
  const three = ask(manager, 'c');
  world.pass(20);
  world.socket.welcome({ id: 'another' });
  assert.equal(remote.clientId, 'another');
  assert.deepEqual(brief(world.socket.take()).slice(1), [['request', 1]]);
  await settle();
  assert.deepEqual([one.state, two.state, three.state], ['lost', 'lost', 'waiting']);
  world.socket.hear(R.GRANTED, 1, 60);
  await settle();
  assert.equal(three.state, 'held');
});

test('attempts come at growing pauses, and each is given up in time', async () => {
  const { world, manager } = await connected();
  await held(manager, world, 'a', 1);
  world.socket.cut();
  const times = [];
  for (let before = world.steady; world.steady - before < 7_000; ) {
    const count = world.sockets.length;
    world.pass(1);
    if (world.sockets.length === count) continue;
    times.push(world.steady - before);
    if (times.length === 3) continue; // This one hangs.
    world.socket.cut();
  }
  const pauses = times.map((time, i) => time - (times[i - 1] ?? 0));
  assert.ok(pauses[0] <= 21 && pauses[1] <= 41 && pauses[2] <= 81, String(pauses));
  assert.ok(pauses[3] >= TTL / 4 && pauses[3] <= TTL / 4 + 161, `the hanging one: ${pauses}`);
  assert.ok(pauses.slice(4).every((pause) => pause >= 80 && pause <= 941), String(pauses));
  assert.ok(pauses.length < 20, String(pauses));
});

test('the lease ends three quarters of the ttl after the last answered message was sent, and not before', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  world.pass(Math.ceil(TTL / 7));
  assert.deepEqual(world.socket.take(), [['ping', 1, 1]]);
  world.pass(500);
  world.socket.hear(R.PONG, 1); // The ping of 1,429 is answered at 1,929.
  world.socket.cut();
  world.pass(7000 - 1); // 8,928
  assert.deepEqual([asked.lock.signal.aborted, asked.lock.held], [false, true]);
  world.pass(1);
  await settle();
  assert.equal(asked.state, 'lost');
  assert.deepEqual([asked.lock.signal.aborted, asked.lock.signal.reason.cause], [true, 'lost']);
  await assert.rejects(asked.done, { name: 'AbortError' });
});

test('the lease of a resumed session begins when its Hello was sent', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  world.socket.cut();
  world.pass(2000);
  world.socket.open();
  world.pass(1000);
  world.socket.answer({ resumed: true, number: 2, lastRid: 1, listed: [[1, 1, 41]] });
  world.socket.cut();
  world.pass(6499);
  assert.equal(asked.lock.held, true);
  world.pass(1);
  assert.equal(asked.lock.held, false);
});

test('a server that is connected and silent does not extend the lease', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  const [first] = world.sockets;
  world.pass(7499);
  assert.deepEqual(first.take(), [['ping', 1, 1], ['ping', 1, 2]]);
  assert.ok(first.closed && world.sockets.length > 1, 'after two pings, another connection is tried');
  assert.equal(asked.lock.signal.aborted, false);
  world.pass(1);
  await settle();
  assert.equal(asked.state, 'lost');
});

test('heartbeats: a ping at least every quarter of the ttl, as long as they are answered', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  let last = world.steady;
  for (let i = 0; i < 100_000; i++) {
    world.pass(1);
    const said = world.socket.take();
    if (said.length === 0) continue;
    assert.deepEqual(said.map(([kind]) => kind), ['ping']);
    assert.ok(world.steady - last <= TTL / 4, `${world.steady - last} ms`);
    last = world.steady;
    world.pass(100);
    world.socket.hear(R.PONG, said[0][2]);
  }
  assert.ok(world.steady - last <= TTL / 4);
  assert.equal(asked.state, 'held');
  assert.equal(world.sockets.length, 1);
});

test('heartbeats: the timer is set anew when an answer comes, so that it is not one of a chain', async () => {
  const { world, manager } = await connected();
  await held(manager, world, 'a', 1);
  world.pass(2000);
  let set = 0;
  const { later } = world;
  world.later = (...given) => ((set += 1), later(...given));
  world.socket.hear(R.PONG, 1);
  assert.equal(set, 1);
  assert.equal(world.timers, 1);
});

for (const clock of ['wall', 'steady']) {
  test(`the lease ends in suspend, where only the ${clock} clock goes on`, async () => {
    const { world, manager } = await connected();
    const asked = await held(manager, world, 'a', 1);
    const other = ask(manager, 'b');
    world[clock] += 60_000;
    const [first] = world.sockets;
    // The first thing that is read is old.
    first.hear(R.GRANTED, 2, 99);
    await settle();
    assert.deepEqual([asked.state, other.state], ['lost', 'lost']);
    assert.deepEqual(first.take().map(([kind]) => kind), ['request', 'bye']);
    assert.equal(first.closed, true);
  });
}

test('the lease ends in time if the wall clock is set back', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  world.wall -= 3_600_000;
  world.socket.cut();
  world.pass(7500);
  await settle();
  assert.equal(asked.state, 'lost');
});

test('the clock goes by whichever of two advances further, and never back', () => {
  const world = { steady: 5, wall: 1000 };
  const now = clockOf(
    () => world.steady,
    () => world.wall,
  );
  const after = (steady, wall) => ((world.steady += steady), (world.wall += wall), now() / 1000);
  assert.equal(after(0, 0), 0);
  assert.equal(after(10, 10), 10);
  assert.equal(after(0.4, 1), 11);
  assert.equal(after(0.6, 0), 11, 'what is rounded is not counted twice');
  assert.equal(after(10, -3_600_000), 21, 'the wall clock is set back');
  assert.equal(after(0, 600_000), 600_021, 'and goes on in suspend all the same');
  assert.equal(after(10, -600_000), 600_031);
  assert.equal(after(10, 10), 600_041);
});

test('code that blocks its thread past the lease sees at once that its lock is lost', async () => {
  for (const look of [(lock) => lock.held === false, (lock) => lock.signal.aborted]) {
    const { world, manager } = await connected();
    const one = await held(manager, world, 'a', 1);
    const two = await held(manager, world, 'b', 2);
    const [first] = world.sockets;
    world.block(7499);
    assert.equal(look(one.lock), false);
    world.block(1);
    assert.equal(look(one.lock), true, 'without a turn of the event loop');
    assert.deepEqual(first.take(), [['bye', 1]], 'others need not wait for the ttl');
    assert.deepEqual([two.lock.held, two.lock.signal.aborted, two.lock.signal.reason.cause], [false, true, 'lost']);
    await settle();
    assert.deepEqual([one.state, two.state], ['lost', 'lost']);
    world.socket.welcome({ id: 'next' });
    const again = await held(manager, world, 'a', 1);
    assert.equal(again.lock.held, true, 'in the next session');
  }
});

test('code that blocks its thread past the lease is told that its lock was lost, not released', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  world.block(7500);
  asked.release('value');
  await settle();
  assert.equal(asked.state, 'lost');
});

test('so are the forms before the draft', async () => {
  const { world, manager } = await connected();
  const asked = proposals(manager).requestExplicitLock('a');
  await settle();
  world.socket.hear(R.GRANTED, 1, 41);
  const lock = await asked;
  world.block(7500);
  await assert.rejects(lock.waitUntil(null), TypeError);
  assert.equal(lock.release(), false);
  assert.equal(lock.signal.reason.cause, 'lost');
});

test('a session that resumes in time keeps its locks', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  for (let i = 0; i < 5; i++) {
    world.socket.cut();
    world.pass(2400);
    world.socket.resume({ number: 2 + i, lastRid: 1, listed: [[1, 1, 41]] });
  }
  await settle();
  assert.equal(asked.state, 'held');
});

test('after a loss the manager opens a new session by itself, however long that takes', async () => {
  const { world, manager, remote } = await connected();
  const before = await held(manager, world, 'a', 1);
  world.socket.cut();
  world.pass(8000);
  await settle();
  assert.equal(before.state, 'lost');
  const after = ask(manager, 'a');
  for (let i = 0; i < 50; i++) {
    world.socket.cut();
    world.pass(2000);
  }
  assert.equal(after.state, 'waiting');
  world.socket.welcome({ id: 'later' });
  assert.equal(remote.clientId, 'later');
  assert.deepEqual(world.socket.take().map(([kind, , rid, , , resume]) => [kind, rid, resume]), [
    ['hello', 0, null],
    ['request', 1, null],
  ]);
  world.socket.hear(R.GRANTED, 1, 77);
  await settle();
  assert.equal(after.state, 'held');
});

test('after a loss: what was asked without a connection is sent in the next session', async () => {
  const { world, manager } = await connected();
  const one = await held(manager, world, 'a', 1);
  world.socket.cut();
  const two = ask(manager, 'b');
  world.pass(7500);
  await settle();
  assert.deepEqual([one.state, two.state], ['lost', 'waiting']);
  world.socket.welcome({ id: 'another' });
  assert.deepEqual(brief(world.socket.take()), [['hello', 0], ['request', 1]]);
});

test('a request that was not sent yet can be given up', async () => {
  const { world, manager } = await connected();
  world.socket.cut();
  const controller = new AbortController();
  const asked = ask(manager, 'a', { signal: controller.signal });
  controller.abort('enough');
  assert.equal(await asked.done.catch((reason) => reason), 'enough');
  world.pass(20);
  world.socket.resume();
  assert.deepEqual(brief(world.socket.take()), [['hello', 0]]);
});

test('a release that was not answered when all was lost has been done', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  asked.release('value');
  await settle();
  world.socket.cut();
  world.pass(8000);
  assert.equal(await asked.done, 'value');
});

test('a question that was half answered when the connection was lost is asked again', async () => {
  const { world, manager } = await connected();
  const shown = manager.query();
  const entry = (name) => [toName(name), false, 'somebody', 1, 1, null, 0, null, false, null];
  world.socket.hear(R.SNAPSHOT, 1, [entry('a'), entry('b')], [], 1, true);
  world.socket.cut();
  world.pass(20);
  world.socket.resume();
  assert.deepEqual(brief(world.socket.take()), [['hello', 0], ['query', 1]]);
  world.socket.hear(R.SNAPSHOT, 1, [entry('a'), entry('b')], [], 1, true);
  world.socket.hear(R.SNAPSHOT, 1, [entry('c')], [], 1, false);
  assert.deepEqual((await shown).held.map(({ name }) => name), ['a', 'b', 'c']);
});

test('a force release is not asked again: its outcome comes, or it is not known', async () => {
  const { world, remote } = await connected();
  const forced = remote.forceRelease('a');
  await sent();
  assert.deepEqual(brief(world.socket.take()), [['force', 1]]);
  world.socket.hear(R.OUTCOME, 2, 1, 1);
  await forced;
  const unknown = remote.forceRelease('a');
  world.socket.cut();
  world.pass(8000);
  await assert.rejects(unknown, { name: 'NetworkError', message: /the session was lost: the outcome is unknown/ });
});

test('old connections are not listened to', async () => {
  const { world, manager } = await connected();
  const asked = ask(manager, 'a');
  const [old] = world.sockets;
  old.cut();
  world.pass(20);
  world.socket.resume();
  old.hear(R.GRANTED, 1, 41);
  old.cut();
  await settle();
  assert.equal(asked.state, 'waiting');
  assert.equal(world.sockets.length, 2);
});

test('a server that stops is waited for; one that refuses is not', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  world.socket.hear(R.GOODBYE, 32, 'stopping');
  world.pass(20);
  assert.equal(world.sockets.length, 2);
  const waiting = ask(manager, 'b');
  world.socket.open();
  world.socket.hear(R.GOODBYE, 20, 'the token has expired: get another');
  await settle();
  assert.equal(asked.state, 'lost');
  await assert.rejects(waiting.done, { name: 'NotAllowedError', message: /get another/ });
  world.pass(100_000);
  assert.deepEqual([world.sockets.length, world.timers, world.page], [2, 0, {}], 'nothing is left of it');
  const again = ask(manager, 'c');
  assert.equal(world.sockets.length, 3, 'who asks again is told again, or served');
  world.socket.welcome({ id: 'again' });
  world.socket.hear(R.GRANTED, 1, 50);
  await settle();
  assert.equal(again.state, 'held');
});

test('a session that the operator ends is followed by another', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  world.socket.hear(R.GOODBYE, 22, 'ended by the operator');
  await settle();
  assert.equal(asked.state, 'lost');
  world.socket.welcome({ id: 'another' });
  assert.deepEqual(world.socket.take().map(([kind, , , , , resume]) => [kind, resume]), [['hello', null]]);
});

test('a token that has to be fetched is fetched for each connection', async () => {
  const world = fakeRuntime();
  let count = 0;
  const token = async () => {
    if ((count += 1) === 3) throw new Error('no more');
    return `token ${count}`;
  };
  const remote = remoteOn(world, { bucket: 'b', token });
  const greeted = async () => {
    world.socket.open();
    await settle();
    return world.socket.take().map((said) => said[7]);
  };
  assert.deepEqual(await greeted(), ['token 1']);
  world.socket.answer();
  await remote.opened;
  world.socket.cut();
  world.pass(20);
  assert.deepEqual(await greeted(), ['token 2']);
  world.socket.cut();
  world.pass(40);
  const attempts = world.sockets.length;
  assert.deepEqual(await greeted(), []);
  assert.equal(world.socket.closed, true);
  world.pass(80);
  assert.equal(world.sockets.length, attempts + 1, 'it is tried again');
});

test('a token that is slower than the server waits for Hello resumes the session all the same', async () => {
  const world = fakeRuntime();
  let give;
  const remote = remoteOn(world, { bucket: 'b', token: () => new Promise((resolve) => (give = resolve)) });
  world.socket.open();
  give('first');
  await settle();
  world.socket.answer();
  await remote.opened;
  const asked = await held(newManager(remote), world, 'a', 1);
  world.socket.cut();
  world.pass(20);
  const slow = world.socket;
  slow.open();
  world.pass(4000); // More than a fifth, and than a quarter, of the ttl.
  slow.cut(); // The server has waited long enough.
  world.pass(1000);
  assert.equal(world.socket, slow, 'no token, no other attempt');
  give('second');
  await settle();
  assert.notEqual(world.socket, slow);
  world.socket.open();
  assert.deepEqual(world.socket.take().map((said) => said[7]), ['second'], 'at once, with the token in hand');
  world.socket.answer({ resumed: true, number: 2, lastRid: 1, listed: [[1, 1, 41]] });
  world.pass(2400); // Beyond the first lease.
  assert.equal(asked.lock.held, true);
});

test('a token that comes in time for an open connection is used on it', async () => {
  const world = fakeRuntime();
  let give;
  const remote = remoteOn(world, { bucket: 'b', token: () => new Promise((resolve) => (give = resolve)) });
  world.socket.open();
  world.pass(9000);
  give('token');
  await settle();
  assert.equal(world.sockets.length, 1);
  world.socket.answer();
  await remote.opened;
});

/** What `connect()` says if this happens, and that nothing is left. */
async function opening(happens, token = null) {
  const world = fakeRuntime();
  const remote = remoteOn(world, { bucket: 'b', token });
  const early = newManager(remote).request('a', () => {});
  const both = Promise.allSettled([remote.opened, early]);
  await happens(world);
  const [opened, asked] = await both;
  assert.equal(String(opened.reason), String(asked.reason));
  assert.deepEqual([world.timers, world.page], [0, {}]);
  assert.ok(world.sockets.every(({ closed }) => closed));
  world.pass(100_000);
  assert.equal(world.sockets.length, 1);
  throw opened.reason;
}

test('connecting: a server that does not answer, or refuses, is an error, and nothing is left of it', async () => {
  await assert.rejects(opening(({ socket }) => socket.cut()), { name: 'NetworkError', message: /serve --listen/ });
  const refused = ({ socket }) => socket.emit('error', { message: 'ECONNREFUSED' });
  await assert.rejects(opening(refused), { name: 'NetworkError', message: /ECONNREFUSED/ });
  const silent = { name: 'NetworkError', message: /does not answer/ };
  await assert.rejects(opening((world) => world.pass(10_000)), silent);
  await assert.rejects(opening((world) => (world.socket.open(), world.pass(10_000))), silent);
  await assert.rejects(opening((world) => (world.socket.open(), world.socket.cut())), { name: 'NetworkError' });
  const goodbye = (code) => (world) => (world.socket.open(), world.socket.hear(R.GOODBYE, code, 'words'));
  await assert.rejects(opening(goodbye(20)), { name: 'NotAllowedError', message: 'words' });
  await assert.rejects(opening(goodbye(18)), { name: 'NetworkError', message: 'words' });
  await assert.rejects(opening(goodbye(32)), { name: 'NetworkError', message: 'words' });
  await assert.rejects(opening(goodbye(2)), { name: 'NetworkError', message: 'words' });
  const noise = (data) => (world) => (world.socket.open(), world.socket.emit('message', { data }));
  await assert.rejects(opening(noise('text')), { name: 'NetworkError', message: /not speak/ });
  await assert.rejects(opening(noise(new ArrayBuffer(3))), { name: 'NetworkError', message: /not speak/ });
  await assert.rejects(opening(({ page }) => page.left(false)), { name: 'NetworkError', message: /page was left/ });
});

test('connecting: a token function that throws is named as the cause', async () => {
  const cause = new Error('no more tokens');
  const thrown = opening(
    ({ socket }) => socket.open(),
    () => {
      throw cause;
    },
  );
  const error = await thrown.catch((error) => error);
  assert.equal(error.name, 'NetworkError');
  assert.match(error.message, /token function failed.*no more tokens/);
  assert.equal(error.cause, cause);
  const hangs = opening(
    async (world) => {
      world.socket.open();
      world.pass(60_000);
    },
    () => new Promise(() => {}),
  );
  await assert.rejects(hangs, { name: 'NetworkError', message: /token function has not settled/ });
});

test('connecting: an address that no WebSocket takes is an error, and nothing is left of it', async () => {
  const world = fakeRuntime();
  world.open = () => {
    throw new SyntaxError('not a URL');
  };
  const remote = remoteOn(world);
  await assert.rejects(remote.opened, { name: 'NetworkError', message: /not a URL/ });
  assert.deepEqual([world.timers, world.page], [0, {}]);
  await assert.rejects(newManager(remote).request('a', () => {}), { name: 'NetworkError', message: /not a URL/ });
  assert.deepEqual([world.timers, world.page], [0, {}]);
});

test('what is no message drops the connection, not the session', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  world.socket.emit('message', { data: new ArrayBuffer(1) });
  assert.equal(world.sockets[0].closed, true);
  world.pass(20);
  world.socket.resume({ lastRid: 1, listed: [[1, 1, 41]] });
  await settle();
  assert.equal(asked.state, 'held');
});

test('close() says bye, ends all, and resolves when the connection is closed', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  const waiting = ask(manager, 'b');
  await sent();
  world.socket.take();
  let closed = false;
  const closing = manager.close().then(() => (closed = true));
  assert.deepEqual(world.socket.take(), [['bye', 1]]);
  assert.equal(world.socket.closed, true);
  await settle();
  assert.deepEqual([asked.state, waiting.state, closed], ['closed', 'closed', false]);
  world.socket.cut();
  await closing;
  await assert.rejects(manager.request('a', () => {}), { name: 'InvalidStateError' });
  await assert.rejects(manager.query(), { name: 'InvalidStateError' });
  world.pass(100_000);
  assert.deepEqual([world.sockets.length, world.timers, world.page], [1, 0, {}]);
});

test('close() without a connection ends all, too', async () => {
  const { world, manager } = await connected();
  const one = await held(manager, world, 'a', 1);
  world.socket.cut();
  const two = ask(manager, 'b');
  const shown = manager.query();
  await manager.close();
  await assert.rejects(shown, { name: 'NetworkError', message: /closed/ });
  await settle();
  assert.deepEqual([one.state, two.state, world.timers], ['closed', 'closed', 0]);
});

test('close() does not wait for a network that is not there', async () => {
  const { world, manager } = await connected();
  const closing = manager.close();
  world.pass(1000);
  await closing;
});

test('a page that is left has no locks, and has a new session when it comes back', async () => {
  const { world, manager, remote } = await connected();
  const asked = await held(manager, world, 'a', 1);
  const waiting = ask(manager, 'b');
  await sent();
  world.socket.take();
  world.page.left(false);
  assert.deepEqual(world.socket.take(), [['bye', 1]]);
  assert.equal(world.socket.closed, true);
  await settle();
  assert.deepEqual([asked.state, waiting.state], ['lost', 'lost']);
  const meanwhile = ask(manager, 'a');
  world.pass(100_000);
  assert.equal(world.sockets.length, 1, 'nothing while it is hidden');
  world.page.shown();
  world.socket.welcome({ id: 'again' });
  assert.deepEqual(world.socket.take().map(([kind, , , , , resume]) => [kind, resume]), [
    ['hello', null],
    ['request', null],
  ]);
  assert.equal(remote.clientId, 'again');
  world.socket.hear(R.GRANTED, 1, 99);
  await settle();
  assert.equal(meanwhile.state, 'held');
});

test('the first show of a page is nothing', async () => {
  const { world } = await connected();
  world.page.shown();
  assert.equal(world.sockets.length, 1);
});

test('a process that ends says bye, and tells nobody: nobody is left', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  world.socket.take();
  world.page.left(true);
  assert.deepEqual(world.socket.take(), [['bye', 1]]);
  await settle();
  assert.equal(asked.state, 'held');
});

test('a release that crosses a steal: told once, as stolen', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  asked.release('value');
  await settle();
  world.socket.hear(R.BROKEN, 2, 1, 0, null);
  world.socket.hear(R.RELEASED, 1);
  await settle();
  assert.equal(asked.state, 'stolen');
});

test('messages about what nobody asked for are ignored', async () => {
  const { world, manager } = await connected();
  for (const rid of [5, 2n ** 60n]) {
    world.socket.hear(R.GRANTED, rid, 1);
    world.socket.hear(R.QUEUED, rid, 1);
    world.socket.hear(R.UNAVAILABLE, rid);
    world.socket.hear(R.RELEASED, rid);
    world.socket.hear(R.BROKEN, 1, rid, 1, null);
    world.socket.hear(R.OUTCOME, 1, rid, 1);
    world.socket.hear(R.REFUSED, rid, 1, 'no');
    world.socket.hear(R.SNAPSHOT, rid, [], [], 0, false);
    world.socket.hear(R.DEADLOCKED, rid, ['no', []]);
  }
  for (const kind of [R.SYNCED, 13, 14]) world.socket.hear(kind);
  world.socket.hear(R.LISTED, [[1, 1, 1]]);
  world.socket.hear(R.WELCOME, 2, 0, 1, 'nobody', SECRET, TTL, false, 0);
  world.socket.hear(R.PONG, 5);
  const asked = await held(manager, world, 'a', 1);
  assert.equal(asked.state, 'held');
});

test('what is longer than a message can be is refused, and not sent', async () => {
  const { world, manager, remote } = await connected();
  const long = 'x'.repeat(2 ** 20);
  await assert.rejects(manager.request(long, () => {}), { name: 'QuotaExceededError' });
  await assert.rejects(manager.acquire('a', { info: long }), { name: 'QuotaExceededError' });
  await assert.rejects(remote.forceRelease(long), { name: 'QuotaExceededError' });
  assert.deepEqual(world.socket.take(), []);
});

test('a deadlock is refused with its cycle, or without if that is not to be known', async () => {
  const { world, manager } = await connected();
  const cycle = [[2n ** 60n, 'somebody', toName('b')], [4, 'me', null]];
  for (const [rid, steps] of [[1, cycle], [2, []]]) {
    const asked = ask(manager, 'a');
    world.socket.hear(R.DEADLOCKED, rid, ['words', steps]);
    const error = await asked.done.catch((error) => error);
    assert.ok(error instanceof DeadlockError);
    assert.equal(error.message, 'words');
    const shown = [{ request: 2n ** 60n, clientId: 'somebody', waitsFor: 'b' }, { request: 4n, clientId: 'me' }];
    assert.deepEqual(error.cycle, steps.length > 0 ? shown : []);
  }
});

test('refusals are the errors of the draft where it has some', async () => {
  const { world, manager } = await connected();
  const names = {
    1: 'NotSupportedError',
    2: 'QuotaExceededError',
    4: 'OperationError',
    6: 'NotAllowedError',
    99: 'OperationError',
  };
  let rid = 0;
  for (const [code, name] of Object.entries(names)) {
    const asked = ask(manager, 'a');
    world.socket.hear(R.REFUSED, (rid += 1), Number(code), 'words');
    await assert.rejects(asked.done, { name, message: 'words' });
  }
  const shown = manager.inspect();
  world.socket.hear(R.REFUSED, rid + 1, 6, 'not with this token');
  await assert.rejects(shown, { name: 'NotAllowedError' });
});

test('no more than a thousand requests are unanswered at a time, and all are made in their order', async () => {
  const { world, manager } = await connected();
  const count = 2500;
  const all = Array.from({ length: count }, (_, i) => ask(manager, `${i}`));
  const rids = () => world.socket.take().filter(([kind]) => kind === 'request').map(([, , rid]) => rid);
  const from = (first, last) => Array.from({ length: last - first + 1 }, (_, i) => first + i);
  await sent();
  assert.deepEqual(rids(), from(1, 1000));
  world.pass(TTL / 5);
  assert.deepEqual(world.socket.take(), [['ping', 1, 1]], 'it does not wait behind all of them');
  world.socket.hear(R.PONG, 1);
  for (const rid of from(1, 10)) world.socket.hear(R.QUEUED, rid, rid);
  for (const rid of from(1, 10)) world.socket.hear(R.GRANTED, rid, rid);
  assert.deepEqual(rids(), from(1001, 1010), 'an answer makes room for one more');
  world.socket.cut();
  world.pass(20);
  // Of those that were not answered, the server has the first hundred.
  const listed = [...from(1, 10).map((rid) => [rid, rid, rid]), ...from(11, 110).map((rid) => [rid, rid, null])];
  world.socket.resume({ lastRid: 110, listed });
  assert.deepEqual(rids(), from(111, 1110), 'what is listed is answered, and makes room for as many');
  for (let rid = 1; rid <= count; rid++) world.socket.hear(R.GRANTED, rid, rid);
  assert.deepEqual(rids(), from(1111, count));
  await until(() => all.every(({ state }) => state === 'held'));
});

test('what is asked in one turn goes in one frame', async () => {
  const { world, manager } = await connected();
  world.socket.frames = 0;
  for (let i = 0; i < 500; i++) ask(manager, `${i}`);
  assert.equal(world.socket.frames, 0);
  await sent();
  assert.deepEqual([world.socket.frames, world.socket.take().length], [1, 500]);
});

test('a frame with several messages is not longer than 64 KiB', async () => {
  const { world, manager } = await connected();
  const lengths = [];
  const { send } = world.socket;
  world.socket.send = (data) => (lengths.push(data.length), send.call(world.socket, data));
  const names = [30_000, 30_000, 30_000, 65_530, 65_536, 1, 1].map((length, i) => `${i}`.repeat(length));
  for (const name of names) ask(manager, name);
  await sent();
  assert.deepEqual(world.socket.take().map(([, , , [[name]]]) => fromName(name)), names);
  assert.deepEqual(lengths.map((length) => length > 65_536), [false, false, true, true, false], String(lengths));
});

test('locks that are granted in one frame are delivered each in a task, and released in one frame', async () => {
  const { world, manager } = await connected();
  const count = 100;
  const seen = [];
  const all = Array.from({ length: count }, (_, i) =>
    manager.request(`${i}`, async () => {
      seen.push(`${i}`);
      await null;
      seen.push(`${i}, later`);
    }),
  );
  await sent();
  world.socket.take();
  world.socket.frames = 0;
  world.socket.hearAll(...all.map((_, i) => [R.GRANTED, i + 1, i + 1]));
  await settle();
  assert.deepEqual(seen, all.flatMap((_, i) => [`${i}`, `${i}, later`]));
  assert.equal(world.socket.frames, 1);
  assert.deepEqual(brief(world.socket.take()), all.map((_, i) => ['release', i + 1]));
  world.socket.hearAll(...all.map((_, i) => [R.RELEASED, i + 1]));
  await Promise.all(all);
});

test('locks whose grants come in several frames of one task are delivered in the order of their grants', async () => {
  const { world, manager } = await connected();
  const seen = [];
  const all = [1, 2, 3, 4].map((rid) => manager.request(`${rid}`, () => seen.push(rid)));
  await sent();
  world.socket.hearAll([R.GRANTED, 1, 1], [R.GRANTED, 2, 2]);
  world.socket.hear(R.GRANTED, 3, 3);
  world.socket.hear(R.GRANTED, 4, 4);
  await settle();
  assert.deepEqual(seen, [1, 2, 3, 4]);
  world.socket.hearAll(...seen.map((rid) => [R.RELEASED, rid]));
  await Promise.all(all);
});

test('a release waits no longer than a millisecond for others to go with it', async () => {
  const { world, manager } = await connected();
  const all = [1, 2, 3].map((rid) => manager.request(`${rid}`, () => world.block(2)));
  await sent();
  world.socket.take();
  world.socket.frames = 0;
  world.socket.hearAll([R.GRANTED, 1, 1], [R.GRANTED, 2, 2], [R.GRANTED, 3, 3]);
  await settle();
  assert.deepEqual(brief(world.socket.take()), [['release', 1], ['release', 2], ['release', 3]]);
  assert.equal(world.socket.frames, 3);
  world.socket.hearAll([R.RELEASED, 1], [R.RELEASED, 2], [R.RELEASED, 3]);
  await Promise.all(all);
});

test('a frame that does not end with a message ends the connection, and the session is resumed', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  const whole = pack([R.PONG, 1]);
  world.socket.emit('message', { data: Uint8Array.of(...whole, ...whole.subarray(0, 1)).buffer });
  assert.ok(world.socket.closed);
  world.pass(20);
  world.socket.resume({ lastRid: 1, listed: [[1, 1, 41]] });
  await settle();
  assert.ok(asked.lock.held);
});

test('a request that waits for room can be given up, and is lost with the session when that is closed', async () => {
  const { world, manager } = await connected();
  for (let i = 0; i < 1000; i++) ask(manager, `${i}`);
  const controller = new AbortController();
  const one = ask(manager, 'one', { signal: controller.signal });
  const two = ask(manager, 'two');
  controller.abort('enough');
  assert.equal(await one.done.catch((reason) => reason), 'enough');
  manager.close();
  await settle();
  assert.equal(two.state, 'closed');
});

test('a lock that is lost says why: the token has expired, or the function that gets one throws', async () => {
  const { world, manager } = await connected();
  const expired = await held(manager, world, 'a', 1);
  world.socket.cut();
  world.pass(100);
  world.socket.open();
  world.socket.hear(R.GOODBYE, 20, 'the token has expired: get another');
  const reason = await expired.done.catch((error) => error);
  assert.equal(reason.cause, 'lost');
  assert.match(reason.message, /was lost: the token has expired/);

  let tokens = 0;
  const token = () => {
    if ((tokens += 1) > 1) throw new Error('no more tokens');
    return 'token';
  };
  const other = fakeRuntime();
  const remote = remoteOn(other, { bucket: 'b', token });
  other.socket.open();
  await until(() => other.socket.said.length > 0);
  other.socket.answer();
  await remote.opened;
  const asked = await held(newManager(remote), other, 'a', 1);
  other.socket.cut();
  for (let last; asked.state === 'held'; other.pass(100)) {
    if (other.socket !== last) other.socket.open();
    last = other.socket;
    await settle();
  }
  const lost = await asked.done.catch((error) => error);
  assert.equal(lost.cause, 'lost');
  assert.match(lost.message, /was lost: the token function failed.*no more tokens/);
});
