/**
 * Compiles the TypeScript, twice: ES modules in dist/, CommonJS for the runtimes in dist/cjs/. What
 * browsers load is bundled from the former: dist/browser/ for those who bundle it again, and the
 * drop-in as one classic script and one module.
 */

import { execFileSync } from 'node:child_process';
import { copyFileSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { bundle } from './bundle.js';

const root = fileURLToPath(new URL('..', import.meta.url));
const require = createRequire(import.meta.url);
const manifest = require.resolve('typescript/package.json');
const tsc = join(dirname(manifest), require(manifest).bin.tsc);

rmSync(join(root, 'dist'), { recursive: true, force: true });
for (const config of ['tsconfig.json', 'tsconfig.cjs.json']) {
  execFileSync(process.execPath, [tsc, '--project', join(root, config)], { stdio: 'inherit' });
}
// By its extension, every tool knows a CommonJS module. TypeScript gives it to none whose source
// has another.
const cjs = join(root, 'dist/cjs');
for (const file of readdirSync(cjs)) {
  const text = readFileSync(join(cjs, file), 'utf8');
  writeFileSync(join(cjs, file.replace(/\.js$/, '.cjs')), text.replace(/require\("(\.\/[\w-]+)\.js"\)/g, 'require("$1.cjs")'));
  rmSync(join(cjs, file));
}

await bundle(join(root, 'dist'));

// npm packs what is in the package's own folder.
const platforms = readdirSync(join(root, 'npm')).map((platform) => `npm/${platform}`);
for (const folder of ['.', ...platforms]) {
  for (const license of ['LICENSE-APACHE', 'LICENSE-MIT']) {
    copyFileSync(join(root, '../..', license), join(root, folder, license));
  }
}
