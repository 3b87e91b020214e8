/**
 * The addon: the choice of its file, and its interface (`crates/node` is the other side).
 *
 * All threads of a process must use one file, because each loaded file has a separate lock manager.
 * All use the one that was loaded first: a thread passes its path to the threads it starts, and on
 * Linux the list of mapped files shows it wherever it was loaded.
 */

import { builtin } from './host.js';
import { platformFiles } from './platform.js';
import type { Snapshot } from './remote.js';
import type { Deadlock, DeadlockStep, Inspection } from './transport.js';

/** The answer of a call. `MAIL`: there are notifications to collect. */
export const Answer = { QUEUED: 0, GRANTED: 1, UNAVAILABLE: 2, ABORTED: 1, MAIL: 4 } as const;

/**
 * The event of a request: the three low bits of the first number of a notification. The second is
 * the token of a grant.
 */
export const News = {
  GRANTED: 0,
  STOLEN: 1,
  LOST: 2,
  UNAVAILABLE: 3,
  ENDED: 4,
  REFUSED: 5,
  /** An event of the session, not of a request: the slot is one of `Stage`. */
  SESSION: 6,
} as const;

/** What became of a session with a daemon. */
export const Stage = { OPENED: 0, INTERRUPTED: 1, FAILED: 2 } as const;

/**
 * The agent of this thread. Requests are identified by slots: small numbers that this side assigns
 * and reuses.
 *
 * All values but strings are passed in pairs in an array of numbers. The first two are a call's.
 * In: a slot, flags. Out: an answer, the token of a grant. The others are notifications: a slot × 8
 * + its event, the token of a grant.
 */
export interface NativeAgent {
  readonly clientId: string;
  fast(): {
    /** Without a name, it is that of the last request, as the flags say. */
    request(name?: string): void;
    /**
     * Answers 0; or slot + 1 of the one request that was granted by it; or -1 if there are
     * notifications to collect.
     */
    release(): void;
    /** Answers how many notifications it has written, which are as many as there is room for. */
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
  /** Ends the agent: its locks are released and its requests removed, without notifications. */
  close(): void;
}

/**
 * A session with a daemon. It has a call buffer and notifications as the agent has; nothing in it
 * waits.
 */
export interface NativeRemote {
  clientId(): string;
  /** Why there is no session. */
  failure(): Refusal | null;
  collect(): void;
  /** Whether a granted lock is still held, by the clock. */
  isHeld(slot: number): boolean;
  request(names: string[], shared: boolean[], nestedIn: number | undefined, info: string | undefined): void;
  release(slot: number, timedOut: boolean): void;
  query(slot: number, deadlocks: boolean): void;
  forceRelease(slot: number, name: string): void;
  refusal(slot: number): Refusal | null;
  snapshot(slot: number): Snapshot | null;
  /** Ends the session. Notifications tell what is lost. */
  close(): void;
  /** Ends the session and frees its resources, without further notifications. */
  shut(): void;
}

/** Why a request was refused: by the daemon, or because it has `failed` to open a session. */
export interface Refusal {
  code: number;
  message: string;
  failed: boolean;
  cycle?: DeadlockStep[];
}

interface Addon {
  ABI: number;
  /** With `ownManager`, it is the only agent of a separate lock manager. */
  Agent: new (buffer: Float64Array, onMail: () => void, ownManager: boolean) => NativeAgent;
  /** None on Windows. */
  Remote: new (
    buffer: Float64Array,
    onMail: () => void,
    url: string | undefined,
    program: string | undefined,
    bucket: string,
  ) => NativeRemote;
}

const ABI = 5;
const SHARED_PATH = `lockkeeper.addon.${ABI}`;

let addon: Addon | undefined;

/** The addon. Throws if there is none for this platform. */
export function loadAddon(): Addon {
  return (addon ??= load());
}

/** The daemon that came with this copy of the package, if there is one for this platform. */
export function daemonPath(): string | undefined {
  return platformFiles().daemon;
}

function load(): Addon {
  const { existsSync } = builtin('node:fs');
  const own = platformFiles().addon;
  const shared = builtin('node:worker_threads').getEnvironmentData(SHARED_PATH) ?? mapped().find(existsSync);
  if (typeof shared === 'string' && shared !== own) {
    const found = open(shared);
    if (found.ABI === ABI) return share(shared, found);
    process.emitWarning(
      `two versions of lockkeeper are loaded that do not share their locks: ${shared} and ${own}`,
      { type: 'LockkeeperWarning', code: 'LOCKKEEPER_TWO_MANAGERS' },
    );
  }
  return share(own, open(own));
}

/** By its path, past bundlers, which cannot follow it. */
function open(path: string): Addon {
  return builtin('node:module').createRequire(path)(path) as Addon;
}

function share(path: string, loaded: Addon): Addon {
  builtin('node:worker_threads').setEnvironmentData(SHARED_PATH, path);
  return loaded;
}

/**
 * The addons that this process has loaded, of this copy or others; none where there is no such
 * list.
 */
function mapped(): string[] {
  if (process.platform !== 'linux') return [];
  try {
    const maps = builtin('node:fs').readFileSync('/proc/self/maps', 'utf8');
    return [...new Set(maps.match(/\/.*\/lockkeeper\.linux-[\w-]+\.node$/gm))];
  } catch {
    return [];
  }
}
