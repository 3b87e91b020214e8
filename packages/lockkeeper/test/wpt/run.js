/**
 * Runs the Web Platform Tests' directory `web-locks`: in Chromium and Firefox, each with its own
 * locks and with the drop-in, and what needs no page in Node. Writes the table in
 * docs/conformance.md. Fails if something fails that is not explained here.
 *
 *     node test/wpt/run.js CHECKOUT [part of a test's path]...
 *
 * With a part of a path, only the tests that have it are run, and nothing is written.
 */

import { execFileSync } from 'node:child_process';
import { existsSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';
import { runBrowser } from './browser.js';

const DOCUMENT = fileURLToPath(new URL('../../../../docs/conformance.md', import.meta.url));

/** Why the drop-in fails a test, in one browser: by a part of its path, and of its name. */
const CLIENT_ID =
  'A service worker knows a page by an id that no script of the page can read, so that the `clientId` of a lock cannot be the same.';
const STOLEN =
  'The page waits for the callback of a lock that is stolen as soon as it is granted. If both are known before the callback begins, it is not run: a ' +
  'departure from the draft, since nothing protects it any more. So this depends on when messages come.';
const IN_CHROMIUM = [
  ['clientids', '', `${CLIENT_ID} The two are different in Chromium as well.`],
  ['crashtests/settle-after-steal', '', STOLEN],
  [
    'bfcache/contention',
    'on the main thread',
    'Only the browser can evict a page from the back/forward cache, and it does so for contention on its own locks. With the drop-in, a page in the cache ' +
      'holds no locks: what it held is given up when it is left, and ends with an `AbortError` when the page is restored. Workers that hold a lock keep their ' +
      'page out of the cache.',
  ],
];
const IN_FIREFOX = [
  ['clientids', '', CLIENT_ID],
  ['crashtests/settle-after-steal', '', STOLEN],
  [
    'non-fully-active',
    'Workers owned by an unloaded iframe',
    'It asks for the list of locks as soon as the frame is gone. Firefox closes the connection of its worker a little later, and the daemon learns of it then.',
  ],
  ['storage-buckets', '', 'Firefox has no storage buckets.'],
];

/** Why a page is not cached with the drop-in that is cached with the browser's own locks. */
const UNCACHED = {
  Chrome: 'Chromium caches no page whose worker has an open connection. No event tells a worker that its page is left, and a window does not know its workers unless it replaces `Worker`.',
  Firefox: 'Firefox caches no page that has an open connection when it is left. `pagehide`, in which the drop-in closes it, comes too late.',
};

/** Why a test fails in Node. */
const IN_NODE = [
  ['', 'API presence in non-secure contexts', 'There are no insecure contexts outside of a browser.'],
  ['', 'Storage buckets have independent locks', 'There are no storage buckets outside of a browser.'],
  ['', 'WorkerNavigator interface: attribute locks', "The interface is called `Navigator` on Node's threads, too."],
];

const [given, ...filters] = process.argv.slice(2);
const checkout = resolve(given ?? '');
if (!given || !existsSync(join(checkout, 'web-locks'))) throw new Error('usage: node test/wpt/run.js CHECKOUT [FILTER]...');

const tell = ({ path, file, global, tests, harness }) => {
  const passed = tests.filter((test) => test.passed).length;
  console.log(`${String(passed).padStart(3)} of ${tests.length} ${path ?? `${file} as a ${global}`} ${harness}`);
};
const columns = [];
for (const [name, reasons] of [['chromium', IN_CHROMIUM], ['firefox', IN_FIREFOX]]) {
  for (const injected of [false, true]) {
    console.log(`${name}, ${injected ? 'the drop-in' : 'its own locks'}`);
    columns.push({ injected, reasons, ...(await runBrowser(name, checkout, filters, injected, tell)) });
  }
}
console.log('Node');
const printed = execFileSync(process.execPath, [fileURLToPath(new URL('node.js', import.meta.url)), checkout, ...filters]);
const inNode = JSON.parse(printed);
inNode.forEach(tell);

const injected = columns.filter((column) => column.injected);
for (const column of injected) column.failures = explain(column.results, column.reasons);
const node = explain(inNode, IN_NODE);
const unexplained = [...injected.flatMap(({ failures }) => failures), ...node].filter(({ why }) => why === undefined);
for (const { where, name, message } of unexplained) console.log(`NOT EXPLAINED: ${where}: ${name}: ${message}`);
if (filters.length === 0) writeFileSync(DOCUMENT, report());
process.exit(unexplained.length > 0 ? 1 : 0);

/** What failed, each with its reason. */
function explain(results, reasons) {
  return results.flatMap(({ file, path = file, tests, harness }) => {
    const failed = tests.filter(({ passed, optional }) => !passed && !optional);
    if (harness) failed.push({ name: 'the harness', message: harness });
    return failed.map(({ name, message }) => {
      const reason = reasons.find(([where, part]) => path.includes(where) && name.includes(part));
      return { where: path.replace('/web-locks/', ''), name, message, why: reason?.[2] };
    });
  });
}

function report() {
  const all = [...columns.map(({ results }) => results), inNode];
  const rows = [...new Set(columns[0].results.map(({ file }) => file))].map((file) => {
    const cells = all.map((results) => count(results.filter((result) => result.file === file)));
    return `| \`${file}\` | ${cells.join(' | ')} |`;
  });
  const [chromium, firefox] = injected;
  const revision = revisionOf(checkout);
  return `# Conformance

The Web Platform Tests' directory \`web-locks\`${revision ? `, at revision ${revision}` : ''}: subtests that pass, of all. *Chromium* is ${chromium.version} and
*Firefox* ${firefox.version.replace('Firefox ', '')}, with their own locks; *drop-in* is the browser before it, with
[\`navigator.min.js\`](../packages/lockkeeper/README.md#drop-in) in every page and worker and a daemon on loopback (\`--bucket-per-origin\`); *Node* is
\`lockkeeper/install\` in Node ${process.version.slice(1)}, for the tests that need no page.

This file is written by \`cargo xtask wpt PATH\`, where PATH is a checkout of the tests. Nothing of it is edited by hand.

| test | Chromium | drop-in | Firefox | drop-in | Node |
|---|---:|---:|---:|---:|---:|
${rows.join('\n')}
| all | ${all.map(count).join(' | ')} |

A cell with a second number has subtests of what a browser *may* do, and does not: they neither pass nor fail. [They are listed](#optional-results), with the
reason where the browser does it with its own locks. All are about pages that could have been in the back/forward cache.

${injected.map(({ version, failures }) => `## What fails with the drop-in in ${version.split(' ')[0]}\n\n${listed(failures)}`).join('\n')}
## What fails in Node

${listed(node)}
## Optional results

What a browser may do, and does not, with its own locks or with the drop-in.

| test | subtest | where | why only with the drop-in |
|---|---|---|---|
${optionalRows().join('\n')}
`;
}

/** What a browser may do, in which columns it does not, and why only with its own locks. */
function optionalRows() {
  const rows = new Map();
  for (const [i, { version, injected, results }] of columns.entries()) {
    const browser = version.split(' ')[0];
    for (const { path, tests } of results) {
      for (const { name } of tests.filter((test) => test.optional)) {
        const key = `| \`${path.replace('/web-locks/', '')}\` | ${name.replaceAll('|', '\\|')} |`;
        const { where, why } = rows.get(key) ?? { where: [], why: [] };
        where.push(`${browser}${injected ? ', drop-in' : ''}`);
        if (injected && passes(columns[i - 1].results, path, name)) why.push(UNCACHED[browser]);
        rows.set(key, { where, why });
      }
    }
  }
  return [...rows].map(([key, { where, why }]) => `${key} ${where.join('; ')} | ${why.join(' ')} |`);
}

function passes(results, path, name) {
  return results.some((result) => result.path === path && result.tests.some((test) => test.name === name && test.passed));
}

/** By reason. */
function listed(all) {
  if (all.length === 0) return 'Nothing.\n';
  const reasons = [...new Set(all.map(({ why }) => why))];
  return reasons
    .map((reason) => {
      const of = all.filter(({ why }) => why === reason);
      return `${of.map(({ where, name }) => `- \`${where}\`: ${name}\n`).join('')}\n${reason ?? 'Not explained.'}\n`;
    })
    .join('\n');
}

function count(results) {
  if (results.length === 0) return '';
  const tests = results.flatMap(({ tests }) => tests);
  const passed = tests.filter((test) => test.passed).length;
  const optional = tests.filter((test) => test.optional).length;
  return `${passed} of ${tests.length}${optional > 0 ? ` (${optional} optional)` : ''}`;
}

function revisionOf(checkout) {
  try {
    return execFileSync('git', ['-C', checkout, 'rev-parse', '--short=12', 'HEAD'], { stdio: ['ignore', 'pipe', 'ignore'] })
      .toString()
      .trim();
  } catch {
    return undefined;
  }
}
