/**
 * Builds the addon and the command, and puts them into the package of this platform, which is made if it is not there yet. Linux on
 * x64 with glibc is built and tested; others are only known to compile (`cargo xtask platforms`).
 */

import { execFileSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import platform from '../dist/cjs/platform.cjs';

const root = new URL('../../../', import.meta.url);
const known = 'linux-x64-gnu';
const target = platform.targetOf();
const folder = new URL(`../npm/${target}/`, import.meta.url);
const windows = process.platform === 'win32';
if (!existsSync(new URL('package.json', folder))) makePackage();

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

/** Like that of the platform that is tested. */
function makePackage() {
  mkdirSync(folder, { recursive: true });
  const source = new URL(`../npm/${known}/`, import.meta.url);
  for (const file of ['package.json', 'index.js']) {
    const text = readFileSync(new URL(file, source), 'utf8').replaceAll(known, target);
    writeFileSync(new URL(file, folder), file === 'package.json' ? describe(text) : text);
  }
}

function describe(text) {
  const { libc: _, ...manifest } = JSON.parse(text);
  const libc = { gnu: ['glibc'], musl: ['musl'] }[target.split('-')[2]];
  const { platform: os, arch: cpu } = process;
  const described = { ...manifest, description: `The addon and the daemon of lockkeeper for ${target}`, os: [os], cpu: [cpu] };
  return `${JSON.stringify(libc ? { ...described, libc } : described, undefined, 2)}\n`;
}
