/**
 * Builds the addon and the command, and puts them into the package of this platform, which is made if it is not there yet. Linux on
 * x64 with glibc is built and tested here; `cargo xtask platforms` builds the addon for others.
 */

import { execFileSync } from 'node:child_process';
import { copyFileSync, existsSync, renameSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import platform from '../dist/cjs/platform.cjs';
import { makePackage } from './platform-package.js';

const root = new URL('../../../', import.meta.url);
const target = platform.targetOf();
const folder = new URL(`../npm/${target}/`, import.meta.url);
const windows = process.platform === 'win32';
if (!existsSync(new URL('package.json', folder))) makePackage(target, fileURLToPath(folder));

// The command needs Unix sockets.
const names = windows ? ['lockkeeper-node'] : ['lockkeeper-node', 'lockkeeper-cli'];
const packages = names.flatMap((name) => ['--package', name]);
const cargo = ['build', '--release', ...packages, '--message-format', 'json-render-diagnostics'];
const built = execFileSync('cargo', cargo, {
  cwd: fileURLToPath(root),
  stdio: ['ignore', 'pipe', 'inherit'],
  maxBuffer: Infinity,
});
const artifacts = built
  .toString()
  .split('\n')
  .filter((line) => line.startsWith('{'))
  .map((line) => JSON.parse(line))
  .filter(({ reason }) => reason === 'compiler-artifact');

/** What cargo built of a target, under another name in the package. */
function install(targetName, kind, name) {
  const artifact = artifacts.find(({ target }) => target.name === targetName && target.kind.includes(kind));
  const file = fileURLToPath(new URL(name, folder));
  // A process that has the old file loaded keeps it: the new one takes its place, not its bytes.
  copyFileSync(artifact.executable ?? artifact.filenames[0], `${file}.new`);
  renameSync(`${file}.new`, file);
  console.log(`built ${file}`);
}

install('lockkeeper_node', 'cdylib', `lockkeeper.${target}.node`);
if (!windows) install('lockkeeper', 'bin', 'lockkeeper');
