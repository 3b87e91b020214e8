/**
 * The drop-in beside the browser's own locks, in one page and one run, over WebSocket to a daemon
 * on this machine:
 *
 *     npm run bench:browser
 *
 * Writes bench/RESULTS-browser.md. The figures mean something on a machine that does nothing else.
 * COUNT and ROUNDS make it shorter, to see that it runs: then it prints the table alone.
 */

import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import { cpus, loadavg, tmpdir, type } from 'node:os';
import { join } from 'node:path';
import { launch } from '../test/chromium.js';
import { program } from '../test/machine.js';

const ROUNDS = Number(process.env.ROUNDS ?? 5);
const COUNT = Number(process.env.COUNT ?? 10_000);
const TURNS = Math.min(COUNT, 1000);

const RESULTS = new URL('../../../bench/RESULTS-browser.md', import.meta.url);

const rows = {
  ping: 'a round trip: a ping to the daemon over a bare WebSocket',
  sequential: 'one after another',
  distinct: `${COUNT} at once, distinct names`,
  one: `${COUNT} at once, one name`,
  shared: `${COUNT} at once, one name, shared`,
  workers: `two workers contending, ${TURNS} turns each`,
  query: `query() with ${COUNT} pending`,
};

/** How many times as fast as the browser's own locks each is to be. */
const TARGETS = { sequential: 1, distinct: 5, one: 5, shared: 5, workers: 1, query: 1 };

/** In the page and in its workers: what is measured, in milliseconds, of `locks`. */
const MEASURES = `{
  async sequential(locks) {
    const count = ${TURNS};
    const start = performance.now();
    for (let i = 0; i < count; i++) await locks.request('name', () => {});
    return (performance.now() - start) / count;
  },
  distinct: (locks) => atOnce(locks, (i) => ['name ' + i, {}]),
  one: (locks) => atOnce(locks, () => ['name', {}]),
  shared: (locks) => atOnce(locks, () => ['name', { mode: 'shared' }]),
  async query(locks) {
    let release;
    const held = new Promise((resolve) => (release = resolve));
    const first = locks.request('name', () => held);
    const waiting = Array.from({ length: ${COUNT} }, () => locks.request('name', () => {}));
    await locks.query();
    const start = performance.now();
    const { pending } = await locks.query();
    const took = performance.now() - start;
    if (pending.length !== ${COUNT}) throw new Error(pending.length + ' are pending');
    release();
    await Promise.all([first, ...waiting]);
    return took;
  },
}`;

const AT_ONCE = `async function atOnce(locks, request) {
  const start = performance.now();
  await Promise.all(Array.from({ length: ${COUNT} }, (_, i) => locks.request(...request(i), () => {})));
  return performance.now() - start;
}`;

const dir = mkdtempSync(join(tmpdir(), 'lockkeeper-bench-'));
const dropIn = readFileSync(new URL('../dist/navigator.min.js', import.meta.url));
let url;

/**
 * Takes turns on one name. The drop-in takes the place of the native locks, which are kept beside.
 */
const worker = () => `
  const native = navigator.locks;
  self.lockkeeper = { url: '${url}' };
  importScripts('/navigator.min.js');
  onmessage = async ({ data: [which, name] }) => {
    const locks = which === 'native' ? native : navigator.locks;
    await locks.request('ready', () => {});
    postMessage('ready');
    await new Promise((resolve) => (onmessage = resolve));
    for (let i = 0; i < ${TURNS}; i++) await locks.request(name, () => {});
    postMessage('done');
  };
`;
const page = () => `<!doctype html><script>
  globalThis.managers = { native: navigator.locks };
  globalThis.lockkeeper = { url: '${url}' };
</script><script src="/navigator.min.js"></script><script>
  managers.lockkeeper = navigator.locks;
  ${AT_ONCE}
  const measures = ${MEASURES};
  // What a WebSocket of this browser takes, whoever uses it.
  measures.ping = () => new Promise((resolve) => {
    const socket = new WebSocket('${url}', 'lockkeeper.v2');
    socket.binaryType = 'arraybuffer';
    const ping = Uint8Array.of(0x93, 6, 0, 1);
    const hello = [0x9a, 0, 2, 0, 1, 0xa7, ...new TextEncoder().encode('default'), 0xc0, 0, 0xc0, 0xc0, 0xc0];
    let start;
    let left = ${TURNS};
    socket.onopen = () => socket.send(Uint8Array.from(hello));
    socket.onmessage = ({ data }) => {
      const bytes = new Uint8Array(data);
      // The last message of the answer to Hello is Synced; those after it are pongs.
      if (bytes.at(-2) === 0x91 && bytes.at(-1) === 2) start = performance.now();
      else if ((left -= 1) === 0) {
        resolve((performance.now() - start) / ${TURNS});
        return socket.close();
      }
      socket.send(ping);
    };
  });
  measures.workers = async (_, which) => {
    const workers = [new Worker('/worker.js'), new Worker('/worker.js')];
    const said = () => Promise.all(workers.map((worker) => new Promise((resolve) => (worker.onmessage = resolve))));
    let next = said();
    workers.forEach((worker) => worker.postMessage([which, 'contended']));
    await next;
    const start = performance.now();
    next = said();
    workers.forEach((worker) => worker.postMessage('go'));
    await next;
    const took = performance.now() - start;
    workers.forEach((worker) => worker.terminate());
    return took;
  };
  globalThis.measure = (row, which) => measures[row](managers[which], which);
</script>`;

const files = { '/': ['text/html', page], '/worker.js': ['text/javascript', worker], '/navigator.min.js': ['text/javascript', () => dropIn] };
const server = createServer(({ url }, response) => {
  const [type, body] = files[url] ?? ['text/plain', () => ''];
  response.writeHead(200, { 'content-type': type }).end(body());
});
await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
const origin = `http://127.0.0.1:${server.address().port}`;
const where = ['--socket', join(dir, 'daemon.sock'), '--state-dir', join(dir, 'state'), '--listen', '127.0.0.1:0'];
const daemon = spawn(program, ['serve', ...where, '--allow-origin', origin], { stdio: ['ignore', 'ignore', 'pipe'], env: { ...process.env, NO_COLOR: '1' } });
url = await new Promise((resolve) => {
  let said = '';
  daemon.stderr.on('data', (data) => {
    said += data;
    const [, address] = /listening address=(\S+)/.exec(said) ?? [];
    if (address) resolve(`ws://${address}/`);
  });
});
const lines = ['| ms | Chromium | drop-in | Chromium ÷ drop-in | target | met |', '|---|---:|---:|---:|---:|---|'];
const [before] = loadavg();
const chromium = await launch();
try {
  const { targetId } = await chromium.send('Target.createTarget', { url: `${origin}/` });
  const { sessionId } = await chromium.send('Target.attachToTarget', { targetId, flatten: true });
  const evaluate = async (expression) => {
    const params = { expression, awaitPromise: true, returnByValue: true };
    const { result, exceptionDetails } = await chromium.send('Runtime.evaluate', params, sessionId);
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  };
  while (!(await evaluate("document.readyState === 'complete' && 'measure' in globalThis"))) await new Promise((resolve) => setTimeout(resolve, 20));
  for (const [row, title] of Object.entries(rows)) {
    const best = row === 'ping' ? { lockkeeper: Infinity } : { native: Infinity, lockkeeper: Infinity };
    for (let round = 0; round < ROUNDS; round++) {
      for (const which of Object.keys(best)) best[which] = Math.min(best[which], await evaluate(`measure('${row}', '${which}')`));
    }
    lines.push(lineOf(title, best, TARGETS[row]));
  }
  const { product } = await chromium.send('Browser.getVersion');
  console.log(lines.join('\n'));
  if (process.env.ROUNDS === undefined && process.env.COUNT === undefined) writeFileSync(RESULTS, report(product.replace('/', ' ')));
} finally {
  await chromium.close();
  daemon.kill('SIGKILL');
  server.close();
  rmSync(dir, { recursive: true, force: true });
}
process.exit();

function lineOf(title, { native, lockkeeper }, target) {
  const factor = native / lockkeeper;
  const beside = native ? [native.toFixed(2), lockkeeper.toFixed(2), factor.toFixed(2), target, factor >= target ? 'yes' : 'no'] : ['', lockkeeper.toFixed(2), '', '', ''];
  return `| ${[title, ...beside].join(' | ')} |`;
}

function report(browser) {
  return `# The drop-in beside the browser's own locks

Made by \`npm run bench:browser\`: ${browser}, ours and its own in turns in one page, to a daemon on the same machine over WebSocket; the best of ${ROUNDS}
rounds, in milliseconds. Machine: ${cpus().length} × ${cpus()[0].model}, ${type()}; its load average was ${before.toFixed(1)} before.

The target of each row is a factor: faster than the browser's own locks, and at least five times as fast for requests that are made at once.

${lines.join('\n')}

The first row is a round trip to the daemon in this browser: a message goes through the browser's network service and the system's network, and back. Requests
that are made at once share WebSocket frames, and so do their grants and releases; the browser's own locks send a message between two processes for each. A
request that is made after another takes two round trips, because it settles when the daemon has confirmed the release; the browser's own settles before. Each of
those that wait for one exclusive name takes one: the daemon decides who is next, and nobody holds a lock before it has said so. Requests
for distinct names wait for nothing: what is left is the work of the page, of the browser's network service and of the daemon, which share ${cpus().length} processors here.
`;
}
