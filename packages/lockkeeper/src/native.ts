/**
 * The addon: which file it is, and the interface it has (`crates/node` is the other side).
 *
 * All threads of a process must use one file, since each file that is loaded has a lock manager of its own. The one
 * that was loaded first is used by all: a thread hands its path on to the threads it starts, and on Linux the list
 * of mapped files shows it wherever it was loaded.
 */

import { existsSync, readFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import { dirname, join } from 'node:path';
import { getEnvironmentData, setEnvironmentData } from 'node:worker_threads';
import type { Snapshot } from './remote.js';
import type { Deadlock, DeadlockStep, Inspection } from './transport.js';

/** What a call came to. `MAIL`: there are letters to collect. */
export const Answer = { QUEUED: 0, GRANTED: 1, UNAVAILABLE: 2, ABORTED: 1, MAIL: 4 } as const;

/** What befell a request: the three low bits of the first number of a letter. The second is the token of a grant. */
export const News = {
  GRANTED: 0,
  STOLEN: 1,
  LOST: 2,
  UNAVAILABLE: 3,
  ENDED: 4,
  REFUSED: 5,
  OPENED: 6,
} as const;

/**
 * The agent of this thread. Requests go by slots: numbers that this side gives out densely and uses again.
 *
 * What is not a string is passed in an array of numbers, by twos. The first two are a call's. In: a slot, flags. Out:
 * an answer, the token of a grant. The others are letters: a slot × 8 + its news, the token of a grant.
 */
export interface NativeAgent {
  readonly clientId: string;
  fast(): {
    /** Without a name, it is that of the last request, as the flags say. */
    request(name?: string): void;
    /** Answers 0; or slot + 1 of the one request that was granted by it; or -1 if there are letters to collect. */
    release(): void;
    /** Answers how many letters it has written, which are as many as there is room for. */
    collect(): void;
  };
  /** The long form of `request`. Returns the deadlock because of which it was refused. */
  requestScope(
    names: string[],
    shared: boolean[],
    nestedIn: number | undefined,
    info: string | undefined,
  ): Deadlock | null;
  abort(slot: number): number;
  forceRelease(name: string): number;
  query(): { names: string; entries: Uint32Array; held: number; clients: string[] };
  inspect(): Inspection;
  deadlock(slot: number): Deadlock | null;
}

/** A session with a daemon. It passes numbers and letters as the agent does; nothing in it waits. */
export interface NativeRemote {
  /** Throws if the session could not be opened. */
  clientId(): string;
  collect(): void;
  /** Reads replies on this thread, for some microseconds. */
  spinForReply(): void;
  /** Whether a granted lock is still held, by the clock. */
  isHeld(slot: number): boolean;
  request(names: string[], shared: boolean[], nestedIn: number | undefined, info: string | undefined): void;
  release(slot: number, timedOut: boolean): void;
  query(slot: number, deadlocks: boolean): void;
  forceRelease(slot: number, name: string): void;
  refusal(slot: number): { code: number; message: string; cycle?: DeadlockStep[] } | null;
  snapshot(slot: number): Snapshot | null;
  close(): void;
}

interface Addon {
  ABI: number;
  Agent: new (numbers: Float64Array, onMail: () => void) => NativeAgent;
  Remote: new (
    numbers: Float64Array,
    onMail: () => void,
    url: string | undefined,
    program: string | undefined,
    bucket: string,
  ) => NativeRemote;
}

const ABI = 2;
const SHARED_PATH = `lockkeeper.addon.${ABI}`;
const require = createRequire(import.meta.url);

export const addon = load();

/** The daemon that came with this copy of the package. */
export function daemonPath(): string | undefined {
  const path = join(dirname(ownPath()), process.platform === 'win32' ? 'lockkeeper.exe' : 'lockkeeper');
  return existsSync(path) ? path : undefined;
}

function load(): Addon {
  const own = ownPath();
  const shared = getEnvironmentData(SHARED_PATH) ?? mapped().find(existsSync);
  if (typeof shared === 'string' && shared !== own) {
    const found = require(shared) as Addon;
    if (found.ABI === ABI) return share(shared, found);
    process.emitWarning(
      `two versions of lockkeeper are loaded that do not share their locks: ${shared} and ${own}`,
      { type: 'LockkeeperWarning', code: 'LOCKKEEPER_TWO_MANAGERS' },
    );
  }
  return share(own, require(own) as Addon);
}

function share(path: string, loaded: Addon): Addon {
  setEnvironmentData(SHARED_PATH, path);
  return loaded;
}

/** The file that this copy of the package came with, in the package of this platform. */
function ownPath(): string {
  const { platform, arch } = process;
  const abis = platform === 'linux' ? ['-gnu', '-musl'] : platform === 'win32' ? ['-msvc'] : [''];
  const targets = abis.map((abi) => `${platform}-${arch}${abi}`);
  for (const target of targets) {
    try {
      return require.resolve(`lockkeeper-${target}`);
    } catch {
      // Not this one.
    }
  }
  throw new Error(
    `lockkeeper has no addon for ${platform}-${arch}: none of ${targets.map((t) => `lockkeeper-${t}`).join(', ')} ` +
      'is installed. Were optional dependencies left out (npm install --include=optional)?',
  );
}

/** The addons that this process has loaded, of this copy or others; none where there is no such list. */
function mapped(): string[] {
  if (process.platform !== 'linux') return [];
  try {
    const maps = readFileSync('/proc/self/maps', 'utf8');
    return [...new Set(maps.match(/\/.*\/lockkeeper\.linux-[\w-]+\.node$/gm))];
  } catch {
    return [];
  }
}
