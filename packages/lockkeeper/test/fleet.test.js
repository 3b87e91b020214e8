/**
 * A fleet on etcd: clients on a Unix socket, over WebSocket, in a browser and in other languages, at
 * the daemon that leads and at others, which can be killed.
 */

import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { browser, website } from './chromium.js';
import { assert, cleanUp, test, until } from './harness.js';
import { connected, fleet, hold, program } from './machine.js';

/**
 * How a session of JavaScript reaches daemons: without the addon, with it, and on the Unix socket of
 * the first, from where it goes to another machine.
 */
const SESSIONS = {
  WebSocket: (...daemons) => daemons.map(({ url }) => url),
  addon: (...daemons) => daemons.map(({ socket }) => socket),
  both: ({ socket }, ...others) => [socket, ...others.map(({ url }) => url)],
};

/** Another daemon takes over soon. Leases last long enough for a busy machine. */
const FLAGS = ['--takeover', '500ms', '--ttl', '30s'];

/** What the command prints. */
async function command(url, ...args) {
  const running = promisify(execFile)(program, args, { env: { ...process.env, LOCKKEEPER_URL: url } });
  cleanUp(() => void running.child.kill('SIGKILL'));
  return (await running).stdout;
}

const hasPending = (manager, count) => until(async () => (await manager.query()).pending.length === count);

test('a client whose daemon is killed goes on at another: locks, tokens and places are kept', async () => {
  const [leader, follower, other] = await fleet(3, ...FLAGS);
  const witness = await connected(other.url);
  const earlier = [];
  for (const victim of [follower, leader]) {
    const blocker = await hold(witness, 'queue');
    const [clients, order, waiting] = [[], [], []];
    for (const [kind, reach] of Object.entries(SESSIONS)) {
      const manager = await connected(reach(victim, other));
      const name = `${kind} of ${victim.url}`;
      clients.push({ manager, name, held: await hold(manager, name) });
      waiting.push(manager.request('queue', () => order.push(name)));
      await hasPending(witness, waiting.length);
    }
    await victim.kill();
    // Each has a session again, and so has the witness: the victim may have led.
    for (const manager of [witness, ...clients.map(({ manager }) => manager)]) await until(() => manager.query().then(() => true, () => false));
    const shown = JSON.parse(await command(other.url, 'query', '--json'));
    const token = ({ name }) => shown.held.find((request) => request.name === name)?.token;
    for (const client of [...earlier, ...clients]) {
      assert.equal(token(client), String(client.held.lock.token));
      assert.equal(client.held.lock.signal.aborted, false);
    }
    blocker.release();
    await Promise.all(waiting);
    assert.deepEqual(order, clients.map(({ name }) => name));
    earlier.push(...clients);
  }
  for (const { name, held } of earlier) {
    held.release('released');
    assert.equal(await held.released, 'released');
    assert.ok((await witness.request(name, ({ token }) => token)) > held.lock.token);
  }
});

test('the command, JavaScript and pages, on sockets and over WebSocket, at leader and followers, are served in the order of asking', async () => {
  const origin = await website();
  const daemons = await fleet(3, ...FLAGS, '--allow-origin', origin);
  const page = await (await browser()).open(`${origin}/`);
  const askPage = async (url) => {
    const { connect } = await import('/dist/browser/connect.js');
    return (await connect(url)).request('hot', ({ token }) => `${token}`);
  };
  const witness = await connected(daemons[1].url);
  const blocker = await hold(witness, 'hot');
  const waiting = [];
  const ask = async (granted) => {
    // What fails does so at once, and not in the watchdog's time.
    await Promise.race([hasPending(witness, waiting.push(granted)), granted]);
  };
  for (const daemon of daemons) {
    await ask(page.evaluate(askPage, daemon.url).then(BigInt));
    for (const reach of [SESSIONS.WebSocket, SESSIONS.addon]) {
      const [url] = reach(daemon);
      const manager = await connected(url);
      await ask(manager.request('hot', ({ token }) => BigInt(token)));
      await ask(command(url, 'run', 'hot', '--', 'sh', '-c', 'echo $LOCKKEEPER_FENCE').then(BigInt));
    }
  }
  blocker.release();
  const tokens = await Promise.all(waiting);
  assert.equal(tokens.length, 15);
  assert.ok(tokens.every((token, i) => token > (i === 0 ? BigInt(blocker.lock.token) : tokens[i - 1])), String(tokens));
});
