/**
 * The TypeScript session against the Rust one: transcripts of simulated clients, replayed. The same
 * inputs at the same times give the same messages and events. `run.js` generates them; TRANSCRIPTS
 * names the file.
 */

import { readFileSync } from 'node:fs';
import { SessionMachine } from '../dist/session.js';
import { decode, encode, toName } from '../dist/wire.js';
import { assert, test } from './harness.js';

const file = process.env.TRANSCRIPTS;
assert.ok(file, 'TRANSCRIPTS names the file that run.js generates');
const transcripts = readFileSync(file, 'utf8')
  .split('\n')
  .filter((line) => line !== '')
  .map((line) => JSON.parse(line))
  // Over a WebSocket, no descriptor comes.
  .filter(({ config }) => !config.fifo);

const inputs = {
  connected: (machine, now, token) => machine.connected(now, token),
  connectFailed: (machine, now, message) => machine.connectFailed(now, { kind: 'unreachable', message }),
  message: (machine, now, connection, hex) => machine.message(now, connection, decode(Buffer.from(hex, 'hex'))),
  disconnected: (machine, now, connection) => machine.disconnected(now, connection),
  request(machine, now, { scope, ...rest }) {
    machine.request({ scope: scope.map(([name, shared]) => [toName(name), shared]), ...rest }, null);
  },
  release: (machine, now, key, timedOut) => machine.release(key, timedOut),
  detach: (machine, now, key, timedOut) => machine.release(key, timedOut, true),
  query: (machine, now, name, deadlocks) => machine.query(name === null ? null : toName(name), deadlocks, null),
  forceRelease: (machine, now, name) => machine.force(toName(name), null),
  endSession: (machine, now, clientId) => machine.force(clientId, null),
  close: (machine) => machine.close(),
  wake: (machine, now) => machine.wake(now),
};

const outcomes = {
  unavailable: () => [],
  released: () => [],
  broken: ({ cause }) => [cause],
  refused: ({ code, message }) => [code, message],
  deadlocked: ({ deadlock }) => [deadlock[0]],
  snapshot: ({ snapshot }) => [snapshot.entries.length],
  done: ({ count }) => [String(count)],
  failed: ({ failure }) => [failure.message],
};

/** An event as transcripts have it. */
const events = {
  opened: ({ clientId, resumed }) => [clientId, resumed],
  unreachable: ({ failure }) => [failure.message],
  failed: ({ failure }) => [failure.message],
  sessionLost: () => [],
  closed: () => [],
  queued: ({ key, arrival }) => [key, String(arrival)],
  granted: ({ key, token }) => [key, String(token)],
  over: ({ key, outcome }) => [key, outcome.how, ...outcomes[outcome.how](outcome)],
};

/** Messages as they are on a stream: each behind its length. */
function framed(messages) {
  return messages
    .map(encode)
    .map((message) => message.length.toString(16).padStart(8, '0') + Buffer.from(message).toString('hex'))
    .join('');
}

const seen = new Set();

test(`${transcripts.length} clients: the same inputs give the same messages and events`, () => {
  assert.ok(transcripts.length >= 100, 'there are some hundred');
  for (const { seed, client, config, start, steps } of transcripts) {
    const machine = new SessionMachine(config, start);
    for (const [i, step] of steps.entries()) {
      const [kind, ...given] = step.input;
      inputs[kind](machine, step.now, ...given);
      const told = machine.takeEvents().map((event) => [event.type, ...events[event.type](event)]);
      const actual = {
        ...{ now: step.now, input: step.input, output: framed(machine.takeOutput()), events: told },
        ...{ drop: machine.wantsDrop(), connectAt: machine.connectAt() ?? null, nextWake: machine.nextWake() === Infinity ? null : machine.nextWake() },
      };
      assert.deepEqual(actual, step, `seed ${seed}, client ${client}, step ${i}`);
      seen.add(kind);
      for (const [type, , how] of told) seen.add(type === 'over' ? `over ${how}` : type);
    }
  }
});

test('the transcripts have every input and every event', () => {
  const all = [...Object.keys(inputs), ...Object.keys(events), ...Object.keys(outcomes).map((how) => `over ${how}`)];
  const missing = all.filter((what) => what !== 'over' && !seen.has(what));
  assert.deepEqual(missing, []);
});
