/**
 * Makes the package of a platform, like that of the platform that is tested: all but the addon and the command.
 *
 *     node scripts/platform-package.js linux-arm64-gnu FOLDER
 */

import { copyFileSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const KNOWN = 'linux-x64-gnu';
const root = fileURLToPath(new URL('..', import.meta.url));

export function makePackage(target, folder) {
  mkdirSync(folder, { recursive: true });
  const read = (file) => readFileSync(join(root, 'npm', KNOWN, file), 'utf8').replaceAll(KNOWN, target);
  const [os, cpu, abi] = target.split('-');
  const { libc: _, ...manifest } = JSON.parse(read('package.json'));
  const described = { ...manifest, description: `The addon and the daemon of lockkeeper for ${target}`, os: [os], cpu: [cpu] };
  const libc = { gnu: ['glibc'], musl: ['musl'] }[abi];
  writeFileSync(join(folder, 'package.json'), `${JSON.stringify(libc ? { ...described, libc } : described, undefined, 2)}\n`);
  writeFileSync(join(folder, 'index.js'), read('index.js'));
  for (const license of ['LICENSE-APACHE', 'LICENSE-MIT']) copyFileSync(join(root, '../..', license), join(folder, license));
}

const [, script, target, folder] = process.argv;
if (script && resolve(script) === fileURLToPath(import.meta.url)) makePackage(target, folder);
