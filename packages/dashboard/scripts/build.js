/**
 * Checks the types and bundles the page: one document, one script, one style sheet, in dist/. With
 * `--check-in`, copies them to where the daemon has them: what is in the binary is checked in, and
 * needs no npm.
 */

import { build } from 'esbuild';
import { execFileSync } from 'node:child_process';
import { copyFileSync, mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const served = join(root, '../../crates/server/dashboard');
const require = createRequire(import.meta.url);
const manifest = require.resolve('typescript/package.json');
const tsc = join(dirname(manifest), require(manifest).bin.tsc);
execFileSync(process.execPath, [tsc, '--project', join(root, 'tsconfig.json')], { stdio: 'inherit' });

const dist = join(root, 'dist');
mkdirSync(dist, { recursive: true });
const common = { bundle: true, minify: true, target: 'es2022', legalComments: 'none', charset: 'utf8' };
await build({ ...common, entryPoints: [join(root, 'src/main.ts')], format: 'iife', outfile: join(dist, 'dashboard.js') });
await build({ ...common, entryPoints: [join(root, 'src/dashboard.css')], outfile: join(dist, 'dashboard.css') });
copyFileSync(join(root, 'src/index.html'), join(dist, 'index.html'));

if (process.argv.includes('--check-in')) {
  mkdirSync(served, { recursive: true });
  for (const file of ['index.html', 'dashboard.js', 'dashboard.css']) copyFileSync(join(dist, file), join(served, file));
}
