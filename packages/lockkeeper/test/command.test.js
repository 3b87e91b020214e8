/**
 * `npx lockkeeper`: the command of the package, and the variables that it shares with `connect()`.
 */

import { spawn, execFileSync } from 'node:child_process';
import { existsSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { connect } from 'lockkeeper';
import { assert, cleanUp, run, runtime, test, until } from './harness.js';
import { connected, hold, machine, program } from './machine.js';

const command = fileURLToPath(new URL('../bin/lockkeeper.js', import.meta.url));

/** The environment in which a machine's daemon is found. */
const environment = ({ url }, more = {}) => ({ ...process.env, LOCKKEEPER_URL: url, NO_COLOR: '1', ...more });

/** Sets variables of this process until the test is over. */
function set(variables) {
  const before = Object.keys(variables).map((name) => [name, process.env[name]]);
  Object.assign(process.env, variables);
  cleanUp(() => {
    for (const [name, value] of before) {
      if (value === undefined) delete process.env[name];
      else process.env[name] = value;
    }
  });
}

test('it is the command: its output, its exit code', async () => {
  const there = machine();
  await there.start();
  const env = environment(there);
  const ran = await run(command, ['run', 'a', '--', 'sh', '-c', 'echo mine; exit 3'], { env });
  assert.deepEqual([ran.stdout, ran.code], ['mine\n', 3], ran.stderr);
  const { release } = await hold(await connected(there.url), 'held');
  const queried = await run(command, ['query', '--json'], { env });
  assert.equal(JSON.parse(queried.stdout).held[0].name, 'held');
  release();
  const wrong = await run(command, ['no-such-command'], { env });
  assert.match(wrong.stderr, /no-such-command/);
});

// With Deno it is not: nobody runs it so.
const testSignals = runtime === 'deno' ? () => {} : test;

testSignals('a signal is passed on', async () => {
  const there = machine();
  await there.start();
  const script = 'trap "exit 7" TERM; echo ready; while :; do sleep 0.01; done';
  const args = [command, 'run', 'a', '--', 'sh', '-c', script];
  const child = spawn(process.execPath, runtime === 'deno' ? ['run', '-A', ...args] : args, {
    env: environment(there),
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  cleanUp(() => void child.kill('SIGKILL'));
  const exited = new Promise((resolve) => child.on('exit', (code, signal) => resolve(code ?? signal)));
  await new Promise((resolve) => child.stdout.once('data', resolve));
  child.kill('SIGTERM');
  assert.equal(await exited, 7);
});

// It needs a terminal, which `script` gives it.
testSignals('top shows the locks on a terminal, until q', async () => {
  const there = machine();
  await there.start();
  const { release } = await hold(await connected(there.url), 'a name to be seen');
  const inside = `stty rows 24 cols 100; exec '${process.execPath}' '${command}' top`;
  const args = ['--quiet', '--return', '--command', inside, '/dev/null'];
  const child = spawn('script', args, { env: environment(there, { TERM: 'xterm' }), stdio: ['pipe', 'pipe', 'inherit'] });
  cleanUp(() => void child.kill('SIGKILL'));
  const exited = new Promise((resolve) => child.on('exit', resolve));
  let shown = '';
  child.stdout.on('data', (data) => (shown += data));
  await until(() => shown.includes('a name to be seen'));
  child.stdin.write('q');
  assert.equal(await exited, 0);
  release();
});

/**
 * A daemon that wants tokens, and the file of one for the bucket "mine", folded as an editor may
 * have it.
 */
async function guarded() {
  const there = machine({ network: true });
  const keys = join(there.dir, 'keys.json');
  execFileSync(program, ['token', '--new-key', keys]);
  await there.start('--keys', keys);
  const token = join(there.dir, 'token');
  const made = execFileSync(program, ['token', '--keys', keys, '--bucket', 'mine'], { encoding: 'utf8' });
  writeFileSync(token, `${made.slice(0, 40)}\r\n  ${made.slice(40)}\n`);
  return { ...there, url: there.url, token };
}

// Node 20 has no WebSocket.
const testWebSocket = 'WebSocket' in globalThis ? test : () => {};

testWebSocket('LOCKKEEPER_URL, LOCKKEEPER_BUCKET and LOCKKEEPER_TOKEN_FILE say where connect() goes', async () => {
  const { url, token } = await guarded();
  set({ LOCKKEEPER_URL: url, LOCKKEEPER_BUCKET: 'mine', LOCKKEEPER_TOKEN_FILE: token });
  const manager = await connected();
  const { release } = await hold(manager, 'a');
  const env = { ...process.env };
  const seen = await run(command, ['query', '--json'], { env });
  assert.equal(JSON.parse(seen.stdout).held[0].name, 'a', seen.stderr);
  release();
  await assert.rejects(connect(undefined, { bucket: 'theirs' }), { name: 'NotAllowedError' }, 'options come first');
});

testWebSocket('a token file that cannot be read is named', async () => {
  const { url } = await guarded();
  set({ LOCKKEEPER_URL: url, LOCKKEEPER_TOKEN_FILE: '/no/such/file' });
  await assert.rejects(connect(), { name: 'NetworkError', message: /token function failed.*no\/such\/file/ });
});

testWebSocket('a URL of its own: no token of the environment is sent there, nor is its bucket asked for', async () => {
  const { url, token } = await guarded();
  set({ LOCKKEEPER_URL: 'ws://127.0.0.1:1/', LOCKKEEPER_BUCKET: 'mine', LOCKKEEPER_TOKEN_FILE: token });
  await assert.rejects(connect(url), { name: 'NotAllowedError', message: /token/ });
});

test('LOCKKEEPER_BUCKET counts on a Unix socket, where LOCKKEEPER_TOKEN_FILE does not', async () => {
  const there = machine();
  await there.start();
  set({ LOCKKEEPER_URL: there.url, LOCKKEEPER_BUCKET: 'mine', LOCKKEEPER_TOKEN_FILE: '/no/such/file' });
  const { release } = await hold(await connected(), 'a');
  const held = async (bucket) => (await (await connected(there.url, { bucket })).query()).held.length;
  assert.deepEqual([await held('mine'), await held('default')], [1, 0]);
  release();
});

test('connect("machine") goes to the machine\'s daemon, and starts none', async () => {
  const socket = '/run/lockkeeper/machine.sock';
  if (existsSync(socket)) return connected('machine');
  const error = { name: 'NetworkError', message: new RegExp(`^no daemon at unix:${socket}`) };
  await assert.rejects(connect('machine'), error);
  set({ LOCKKEEPER_URL: 'machine' });
  await assert.rejects(connect(), error);
});
