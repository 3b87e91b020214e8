/**
 * Runs every test file in every runtime, and those about what a lock manager does four times more:
 * against a daemon on its socket, over WebSocket, and against a fleet on etcd of one member and of
 * three. Prints a table of them. A file that fails is not tried again. A runtime or browser that is not installed is a
 * failure, unless `--skip` names it.
 *
 *     node test/run.js [--runtime node24]... [--skip bun | --skip chromium]... [part of a file's name]...
 */

import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, openSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';

const here = fileURLToPath(new URL('.', import.meta.url));
const modules = join(here, '../../../node_modules');
const runtimes = {
  node20: [join(modules, 'node20/bin/node')],
  node22: [join(modules, 'node22/bin/node')],
  node24: [join(modules, 'node24/bin/node')],
  node26: [join(modules, 'node26/bin/node')],
  bun: [join(modules, '@oven/bun-linux-x64/bin/bun')],
  deno: [join(modules, '@deno/linux-x64-glibc/deno'), 'run', '-A'],
};

/** The files that hold for a daemon as for the manager of a process. */
const EVERYWHERE = [
  'acquire',
  'deadlock',
  'diagnostics',
  'idl',
  'if-available',
  'modes',
  'names',
  'proposals',
  'query',
  'request',
  'seeds',
  'signal',
  'steal',
];

/** The browser, the files that drive it, and the runtime that runs those files. */
const BROWSER = { name: 'chromium', files: ['browser.test.js', 'bundles.test.js', 'dashboard.test.js', 'fleet.test.js', 'navigator.test.js'], runtime: 'node24' };

/**
 * Fleets, by how many members their etcd has; the file about what only a fleet does, and the
 * runtime in which all of it is tested: clients do the same as over WebSocket.
 */
const FLEET = { places: { ', fleet': 1, ', fleet on three': 3 }, file: 'fleet.test.js', runtime: 'node24' };

/** The files that use tools which do not depend on the runtime, and the runtime that runs them. */
const TOOLS = { files: ['dashboard-parts.test.js', 'tools.test.js', 'types.test.js'], runtime: 'node24' };

/**
 * The file that replays simulated clients, and which: the first seed, and how many. Each has some
 * clients.
 */
const TRANSCRIPTS = { file: 'transcripts.test.js', seeds: [process.env.SEED ?? '1', '80'] };

/** What is started at a time: tests of threads want processors of their own. */
const AT_ONCE = 2;
/** How long a file may take. */
const LIMIT = Number(process.env.FILE_LIMIT ?? 300_000);

const filters = [];
const chosen = [];
const skipped = [];
for (let args = process.argv.slice(2), i = 0; i < args.length; i++) {
  if (args[i] === '--runtime') chosen.push(args[++i]);
  else if (args[i] === '--skip') skipped.push(args[++i]);
  else filters.push(args[i]);
}
const known = [...Object.keys(runtimes), BROWSER.name];
const unknown = [...chosen.filter((name) => !(name in runtimes)), ...skipped.filter((name) => !known.includes(name))];
if (unknown.length > 0) throw new Error(`no runtime or browser ${unknown}; there are ${known}`);

const wanted = Object.keys(runtimes)
  .filter((name) => chosen.length === 0 || chosen.includes(name))
  .filter((name) => !skipped.includes(name));
const files = readdirSync(here)
  .filter((file) => file.endsWith('.test.js'))
  .filter((file) => filters.length === 0 || filters.some((filter) => file.includes(filter)))
  .sort();
if (files.length === 0) throw new Error(`no test file has ${filters.join(' or ')} in its name`);

const rows = files.flatMap((file) => {
  const places = EVERYWHERE.includes(file.replace('.test.js', '')) ? ['', ', daemon', ', WebSocket', ...Object.keys(FLEET.places)] : [''];
  return places.map((place) => ({ file, title: `${file}${place}`, place }));
});
const work = rows.flatMap((row) => wanted.map((runtime) => ({ ...row, runtime }))).filter(canRun);
if (work.length === 0) throw new Error('nothing is left to run');
const missing = [...new Set(work.flatMap(needs))].filter((name) => !isInstalled(name));
if (missing.length > 0) {
  for (const name of missing) console.log(`MISSING: ${name}: install it, or leave it out with --skip ${name}`);
  process.exit(1);
}
const results = new Map();
const daemon = work.some(({ place }) => place !== '') ? await startDaemon() : undefined;
const fleets = [];
for (const [place, members] of Object.entries(FLEET.places)) {
  if (!work.some((row) => row.place === place)) continue;
  const fleet = await startFleet(members);
  daemon.urls[place] = fleet.url;
  fleets.push(fleet);
}
const transcripts = files.includes(TRANSCRIPTS.file) ? { TRANSCRIPTS: generateTranscripts() } : {};
await Promise.all(Array.from({ length: AT_ONCE }, drain));
await Promise.all(fleets.map((fleet) => fleet.stop()));
await daemon?.stop();
const failures = [...results.values()].filter((result) => !result.ok).length;
report();
process.exit(failures > 0 ? 1 : 0);

function canRun({ file, place, runtime }) {
  if (BROWSER.files.includes(file)) return runtime === BROWSER.runtime && !skipped.includes(BROWSER.name);
  if (TOOLS.files.includes(file)) return runtime === TOOLS.runtime;
  if (place in FLEET.places || file === FLEET.file) return runtime === FLEET.runtime;
  // Node 20 has no WebSocket.
  return place !== ', WebSocket' || runtime !== 'node20';
}

function needs({ file, runtime }) {
  return BROWSER.files.includes(file) ? [runtime, BROWSER.name] : [runtime];
}

function isInstalled(name) {
  return name === BROWSER.name ? spawnSync(name, ['--version']).status === 0 : existsSync(runtimes[name][0]);
}

async function drain() {
  for (let next = work.shift(); next; next = work.shift()) {
    const { file, title, place, runtime } = next;
    const variables = place === '' ? transcripts : { LOCKKEEPER_URL: daemon.urls[place] };
    const result = await runFile(file, runtime, variables);
    tell(title, runtime, result);
    results.set(`${runtime} ${title}`, result);
  }
}

/** Has the Rust session simulated, once for all runtimes. */
function generateTranscripts() {
  const dir = mkdtempSync(join(tmpdir(), 'lockkeeper-test-'));
  process.on('exit', () => rmSync(dir, { recursive: true, force: true }));
  const file = join(dir, 'transcripts.jsonl');
  const cargo = ['run', '--quiet', '--release', '-p', 'lockkeeper-sim', '--', 'transcripts'];
  const stdio = ['ignore', openSync(file, 'w'), 'inherit'];
  const { status } = spawnSync('cargo', [...cargo, ...TRANSCRIPTS.seeds], { cwd: here, stdio });
  if (status !== 0) throw new Error(`the transcripts could not be generated: cargo ended with ${status}`);
  return file;
}

/** A daemon that ends with the tests. */
async function startDaemon() {
  const dir = mkdtempSync(join(tmpdir(), 'lockkeeper-test-'));
  const socket = join(dir, 'daemon.sock');
  const args = ['serve', '--socket', socket, '--state-dir', join(dir, 'state'), '--listen', '127.0.0.1:0', '--share-buckets'];
  const { default: platform } = await import('../dist/cjs/platform.cjs');
  const child = spawn(platform.platformFiles().daemon, args, {
    env: { ...process.env, NO_COLOR: '1' },
    stdio: ['ignore', 'ignore', 'pipe'],
  });
  const exited = new Promise((resolve) => child.on('exit', resolve));
  const stop = async () => {
    child.kill('SIGKILL');
    await exited;
    rmSync(dir, { recursive: true });
  };
  process.on('exit', (code) => code !== 0 && child.kill('SIGKILL'));
  const address = await new Promise((resolve, reject) => {
    let said = '';
    child.stderr.on('data', (data) => {
      said += data;
      if (/listening address=\S+\n/.test(said)) resolve(/address=(\S+)/.exec(said)[1]);
    });
    void exited.then(() => reject(new Error(`the daemon has ended: ${said}`)));
  });
  return { urls: { ', daemon': `unix:${socket}`, ', WebSocket': `ws://${address}/` }, stop };
}

/** Three daemons on etcd, which end with the tests, and the URL of one that does not lead. */
async function startFleet(members) {
  const args = ['run', '--quiet', '--package', 'xtask', '--', 'fleet', ...(members === 1 ? ['1'] : [])];
  const child = spawn('cargo', args, { cwd: here, stdio: ['pipe', 'pipe', 'inherit'] });
  const exited = new Promise((resolve) => child.on('exit', resolve));
  const urls = await new Promise((resolve, reject) => {
    let said = '';
    child.stdout.on('data', (data) => {
      said += data;
      if (said.includes('Press Enter')) resolve(said.match(/^  ws:\S+/gm).map((url) => url.trim()));
    });
    void exited.then((code) => reject(new Error(`the fleet has ended with ${code}`)));
  });
  const leads = async (url) => (await (await fetch(url.replace('ws:', 'http:') + '/metrics')).text()).includes('fleet_leads 1');
  const all = await Promise.all(urls.map(leads));
  return { url: `${urls[all.indexOf(false)]}/`, stop: () => (child.stdin.end('\n'), exited) };
}

function tell(title, runtime, { ok, why, output }) {
  if (!ok) console.log(`--- ${title} in ${runtime} (${why})\n${output.trimEnd()}`);
}

function runFile(file, runtime, variables) {
  const [program, ...args] = runtimes[runtime];
  const env = { ...process.env, NO_COLOR: '1', ...variables };
  const stdio = ['ignore', 'pipe', 'pipe'];
  const child = spawn(program, [...args, join(here, file)], { cwd: here, env, stdio });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) stream.on('data', (data) => (output += data));
  const timer = setTimeout(() => child.kill('SIGKILL'), LIMIT);
  return new Promise((resolve) => {
    child.on('error', (error) => resolve({ ok: false, why: error.message, output, cell: 'ERROR' }));
    child.on('close', (code, signal) => {
      clearTimeout(timer);
      const counts = output.match(/^(\d+) passed, (\d+) failed$/m);
      const cell = counts ? (counts[2] === '0' ? counts[1] : `${counts[1]}, ${counts[2]} FAILED`) : 'DIED';
      // A process that ends without counting its tests did not run them.
      resolve({ ok: code === 0 && counts !== null, why: signal ?? `exit code ${code}`, output, cell });
    });
  });
}

function report() {
  const lines = rows.map(({ title }) => [
    title,
    ...wanted.map((runtime) => results.get(`${runtime} ${title}`)?.cell ?? '-'),
  ]);
  const total = (runtime) => {
    const cells = rows.map(({ title }) => results.get(`${runtime} ${title}`)?.cell ?? '0');
    return String(cells.reduce((sum, cell) => sum + (Number.parseInt(cell, 10) || 0), 0));
  };
  const table = [['', ...wanted], ...lines, ['passed', ...wanted.map(total)]];
  const widths = table[0].map((_, column) => Math.max(...table.map((row) => row[column].length)));
  for (const row of table) {
    const cells = row.map((cell, i) => (i === 0 ? cell.padEnd(widths[i]) : cell.padStart(widths[i])));
    console.log(cells.join('  ').trimEnd());
  }
  for (const name of skipped) console.log(`SKIPPED: ${name}`);
  if (skipped.includes(BROWSER.runtime)) console.log(`SKIPPED: ${BROWSER.name}, which ${BROWSER.runtime} drives`);
  if (failures > 0) console.log(`FAILED: ${failures} of ${results.size} runs`);
}
