/** Builds the addon and puts it into the package of this platform. Only what is built here is tested here: Linux. */

import { execFileSync } from 'node:child_process';
import { copyFileSync, renameSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const target = 'linux-x64-gnu';
const root = new URL('../../../', import.meta.url);
if (process.platform !== 'linux' || process.arch !== 'x64') {
  throw new Error(`npm/ has a package for ${target} only; ${process.platform}-${process.arch} needs one like it`);
}
const cargo = ['build', '--release', '--package', 'lockkeeper-node', '--message-format', 'json-render-diagnostics'];
const built = execFileSync('cargo', cargo, { cwd: fileURLToPath(root), stdio: ['ignore', 'pipe', 'inherit'] });
const artifact = built
  .toString()
  .split('\n')
  .filter((line) => line.startsWith('{'))
  .map((line) => JSON.parse(line))
  .find(({ reason, target }) => reason === 'compiler-artifact' && target.name === 'lockkeeper_node');
const file = fileURLToPath(new URL(`../npm/${target}/lockkeeper.${target}.node`, import.meta.url));
// A process that has the old file loaded keeps it: the new one takes its place, not its bytes.
copyFileSync(artifact.filenames[0], `${file}.new`);
renameSync(`${file}.new`, file);
console.log(`built ${file}`);
