/**
 * Runs `locks.js` in every runtime, ours and the runtime's own `navigator.locks` in turns, and
 * writes the table to bench/RESULTS-javascript.md. Each measurement is a process of its own:
 * engines that hang or crash do it alone.
 */

import { execFile, execFileSync } from 'node:child_process';
import { existsSync, writeFileSync } from 'node:fs';
import { cpus, type } from 'node:os';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';

const ROUNDS = 3;
/** Of threads that contend: where the system puts them makes more difference than what they do. */
const THREAD_ROUNDS = 7;
const LIMIT = 60_000;
const root = new URL('../../../', import.meta.url);
const modules = (path) => fileURLToPath(new URL(`node_modules/${path}`, root));
const runtimes = {
  'Node 20': [modules('node20/bin/node'), '--expose-gc'],
  'Node 22': [modules('node22/bin/node'), '--expose-gc'],
  'Node 24': [modules('node24/bin/node'), '--expose-gc'],
  'Node 26': [modules('node26/bin/node'), '--expose-gc'],
  Bun: [modules('@oven/bun-linux-x64/bin/bun')],
  Deno: [modules('@deno/linux-x64-glibc/deno'), 'run', '-A', '--v8-flags=--expose-gc'],
};
const native = new Set(['Node 24', 'Node 26', 'Deno']);
const rows = {
  sequential: 'uncontended, one after another',
  distinct: '10,000 at once, distinct names',
  one: '10,000 at once, one name',
  shared: '10,000 at once, one name, shared',
  'waiters-100': '100 waiters on one name',
  'waiters-1000': '1,000 waiters on one name',
  'waiters-20000': '20,000 waiters on one name',
  'waiters-100000': '100,000 waiters on one name',
  held: '20,000 names held, then released',
  query: '`query()` with 10,000 pending',
  'threads-2': 'two threads contending',
  'threads-4': 'four threads contending',
  memory: 'memory of a waiting request',
};

const script = fileURLToPath(new URL('locks.js', import.meta.url));
const run = promisify(execFile);

async function measure([command, ...args], row, engine) {
  try {
    const { stdout } = await run(command, [...args, script, row, engine], { timeout: LIMIT, killSignal: 'SIGKILL' });
    const line = stdout.trim().split('\n').at(-1);
    return line?.startsWith('{') ? JSON.parse(line) : { failed: 'ends early' };
  } catch (error) {
    return { failed: error.killed ? `> ${LIMIT / 1000} s` : 'fails' };
  }
}

/** Of several rounds the quickest, or the failure; of threads the one in the middle. */
function pick(results, threads) {
  const value = (result) => result.us ?? result.bytes ?? Infinity;
  const sorted = results.toSorted((a, b) => value(a) - value(b));
  return sorted[threads ? Math.floor(sorted.length / 2) : 0];
}

function show(result) {
  if (result === undefined) return '–';
  if (result.failed) return result.failed;
  if (result.bytes !== undefined) return `${Math.round(result.bytes)} B`;
  return result.us >= 100 ? `${(result.us / 1000).toFixed(2)} ms` : `${result.us.toFixed(2)} µs`;
}

function ratio(ours, theirs) {
  const value = (result) => result?.us ?? result?.bytes;
  return value(ours) && value(theirs) ? `${(value(theirs) / value(ours)).toFixed(1)} ×` : '–';
}

const only = process.argv.slice(2);
const lines = [];
for (const [name, command] of Object.entries(runtimes)) {
  if (only.length > 0 && !only.includes(name)) continue;
  if (!existsSync(command[0])) {
    console.log(`SKIPPED ${name}: not installed`);
    continue;
  }
  const version = execFileSync(command[0], ['--version']).toString().match(/\d+\.\d+\.\d+/)[0];
  lines.push('', `## ${name.split(' ')[0]} ${version}`, '');
  lines.push('| work | lockkeeper | native | native ÷ ours |', '|---|---|---|---|');
  for (const [row, title] of Object.entries(rows)) {
    const [ours, theirs] = [[], []];
    const threads = row.startsWith('threads');
    for (let round = 0; round < (threads ? THREAD_ROUNDS : ROUNDS); round++) {
      ours.push(await measure(command, row, 'lockkeeper'));
      // What failed once is not asked to fail again.
      if (native.has(name) && !theirs.at(-1)?.failed) theirs.push(await measure(command, row, 'native'));
    }
    const [us, them] = [ours, theirs].map((results) => pick(results, threads));
    const turns = us.turn ? ` = ${(us.us / us.turn).toFixed(2)} turns of ${us.turn.toFixed(2)} µs` : '';
    lines.push(`| ${title} | ${show(us)}${turns} | ${show(them)} | ${ratio(us, them)} |`);
    console.log(name, lines.at(-1));
  }
}

const page = `# The npm package beside each runtime's own \`navigator.locks\`

Made by \`npm run bench\`; each figure is the best of ${ROUNDS} processes, ours and the runtime's in turns; of contending threads the
median of ${THREAD_ROUNDS}, since where the system puts them makes more difference than what they do. Times are per
request, from the first request to the last release. A *turn* is a bare \`setImmediate\`, measured in the same process
between ours: a callback that runs in a later task costs one. *Fails*: the process ends with an error. *Ends early*: it ends
without having done its work. *> ${LIMIT / 1000} s*: it was ended after that.

Machine: ${cpus().length} × ${cpus()[0].model}, ${type()}.
${lines.join('\n')}
`;
if (only.length === 0) writeFileSync(new URL('bench/RESULTS-javascript.md', root), page);
else console.log(page);
