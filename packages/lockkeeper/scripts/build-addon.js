/**
 * Builds the addon and the command, and puts them into the package of this platform.
 *
 *     node scripts/build-addon.js [--glibc 2.28]
 *
 * With `--glibc`, they run with that version of it and later ones, whatever this machine has:
 * cargo-zigbuild links them.
 */

import { execFileSync } from 'node:child_process';
import { copyFileSync, renameSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import platform from '../dist/cjs/platform.cjs';

const root = new URL('../../../', import.meta.url);
const target = platform.targetOf();
const folder = new URL(`../npm/${target}/`, import.meta.url);
const windows = process.platform === 'win32';

const { glibc } = parseArgs({ options: { glibc: { type: 'string' } } }).values;

/** What cargo says that it built of a package. */
function build(name, flags) {
  const cargo = [glibc ? 'zigbuild' : 'build', '--release', '--message-format', 'json-render-diagnostics'];
  if (glibc) cargo.push('--target', `${process.arch === 'arm64' ? 'aarch64' : 'x86_64'}-unknown-linux-gnu.${glibc}`);
  const built = execFileSync('cargo', [...cargo, '--package', name], {
    cwd: fileURLToPath(root),
    env: flags ? { ...process.env, RUSTFLAGS: flags } : process.env,
    stdio: ['ignore', 'pipe', 'inherit'],
    maxBuffer: Infinity,
  });
  const lines = built.toString().split('\n');
  const messages = lines.filter((line) => line.startsWith('{')).map((line) => JSON.parse(line));
  return messages.filter(({ reason }) => reason === 'compiler-artifact');
}

const ADDON = 'lockkeeper-node';
const COMMAND = 'lockkeeper-cli';
// The command needs Unix sockets. Each by itself: together, the addon would have all that the
// command needs. With musl, what a runtime loads is linked dynamically, and the command is not.
const artifacts = [
  ...build(ADDON, target.endsWith('-musl') ? '-C target-feature=-crt-static' : undefined),
  ...(windows ? [] : build(COMMAND)),
];

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
