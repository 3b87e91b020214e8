import type { AcquireOptions, Lock as DraftLock, LockManager, LockMode } from './api.cjs';

/** A name, or several. What is neither is converted to a string. */
export type ProposedScope = string | Iterable<string>;

export interface RequestLockOptions {
  mode?: LockMode | undefined;
  signal?: AcquireOptions['signal'];
  /** Resolves to `null`, or calls back with it, rather than wait. */
  ifAvailable?: boolean | undefined;
}

export interface RequestFlagOptions {
  /** Milliseconds to wait at most; then a `TimeoutError`. */
  timeout?: number | undefined;
}

/** What the two sketches have in common. */
declare abstract class AutoReleased {
  /** The names, sorted and each once: always the same array. */
  readonly scope: readonly string[];
  readonly mode: LockMode;
  /**
   * Fulfils when the lock is released; rejects if a promise it waited for did, or if it was stolen
   * or lost.
   */
  readonly released: Promise<void>;
  /** Greater than that of every earlier grant. */
  readonly token: bigint;
  /**
   * Aborts if the lock is stolen or lost; its reason is an `AbortError` whose `cause` tells which.
   */
  readonly signal: AbortSignal;
  /**
   * Has the lock wait for one more promise, and gives `released`. If it is not held, rejects with a
   * `TypeError`.
   */
  waitUntil(promise: unknown): Promise<void>;
}

/** The flag of the first sketch. */
export class Flag extends AutoReleased {
  private constructor();
}

/** The lock of the second sketch. */
export class Lock extends AutoReleased {
  protected constructor();
}

/** The lock of the explainer's second proposal. */
export class ExplicitLock extends Lock {
  private constructor();
  /**
   * Releases the lock, unless it waits for promises. Returns `false` if it was released, stolen or
   * lost before.
   */
  release(): boolean;
}

/** A lock on all names of a scope, which ends with its callback. */
export interface ScopedLock extends DraftLock {
  /**
   * The names, sorted and each once: always the same array. `name` is the first that was asked for.
   */
  readonly scope: readonly string[];
}

type NoWait = RequestLockOptions & { ifAvailable: true };
type Options = RequestLockOptions | null;

export interface Proposals {
  /**
   * The first sketch: a flag that is released when nothing that went through its `waitUntil` is
   * left to wait for.
   */
  requestFlag(scope: ProposedScope, mode: LockMode, options?: RequestFlagOptions | null): Promise<Flag>;

  /**
   * The second sketch: a lock that is released when nothing that went through its `waitUntil` is
   * left to wait for.
   */
  requestLock(scope: ProposedScope, options: NoWait): Promise<Lock | null>;
  requestLock(scope: ProposedScope, options?: Options): Promise<Lock>;

  /** The explainer's explicit release. */
  requestExplicitLock(scope: ProposedScope, options: NoWait): Promise<ExplicitLock | null>;
  requestExplicitLock(scope: ProposedScope, options?: Options): Promise<ExplicitLock>;

  /**
   * The explainer's scoped release: holds the lock while the callback runs, and gives its result.
   */
  requestScopedLock<T>(
    scope: ProposedScope,
    callback: (lock: ScopedLock | null) => T,
    options: NoWait,
  ): Promise<Awaited<T>>;
  requestScopedLock<T>(scope: ProposedScope, callback: (lock: ScopedLock) => T, options?: Options): Promise<Awaited<T>>;

  /** The proto-spec's escape hatch: `manager.forceRelease(name)`. */
  forceRelease(name: string): void | Promise<void>;
}

/** The shapes that the Web Locks API had before the draft, for any lock manager of this package. */
export function proposals(manager: LockManager): Proposals;

// Only what says so is exported.
export {};
