/**
 * Finds the package of this platform: the paths of its addon and its daemon. It never loads them.
 *
 * The requires are literal, so that tools that trace files find the package. Bundlers move this
 * code away from it; then the files are searched for beside the bundle, and in the `node_modules`
 * above it, above the main program and above the working directory.
 */

import { builtin } from './host.js';

/** What a package of a platform exports. */
export interface PlatformFiles {
  addon: string;
  /** The command, which is the daemon too. Not every platform has one. */
  daemon?: string;
}

declare const require: (id: string) => unknown;
declare const __dirname: string | undefined;
declare const __webpack_require__: unknown;

/** The platforms for which a package is built, as it is named. */
const targets = [
  'linux-x64-gnu',
  'linux-x64-musl',
  'linux-arm64-gnu',
  'linux-arm64-musl',
  'darwin-x64',
  'darwin-arm64',
  'win32-x64-msvc',
];

let found: PlatformFiles | undefined;

/** Where the daemon would be, and how it gets there, if there is an addon and no daemon. */
export function missingDaemon(): string {
  const { dirname, join } = builtin('node:path');
  return `${join(dirname(platformFiles().addon), 'lockkeeper')}. If this program was bundled and moved, copy it there from the package lockkeeper-${targetOf()}`;
}

/** Throws if the package of this platform is not installed, and names it. */
export function platformFiles(): PlatformFiles {
  return (found ??= find());
}

function find(): PlatformFiles {
  const { existsSync } = builtin('node:fs');
  const { dirname } = builtin('node:path');
  const target = targetOf();
  for (const { addon, daemon } of candidates(target)) {
    if (existsSync(addon)) return daemon && existsSync(daemon) ? { addon, daemon } : { addon };
  }
  const name = `lockkeeper-${target}`;
  const why = targets.includes(target)
    ? `the package ${name} is not installed. Install it (npm install ${name}): npm leaves it out with --omit=optional. ` +
      (isInstalled()
        ? ''
        : `If this program was bundled and moved away from node_modules, copy lockkeeper.${target}.node from that package to ` +
          `${dirname(process.argv[1] ?? '')}, and the program lockkeeper, if there is one: connect() needs it. `)
    : 'no package is built for it. ';
  const message = `lockkeeper has no addon for ${process.platform}-${process.arch}: ${why}connect('ws://…') needs none.`;
  throw Object.assign(new Error(message), { code: 'LOCKKEEPER_NO_ADDON' });
}

/** Whether this code is in a file of its own, and in no bundle. */
function isInstalled(): boolean {
  return typeof __dirname === 'string' && builtin('node:fs').existsSync(builtin('node:path').join(__dirname, 'platform.cjs'));
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

/**
 * Within a `try`, by which bundlers know that each may be missing. webpack would warn of it all the
 * same. It knows the condition, and leaves out what depends on it: what it bundles finds its
 * package by the folders.
 */
function required(target: string): PlatformFiles | undefined {
  if (typeof __webpack_require__ === 'undefined') {
    try {
      if (target === 'linux-x64-gnu') return require('lockkeeper-linux-x64-gnu') as PlatformFiles;
      if (target === 'linux-x64-musl') return require('lockkeeper-linux-x64-musl') as PlatformFiles;
      if (target === 'linux-arm64-gnu') return require('lockkeeper-linux-arm64-gnu') as PlatformFiles;
      if (target === 'linux-arm64-musl') return require('lockkeeper-linux-arm64-musl') as PlatformFiles;
      if (target === 'darwin-x64') return require('lockkeeper-darwin-x64') as PlatformFiles;
      if (target === 'darwin-arm64') return require('lockkeeper-darwin-arm64') as PlatformFiles;
      if (target === 'win32-x64-msvc') return require('lockkeeper-win32-x64-msvc') as PlatformFiles;
    } catch {
      // Not installed, or in a bundle of ES modules, which has no `require`.
    }
  }
  return undefined;
}

/** The platform that this process runs on, as its package is named. */
export function targetOf(): string {
  const { platform, arch } = process;
  const abi = platform === 'linux' ? (isMusl() ? '-musl' : '-gnu') : platform === 'win32' ? '-msvc' : '';
  return `${platform}-${arch}${abi}`;
}

/**
 * The mapped loader shows it. Where that may not be read, as in Deno, the system's `ldd` does.
 * Node's report is not used, because it waits for all worker threads.
 */
function isMusl(): boolean {
  const loader = /\/ld-(linux|musl)/.exec(read('/proc/self/maps'))?.[1];
  return loader === undefined ? read('/usr/bin/ldd').includes('musl') : loader === 'musl';
}

/** A text of the system's, or none. */
function read(file: string): string {
  try {
    return builtin('node:fs').readFileSync(file, 'utf8');
  } catch {
    return '';
  }
}
