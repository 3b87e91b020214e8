/**
 * The session over WebSocket: what it says when a connection drops, when it stops believing, and what it tells of it.
 * The daemon, the network and the time are the test's.
 */

import { DeadlockError } from '../dist/errors.js';
import { between } from '../dist/host.js';
import { Remote } from '../dist/remote.js';
import { newManager } from '../dist/manager.js';
import { unpack, pack } from '../dist/pack.js';
import { WebSocketSession } from '../dist/session.js';
import { fromName, toName } from '../dist/wire.js';
import { assert, test, turn, until } from './harness.js';

const SECRET = new Uint8Array(16).fill(7);
const RECEIPT = new Uint8Array(16).fill(9);
const TTL = 10_000;
const kinds = ['hello', 'request', 'release', 'abort', 'force', 'query', 'reclaim', 'ready', 'ping', 'bye'];

/** A WebSocket whose other end is the test. */
class FakeSocket {
  said = [];
  closed = false;
  #listeners = [];

  constructor(url, protocol) {
    Object.assign(this, { url, protocol });
  }
  addEventListener(type, listener) {
    this.#listeners.push({ type, listener });
  }
  send(data) {
    const [kind, ...rest] = unpack(data);
    this.said.push([kinds[kind], ...rest]);
  }
  close() {
    this.closed = true;
  }
  emit(type, event = {}) {
    for (const listener of this.#listeners) if (listener.type === type) listener.listener(event);
  }
  /** What has been said since the last time. */
  take() {
    return this.said.splice(0);
  }
  open() {
    this.emit('open');
  }
  hear(...message) {
    this.emit('message', { data: pack(message).buffer });
  }
  welcome(resumed = false, id = 'me') {
    this.open();
    this.hear(0, 1, id, SECRET, TTL, resumed);
  }
  cut() {
    this.emit('close');
  }
}

/** A world with a clock that the test moves, and a page that it shows and hides. */
function fakeWorld() {
  const timers = new Set();
  const world = {
    sockets: [],
    /** Milliseconds by either clock. */
    steady: 0,
    wall: 1_000_000,
    page: {},
    watchPage: (left, shown) => (Object.assign(world.page, { left, shown }), () => (world.page = {})),
    open(url, protocol) {
      const socket = new FakeSocket(url, protocol);
      this.sockets.push(socket);
      return socket;
    },
    now: () => [world.steady, world.wall],
    between,
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
        world.wall += at - world.steady;
        world.steady = at;
        if (!next) return;
        timers.delete(next);
        next.run();
      }
    },
    get timers() {
      return timers.size;
    },
    get socket() {
      return world.sockets.at(-1);
    },
  };
  return world;
}

/** A manager on a fake world, connected. */
async function connected(visitor = { bucket: 'b', token: 'secret' }) {
  const world = fakeWorld();
  const remote = new Remote((listener) => new WebSocketSession(listener, 'ws://test/', visitor, world));
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

async function held(manager, world, name, rid, token = 40 + rid) {
  const asked = ask(manager, name);
  world.socket.take();
  world.socket.hear(1, rid, token, RECEIPT);
  await settle();
  assert.equal(asked.state, 'held');
  return asked;
}

test('hello: the version, the bucket, no session to go on with, the token', async () => {
  const { world, hello } = await connected();
  assert.deepEqual(hello, ['hello', 1, 'b', null, 'secret']);
  assert.deepEqual([world.socket.url, world.socket.protocol], ['ws://test/', 'lockkeeper.v1']);
  assert.deepEqual((await connected({ bucket: 'c', token: null })).hello, ['hello', 1, 'c', null, null]);
});

test('a request, its grant and its release', async () => {
  const { world, manager } = await connected();
  const asked = ask(manager, 'a', { mode: 'shared' });
  const [[kind, rid, [[name, shared]], ...rest]] = world.socket.take();
  assert.deepEqual([kind, rid, fromName(name), shared, ...rest], ['request', 1, 'a', true, 0, null, null]);
  world.socket.hear(2, 1, 5);
  world.socket.hear(1, 1, 2n ** 63n, RECEIPT);
  await settle();
  assert.equal(asked.lock.token, 2n ** 63n);
  asked.release('value');
  await settle();
  assert.deepEqual(world.socket.take(), [['release', 1]]);
  assert.equal(asked.state, 'held', 'not before the daemon has said so');
  world.socket.hear(4, 1);
  assert.equal(await asked.done, 'value');
});

test('flags: those of the protocol', async () => {
  const { world, manager } = await connected();
  ask(manager, 'a', { ifAvailable: true });
  ask(manager, 'a', { steal: true });
  manager.acquire('a', { deadlock: 'refuse', info: 'label' }).catch(() => {});
  assert.deepEqual(world.socket.take().map((said) => [said[3], said[5]]), [[1, null], [2, null], [4, 'label']]);
});

test('a connection that drops: the session goes on, and all is said again, in its order', async () => {
  const { world, manager } = await connected();
  const one = await held(manager, world, 'held', 1);
  const two = ask(manager, 'waiting');
  world.socket.hear(2, 2, 17);
  const three = ask(manager, 'asked');
  const four = await held(manager, world, 'releasing', 4);
  four.release();
  await settle();
  const controller = new AbortController();
  const five = ask(manager, 'aborting', { signal: controller.signal });
  controller.abort('enough');
  world.socket.cut();
  const six = ask(manager, 'new');
  const shown = manager.query();
  world.pass(50);
  assert.equal(world.sockets.length, 2, 'after a pause of 50 ms at most');
  world.socket.welcome(true);
  const said = world.socket.take();
  assert.deepEqual(said[0], ['hello', 1, 'b', ['me', SECRET], 'secret']);
  assert.deepEqual(
    said.slice(1).map(([kind, rid, , ...rest]) => [kind, rid, rest.at(-1)]),
    [
      ['reclaim', 1, [41, RECEIPT]],
      ['reclaim', 2, [17]],
      ['request', 3, null],
      ['release', 4, undefined],
      ['abort', 5, undefined],
      ['ready', undefined, undefined],
      ['request', 6, null],
      ['query', 7, false],
    ],
  );
  world.socket.hear(1, 1, 41, RECEIPT);
  world.socket.hear(1, 2, 50, RECEIPT);
  world.socket.hear(2, 3, 18);
  world.socket.hear(4, 4);
  world.socket.hear(5, 5);
  world.socket.hear(3, 6);
  world.socket.hear(8, 7, [], [], 0);
  assert.deepEqual(await shown, { held: [], pending: [] });
  await settle();
  assert.equal(one.lock.signal.aborted, false);
  assert.deepEqual(
    [one, two, three, four].map(({ state }) => state),
    ['held', 'held', 'waiting', 'released'],
  );
  assert.equal(await five.done.catch((reason) => reason), 'enough');
  assert.equal(six.lock, null);
});

test('a lock that was stolen meanwhile is told of as stolen', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  world.socket.cut();
  world.pass(50);
  world.socket.welcome(true);
  world.socket.hear(6, 1, 0);
  await settle();
  assert.equal(asked.state, 'stolen');
  assert.deepEqual([asked.lock.signal.aborted, asked.lock.signal.reason.cause], [true, 'stolen']);
});

test('a daemon that has another session for us: all is lost that was said, and the rest is said to it', async () => {
  const { world, manager } = await connected();
  const one = await held(manager, world, 'a', 1);
  const two = ask(manager, 'b');
  world.socket.cut();
  const three = ask(manager, 'c');
  world.pass(50);
  world.socket.welcome(false, 'another');
  const said = world.socket.take();
  assert.deepEqual(said.map(([kind, rid]) => [kind, rid]).slice(1), [['request', 3]]);
  await settle();
  assert.deepEqual([one.state, two.state, three.state], ['lost', 'lost', 'waiting']);
  world.socket.hear(1, 3, 60, RECEIPT);
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
  assert.ok(pauses[0] <= 51 && pauses[1] <= 101 && pauses[2] <= 201, String(pauses));
  assert.ok(pauses[3] >= TTL / 5 && pauses[3] <= TTL / 5 + 401, `the hanging one: ${pauses}`);
  assert.ok(pauses.slice(4).every((pause) => pause >= 200 && pause <= 2001), String(pauses));
  assert.ok(pauses.length < 12, String(pauses));
});

test('belief ends three quarters of the ttl after the last answer was asked for, and not before', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  world.pass(2000);
  assert.deepEqual(world.socket.take(), [['ping']]);
  world.pass(500);
  world.socket.hear(9); // The ping of 2,000 is answered at 2,500.
  world.socket.cut();
  world.pass(7000 - 1); // 9,499
  assert.equal(asked.lock.signal.aborted, false);
  world.pass(1);
  await settle();
  assert.equal(asked.state, 'lost');
  assert.deepEqual([asked.lock.signal.aborted, asked.lock.signal.reason.cause], [true, 'lost']);
  await assert.rejects(asked.done, { name: 'AbortError' });
});

test('belief: a daemon that is connected and silent is not believed in either', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  const [first] = world.sockets;
  world.pass(7499);
  assert.deepEqual(first.take(), [['ping'], ['ping']]);
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
    assert.deepEqual(said, [['ping']]);
    assert.ok(world.steady - last <= TTL / 4, `${world.steady - last} ms`);
    last = world.steady;
    world.pass(100);
    world.socket.hear(9);
  }
  assert.ok(world.steady - last <= TTL / 4);
  assert.equal(asked.state, 'held');
  assert.equal(world.sockets.length, 1);
});

for (const [which, clock, jump] of [
  ['the wall clock alone goes on in suspend', 'wall', 60_000],
  ['the steady clock alone goes on in suspend', 'steady', 60_000],
]) {
  test(`belief: ${which}`, async () => {
    const { world, manager } = await connected();
    const asked = await held(manager, world, 'a', 1);
    const other = ask(manager, 'b');
    world[clock] += jump;
    // The first thing that is heard is old news.
    world.socket.hear(1, 2, 99, RECEIPT);
    await settle();
    assert.deepEqual([asked.state, other.state], ['lost', 'lost']);
    assert.deepEqual(world.socket.take().map(([kind]) => kind), ['request', 'bye']);
  });
}

test('belief: a wall clock that is set back saves nobody', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  world.wall -= 3_600_000;
  world.socket.cut();
  world.pass(7500);
  await settle();
  assert.equal(asked.state, 'lost');
});

test('belief: a session that goes on in time is believed in again', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  for (let i = 0; i < 5; i++) {
    world.socket.cut();
    world.pass(5000);
    world.socket.welcome(true);
    world.socket.hear(1, 1, 41, RECEIPT);
  }
  await settle();
  assert.equal(asked.state, 'held');
});

test('after a loss: what is asked waits for the next session, and an idle manager asks for none', async () => {
  const { world, manager } = await connected();
  const before = await held(manager, world, 'a', 1);
  world.socket.cut();
  world.pass(8000);
  await settle();
  assert.equal(before.state, 'lost');
  world.socket.cut();
  const attempts = world.sockets.length;
  world.pass(100_000);
  assert.equal(world.sockets.length, attempts, 'nobody waits for it');
  assert.equal(world.timers, 0);
  const after = ask(manager, 'a');
  assert.equal(world.sockets.length, attempts + 1, 'at once');
  for (let i = 0; i < 20; i++) {
    world.socket.cut();
    world.pass(2000);
  }
  assert.equal(after.state, 'waiting', 'however long it takes');
  world.socket.welcome(false, 'later');
  assert.deepEqual(world.socket.take().map(([kind, rid, , resume]) => [kind, rid, resume]), [
    ['hello', 1, null],
    ['request', 2, 0],
  ]);
  world.socket.hear(1, 2, 77, RECEIPT);
  await settle();
  assert.equal(after.state, 'held');
});

test('after a loss: what was asked without a connection is not lost, and is said in the next session', async () => {
  const { world, manager } = await connected();
  const one = await held(manager, world, 'a', 1);
  world.socket.cut();
  const two = ask(manager, 'b');
  world.pass(7500);
  await settle();
  assert.deepEqual([one.state, two.state], ['lost', 'waiting']);
  world.socket.welcome(false, 'another');
  assert.deepEqual(world.socket.take().map(([kind, rid, , resume]) => [kind, rid, resume]), [
    ['hello', 1, null],
    ['request', 2, 0],
  ]);
});

test('after a loss: when the last who waited gives up, nobody is called any more', async () => {
  const { world, manager } = await connected();
  world.socket.cut();
  world.pass(8000);
  const controller = new AbortController();
  const asked = ask(manager, 'a', { signal: controller.signal });
  controller.abort('enough');
  assert.equal(await asked.done.catch((reason) => reason), 'enough');
  world.socket.cut();
  assert.equal(world.timers, 0);
});

test('a request that nobody has heard of can be given up', async () => {
  const { world, manager } = await connected();
  world.socket.cut();
  const controller = new AbortController();
  const asked = ask(manager, 'a', { signal: controller.signal });
  controller.abort('enough');
  assert.equal(await asked.done.catch((reason) => reason), 'enough');
  world.pass(50);
  world.socket.welcome(true);
  assert.deepEqual(world.socket.take().map(([kind]) => kind), ['hello', 'ready']);
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

test('a question that was not answered when the connection dropped is refused', async () => {
  const { world, manager } = await connected();
  const shown = manager.inspect();
  world.socket.cut();
  await assert.rejects(shown, { name: 'NetworkError' });
});

test('old connections are not listened to', async () => {
  const { world, manager } = await connected();
  const asked = ask(manager, 'a');
  const [old] = world.sockets;
  old.cut();
  world.pass(50);
  world.socket.welcome(true);
  old.hear(1, 1, 41, RECEIPT);
  old.cut();
  await settle();
  assert.equal(asked.state, 'waiting');
  assert.equal(world.sockets.length, 2);
});

test('a daemon that stops is waited for; one that refuses is not', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  world.socket.hear(10, 32, 'stopping');
  world.pass(50);
  assert.equal(world.sockets.length, 2);
  const waiting = ask(manager, 'b');
  world.socket.open();
  world.socket.hear(10, 20, 'the token is no longer good: get another');
  await settle();
  assert.equal(asked.state, 'lost');
  await assert.rejects(waiting.done, { name: 'NotAllowedError', message: /get another/ });
  world.pass(100_000);
  assert.equal(world.sockets.length, 2);
  ask(manager, 'c');
  assert.equal(world.sockets.length, 3, 'who asks again is told again');
});

test('a daemon that ends the session is asked for another by who comes next', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  world.socket.hear(10, 17, 'nothing was heard for the ttl: say ping');
  await settle();
  assert.equal(asked.state, 'lost');
  ask(manager, 'b');
  world.socket.welcome(false, 'another');
  assert.deepEqual(world.socket.take().map(([kind, , , resume]) => [kind, resume]), [['hello', null], ['request', 0]]);
});

test('a token that has to be got is got for each connection', async () => {
  const world = fakeWorld();
  let count = 0;
  const token = async () => {
    if ((count += 1) === 3) throw new Error('no more');
    return `token ${count}`;
  };
  const visitor = { bucket: 'b', token };
  const remote = new Remote((listener) => new WebSocketSession(listener, 'ws://test/', visitor, world));
  const greeted = async () => {
    world.socket.open();
    await settle();
    return world.socket.take().map((said) => said.at(-1));
  };
  assert.deepEqual(await greeted(), ['token 1']);
  world.socket.hear(0, 1, 'me', SECRET, TTL, false);
  await remote.opened;
  world.socket.cut();
  world.pass(50);
  assert.deepEqual(await greeted(), ['token 2']);
  world.socket.cut();
  world.pass(100);
  const attempts = world.sockets.length;
  assert.deepEqual(await greeted(), []);
  assert.equal(world.socket.closed, true);
  world.pass(200);
  assert.equal(world.sockets.length, attempts + 1, 'it is tried again');
  world.socket.open();
  world.socket.cut();
  await settle();
  assert.deepEqual(world.socket.take(), [], 'a connection that is gone meanwhile hears nothing');
});

test('connecting: whoever does not answer, or refuses, is an error', async () => {
  const opening = (happens) => {
    const world = fakeWorld();
    const visitor = { bucket: 'b', token: null };
    const remote = new Remote((listener) => new WebSocketSession(listener, 'ws://test/', visitor, world));
    const early = newManager(remote).request('a', () => {});
    happens(world);
    assert.equal(world.timers, 0);
    return Promise.allSettled([remote.opened, early]).then((both) => {
      assert.equal(both[0].reason, both[1].reason);
      throw both[0].reason;
    });
  };
  await assert.rejects(opening(({ socket }) => socket.cut()), { name: 'NetworkError', message: /serve --listen/ });
  await assert.rejects(opening((world) => world.pass(10_000)), { name: 'NetworkError', message: /does not answer/ });
  const goodbye = (code) => (world) => (world.socket.open(), world.socket.hear(10, code, 'words'));
  await assert.rejects(opening(goodbye(20)), { name: 'NotAllowedError', message: 'words' });
  await assert.rejects(opening(goodbye(18)), { name: 'NetworkError', message: 'words' });
  await assert.rejects(opening(goodbye(32)), { name: 'NetworkError', message: 'words' });
  const noise = (data) => (world) => (world.socket.open(), world.socket.emit('message', { data }));
  await assert.rejects(opening(noise('text')), { name: 'NetworkError', message: /not speak/ });
  await assert.rejects(opening(noise(new ArrayBuffer(3))), { name: 'NetworkError', message: /not speak/ });
  await assert.rejects(opening((world) => (world.socket.open(), world.socket.hear(9))), { message: /not speak/ });
});

test('what is no message drops the connection, not the session', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  world.socket.emit('message', { data: new ArrayBuffer(1) });
  assert.equal(world.sockets[0].closed, true);
  world.pass(50);
  world.socket.welcome(true);
  assert.equal(world.socket.take()[1][0], 'reclaim');
  await settle();
  assert.equal(asked.state, 'held');
});

test('close() says bye, ends all, and resolves when the connection is closed', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  const waiting = ask(manager, 'b');
  world.socket.take();
  let closed = false;
  const closing = manager.close().then(() => (closed = true));
  assert.deepEqual(world.socket.take(), [['bye']]);
  assert.equal(world.socket.closed, true);
  await settle();
  assert.deepEqual([asked.state, waiting.state, closed], ['lost', 'lost', false]);
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
  await manager.close();
  await settle();
  assert.deepEqual([one.state, two.state, world.timers], ['lost', 'lost', 0]);
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
  world.socket.take();
  world.page.left();
  assert.deepEqual(world.socket.take(), [['bye']]);
  assert.equal(world.socket.closed, true);
  await settle();
  assert.deepEqual([asked.state, waiting.state], ['lost', 'lost']);
  const meanwhile = ask(manager, 'a');
  world.pass(100_000);
  assert.equal(world.sockets.length, 1, 'nothing while it is hidden');
  world.page.shown();
  world.socket.welcome(false, 'again');
  assert.deepEqual(world.socket.take().map(([kind, , , resume]) => [kind, resume]), [['hello', null], ['request', 0]]);
  assert.equal(remote.clientId, 'again');
  world.socket.hear(1, 3, 99, RECEIPT);
  await settle();
  assert.equal(meanwhile.state, 'held');
});

test('the first show of a page is nothing', async () => {
  const { world } = await connected();
  world.page.shown();
  assert.equal(world.sockets.length, 1);
});

test('what crosses a steal: told once, as stolen', async () => {
  const { world, manager } = await connected();
  const asked = await held(manager, world, 'a', 1);
  asked.release('value');
  await settle();
  world.socket.hear(6, 1, 0);
  world.socket.hear(4, 1);
  await settle();
  assert.equal(asked.state, 'stolen');
});

test('words about what nobody asked for are ignored', async () => {
  const { world, manager } = await connected();
  for (const rid of [5, 2n ** 60n]) {
    world.socket.hear(1, rid, 1, RECEIPT);
    world.socket.hear(2, rid, 1);
    for (const kind of [3, 4, 5]) world.socket.hear(kind, rid);
    world.socket.hear(6, rid, 1);
    world.socket.hear(7, rid, 1, 'no');
    world.socket.hear(8, rid, [], [], 0);
    world.socket.hear(11, rid, ['no', []]);
  }
  const asked = await held(manager, world, 'a', 1);
  assert.equal(asked.state, 'held');
});

test('a deadlock is refused with its cycle, or without if no more is to be known', async () => {
  const { world, manager } = await connected();
  const cycle = [[2n ** 60n, 'somebody', toName('b')], [4, 'me', null]];
  for (const [rid, steps] of [[1, cycle], [2, []]]) {
    const asked = ask(manager, 'a');
    world.socket.hear(11, rid, ['words', steps]);
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
    world.socket.hear(7, (rid += 1), Number(code), 'words');
    await assert.rejects(asked.done, { name, message: 'words' });
  }
  const shown = manager.inspect();
  world.socket.hear(7, rid + 1, 6, 'not with this token');
  await assert.rejects(shown, { name: 'NotAllowedError' });
});

test('no more than a thousand requests are unanswered at a time, and all are made in their order', async () => {
  const { world, manager } = await connected();
  const count = 2500;
  const all = Array.from({ length: count }, (_, i) => ask(manager, `${i}`));
  const rids = () => world.socket.take().filter(([kind]) => kind === 'request').map(([, rid]) => rid);
  const from = (first, last) => Array.from({ length: last - first + 1 }, (_, i) => first + i);
  assert.deepEqual(rids(), from(1, 1000));
  world.pass(TTL / 5);
  assert.deepEqual(world.socket.take(), [['ping']], 'it does not wait behind all of them');
  world.socket.hear(9);
  for (const rid of from(1, 10)) world.socket.hear(2, rid, rid);
  for (const rid of from(1, 10)) world.socket.hear(1, rid, rid, RECEIPT);
  assert.deepEqual(rids(), from(1001, 1010), 'an answer makes room for one more');
  world.socket.cut();
  world.pass(50);
  world.socket.welcome(true);
  const said = world.socket.take().map(([kind, rid]) => [kind, rid]);
  assert.deepEqual(said.slice(1, 12), [...from(1, 10).map((rid) => ['reclaim', rid]), ['request', 11]]);
  assert.deepEqual(said.slice(-1), [['ready', undefined]], 'nothing new while a thousand are unanswered');
  assert.equal(said.length, 1 + 1010 + 1);
  for (let rid = 1; rid <= count; rid++) world.socket.hear(1, rid, rid, RECEIPT);
  assert.deepEqual(rids(), from(1011, count));
  await until(() => all.every(({ state }) => state === 'held'));
});
