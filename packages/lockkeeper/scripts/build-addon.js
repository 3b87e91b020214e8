/** Builds the addon and the command, and puts them into the package of this platform. Only Linux is built and tested. */

import { execFileSync } from 'node:child_process';
import { copyFileSync, renameSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const target = 'linux-x64-gnu';
const root = new URL('../../../', import.meta.url);
if (process.platform !== 'linux' || process.arch !== 'x64') {
  throw new Error(`npm/ has a package for ${target} only; ${process.platform}-${process.arch} needs one like it`);
}
const packages = ['lockkeeper-node', 'lockkeeper-cli'].flatMap((name) => ['--package', name]);
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
  const file = fileURLToPath(new URL(`../npm/${target}/${name}`, import.meta.url));
  // A process that has the old file loaded keeps it: the new one takes its place, not its bytes.
  copyFileSync(artifact.executable ?? artifact.filenames[0], `${file}.new`);
  renameSync(`${file}.new`, file);
  console.log(`built ${file}`);
}

install('lockkeeper_node', 'cdylib', `lockkeeper.${target}.node`);
install('lockkeeper', 'bin', 'lockkeeper');
