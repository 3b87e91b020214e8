/**
 * Bundles what browsers load. Properties that only this package knows get short names: a page's
 * bundler would not dare, and a page loads less.
 */

import { build } from 'esbuild';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { minify } from 'terser';

/** None of them is a property of the platform, of an option, or of anything that is handed out. */
const INTERNAL = `
  advise answer arm begin beginLate blocked broke callback cancelTimeout check checkLease config
  connectAt connectFailed connected connecting controller deliver deliverNothing disarm disconnected enter
  failure frozen getStore give goingAwayEnds granted grantedAtOnce helloTimeout inTask
  isHeld isOpen isUnanswered kind lastRid later listed names newLiveness nextWake number opened
  orTimedOut outcome over owner parts place publish queued rejected releaseOrCancel resolved resumed rid sent seq
  settled shared since slot snapshot socket sortedNames stage state storage submit submitScope takeEvents
  takeOutput tell timedOut transport ttl turn unavailable waits waitsForToken wantsDrop watchExit
  watchPage whenBroken why without arrival end events fail force secret stop wake
`.trim().split(/\s+/);

/**
 * What is never there in a browser, as `src/observer.ts` has it: nobody observes requests, keeps a
 * process alive, tells that it ends or knows which request runs. The minifier drops what depends
 * on it. Some events of a session are for its transcripts alone.
 */
const absent = {
  name: 'absent',
  setup({ onLoad }) {
    onLoad({ filter: /dist[/\\][\w-]+\.js$/ }, ({ path }) => ({ contents: withoutObserver(readFileSync(path, 'utf8')) }));
  },
};

function withoutObserver(text) {
  return text
    .replaceAll(/(?<!\/)\bobserver\.\w+/g, 'undefined')
    .replaceAll(/this\.#liveness(?! =)/g, 'undefined')
    .replaceAll(/\bouter\.storage(?! \?\?=)/g, 'undefined')
    .replaceAll(/this\.#events\.push\(\{ type: '(?:sessionLost|closed)' \}\);/g, '')
    .replace('if (ends) {', 'if (undefined) {');
}

/** Nor are a process and its modules, except where a page is simulated, as jsdom does it. */
const withoutProcess = {
  name: 'without-process',
  setup({ onLoad }) {
    onLoad({ filter: /dist[/\\](?:host|pack|websocket)\.js$/ }, ({ path }) => {
      const text = withoutObserver(readFileSync(path, 'utf8'));
      const contents = text
        .replace('export const { process } = globalThis;', 'export const process = undefined;')
        .replaceAll(/\b(?:process|timers)(?=\?\.| ===| &&)/g, 'undefined')
        .replace("const { TextDecoder } = globalThis.TextDecoder ? globalThis : builtin('node:util');", '');
      if (contents === text) throw new Error(`${path} has changed: it takes of a process`);
      return { contents };
    });
  },
};

const common = {
  bundle: true,
  platform: 'browser',
  target: 'es2022',
  legalComments: 'none',
  mangleProps: new RegExp(`^(${INTERNAL.join('|')})$`),
};

/** What pages load that bundle it again. */
const ENTRIES = ['connect', 'navigator', 'proposals-of'];

export async function bundle(dist) {
  const entry = (name) => join(dist, `${name}.js`);
  await build({
    ...common,
    entryPoints: ENTRIES.map(entry),
    format: 'esm',
    splitting: true,
    minifySyntax: true,
    chunkNames: 'shared-[hash]',
    outdir: join(dist, 'browser'),
    plugins: [absent],
  });
  for (const [format, file] of [
    ['iife', 'navigator.min.js'],
    ['esm', 'navigator.min.mjs'],
  ]) {
    const plugins = [withoutProcess, absent];
    const { outputFiles } = await build({
      ...common,
      entryPoints: [entry('navigator')],
      format,
      plugins,
      minify: true,
      write: false,
    });
    // By the size of the script once it is compressed.
    const compress = {
      ecma: 2022,
      conditionals: false,
      hoist_funs: true,
      lhs_constants: false,
      passes: 3,
      pure_getters: true,
      unsafe_arrows: true,
      unsafe_methods: true,
    };
    const options = { module: format === 'esm', toplevel: true, ecma: 2022, compress };
    const { code } = await minify(outputFiles[0].text, options);
    writeFileSync(join(dist, file), `${code}\n`);
  }
}
