/**
 * The shapes that the Web Locks API had before it became what it is, each as its own document words it: Origin Flags
 * (`requestFlag`), locks with scopes (`requestLock`), and the explainer's explicit and scoped release. They are
 * locks of the same manager as all others.
 */

import { local, locks } from './local.js';
import { sorted, type AcquiredLock } from './lock.js';
import { toCallback, toDOMString, type LockMode } from './webidl.js';

export interface RequestLockOptions {
  mode?: LockMode;
  signal?: AbortSignal;
  /** Resolves to `null` rather than wait. */
  ifAvailable?: boolean;
}

export interface RequestFlagOptions {
  /** Milliseconds to wait at most; then a `TimeoutError`. */
  timeout?: number;
}

/** A lock that lasts while the promises given to `waitUntil` do. */
class AutoReleased {
  readonly #lock: AcquiredLock;
  readonly #released: Promise<void>;
  #settle!: { resolve: () => void; reject: (reason: unknown) => void };
  /** The waiting promise set: how many of it have not fulfilled. */
  #waiting = 1;
  #held = true;

  private constructor(lock: AcquiredLock) {
    this.#lock = lock;
    this.#released = new Promise((resolve, reject) => (this.#settle = { resolve, reject }));
    onBroken(lock, (reason) => this.#end(() => this.#settle.reject(reason)));
  }

  /** Steps 6.6 and 6.7: whoever waits for the lock runs before the microtask that lets go of it. */
  static grant(lock: AcquiredLock, resolve: (lock: AutoReleased) => void): void {
    const granted = new AutoReleased(lock);
    resolve(granted);
    queueMicrotask(() => granted.#fulfilled());
  }

  /** The names, sorted and each once. */
  get scope(): readonly string[] {
    return this.#lock.scope;
  }

  get mode(): LockMode {
    return this.#lock.mode;
  }

  /** Fulfils when the lock is released; rejects if a promise it waited for did, or if it was stolen. */
  get released(): Promise<void> {
    return this.#released;
  }

  /** Has the lock wait for one more promise. A lock that is released already waits for nothing: a `TypeError`. */
  waitUntil(promise: unknown): Promise<void> {
    if (!this.#held) return Promise.reject(new TypeError('the lock is released'));
    this.#waiting += 1;
    Promise.resolve(promise).then(
      () => this.#fulfilled(),
      (reason: unknown) => this.#end(() => this.#settle.reject(reason)),
    );
    return this.#released;
  }

  #fulfilled(): void {
    this.#waiting -= 1;
    if (this.#waiting === 0) this.#end(() => this.#settle.resolve());
  }

  #end(settle: () => void): void {
    if (!this.#held) return;
    this.#held = false;
    void this.#lock.release();
    settle();
  }
}

/** The flag of the first sketch. */
export type { AutoReleased as Flag };
/** The lock of the second sketch. */
export type { AutoReleased as AutoReleaseLock };

/** A lock that its holder releases: the explainer's second proposal. */
export type ExplicitLock = AutoReleased & { release(): void };

/** The first sketch: a flag that is released when nothing that went through its `waitUntil` is left to wait for. */
export function requestFlag(
  scope: string | Iterable<string>,
  mode: LockMode,
  { timeout = Infinity }: RequestFlagOptions = {},
): Promise<AutoReleased> {
  return request(scope, { mode, timeout }) as Promise<AutoReleased>;
}

/** The second sketch: a lock that is released when nothing that went through its `waitUntil` is left to wait for. */
export function requestLock(
  scope: string | Iterable<string>,
  options: RequestLockOptions & { ifAvailable: true },
): Promise<AutoReleased | null>;
export function requestLock(
  scope: string | Iterable<string>,
  options?: RequestLockOptions,
): Promise<AutoReleased>;
export function requestLock(
  scope: string | Iterable<string>,
  options: RequestLockOptions = {},
): Promise<AutoReleased | null> {
  return request(scope, options);
}

/** The explainer's explicit release. */
export async function requestExplicitLock(
  scope: string | Iterable<string>,
  options: RequestLockOptions = {},
): Promise<ExplicitLock | null> {
  const lock = await requestLock(scope, options);
  if (lock === null) return null;
  let release!: () => void;
  void lock.waitUntil(new Promise<void>((resolve) => (release = resolve)));
  return Object.assign(lock, { release });
}

/** The explainer's scoped release: holds the lock while the callback runs, and gives its result. */
export async function requestScopedLock<T>(
  scope: string | Iterable<string>,
  callback: (lock: AcquiredLock | null) => T,
  options: RequestLockOptions = {},
): Promise<Awaited<T>> {
  toCallback(callback);
  const lock = await acquire(scope, options);
  const run = async (): Promise<Awaited<T>> => {
    try {
      return await callback(lock);
    } finally {
      await lock?.release();
    }
  };
  if (lock === null) return run();
  return Promise.race([run(), new Promise<never>((_, reject) => onBroken(lock, reject))]);
}

/** The proto-spec's escape hatch: breaks every held lock of the name, as a steal does, and takes none. */
export function forceRelease(name: string): void {
  local.forceRelease(toDOMString(name));
}

function request(
  scope: string | Iterable<string>,
  options: RequestLockOptions & RequestFlagOptions,
): Promise<AutoReleased | null> {
  return new Promise((resolve, reject) => {
    const granted = (lock: AcquiredLock | null): void => {
      if (lock === null) resolve(null);
      else AutoReleased.grant(lock, resolve);
    };
    acquire(scope, options).then(granted, reject);
  });
}

/** `async`, so that what the scope throws is a rejection. */
async function acquire(
  scope: string | Iterable<string>,
  options: RequestLockOptions & RequestFlagOptions,
): Promise<AcquiredLock | null> {
  const names = typeof scope === 'string' ? [scope] : Array.from(scope, toDOMString);
  if (names.length === 0) throw new TypeError('a scope needs at least one name');
  return locks.acquire(sorted(names), options);
}

/** Tells of a lock that was stolen, now or before. */
function onBroken({ signal }: AcquiredLock, then: (reason: unknown) => void): void {
  if (signal.aborted) then(signal.reason);
  else signal.addEventListener('abort', () => then(signal.reason));
}
