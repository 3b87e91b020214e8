/**
 * The package of this platform: where its addon and its daemon are on disk. It never loads them.
 *
 * The requires are literal, so that tools that trace files find the package. Bundlers move this
 * code away from it; then the files are looked for beside the bundle, and in the `node_modules`
 * above it, above the main program and above the working directory.
 */

import { builtin } from './host.js';

/** What a package of a platform exports. */
export interface PlatformFiles {
  addon: string;
  daemon: string;
}

declare const require: (id: string) => unknown;
declare const __dirname: string | undefined;

/** The platforms for which there is a package, as it is named. */
const targets = ['linux-x64-gnu'];

let found: PlatformFiles | undefined;

/** Throws if the package of this platform is not installed, and names it. */
export function platformFiles(): PlatformFiles {
  return (found ??= find());
}

function find(): PlatformFiles {
  const { existsSync } = builtin('node:fs');
  const target = targetOf();
  for (const candidate of candidates(target)) if (existsSync(candidate.addon)) return candidate;
  const name = `lockkeeper-${target}`;
  const why = targets.includes(target)
    ? `the package ${name} is not installed. Were optional dependencies left out (npm install --include=optional), ` +
      'or was the program bundled and moved away from node_modules (see "Deployment" in the README)?'
    : `there is no package ${name}.`;
  const message = `lockkeeper has no addon for ${process.platform}-${process.arch}: ${why} connect('ws://…') needs none.`;
  throw Object.assign(new Error(message), { code: 'LOCKKEEPER_NO_ADDON' });
}

function* candidates(target: string): Generator<PlatformFiles> {
  const own = required(target);
  if (own) yield own;
  const { join, dirname } = builtin('node:path');
  const { createRequire } = builtin('node:module');
  const daemon = process.platform === 'win32' ? 'lockkeeper.exe' : 'lockkeeper';
  const files = (dir: string): PlatformFiles => ({
    addon: join(dir, `lockkeeper.${target}.node`),
    daemon: join(dir, daemon),
  });
  const main = process.argv[1];
  const places = [typeof __dirname === 'string' ? __dirname : undefined, main && dirname(main), process.cwd()];
  for (const place of places) {
    if (!place) continue;
    yield files(place);
    let require = createRequire(join(place, 'lockkeeper.js'));
    // With some package managers, only this package sees that of the platform.
    for (const name of ['lockkeeper', `lockkeeper-${target}`]) {
      try {
        const manifest = require.resolve(`${name}/package.json`);
        if (name !== 'lockkeeper') yield files(dirname(manifest));
        require = createRequire(manifest);
      } catch {
        // Not here.
      }
    }
  }
}

/** Each within a `try`, by which bundlers know that it may be missing. */
function required(target: string): PlatformFiles | undefined {
  try {
    if (target === 'linux-x64-gnu') return require('lockkeeper-linux-x64-gnu') as PlatformFiles;
  } catch {
    // Not installed, or in a bundle of ES modules, which has no `require`.
  }
  return undefined;
}

/** The platform that this process runs on, as its package is named. */
export function targetOf(): string {
  const { platform, arch } = process;
  const abi = platform === 'linux' ? (isMusl() ? '-musl' : '-gnu') : platform === 'win32' ? '-msvc' : '';
  return `${platform}-${arch}${abi}`;
}

function isMusl(): boolean {
  try {
    return builtin('node:fs').readFileSync('/usr/bin/ldd', 'utf8').includes('musl');
  } catch {
    return false;
  }
}
