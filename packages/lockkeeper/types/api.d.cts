/**
 * The public types. They are written by hand, so that they need neither `@types/node` nor a recent
 * TypeScript: 5.0 or later. test/types/ checks that the code agrees with them.
 */

declare global {
  // Each is merged with what the libraries of TypeScript have, and stands in for it where they have
  // none.
  interface SymbolConstructor {
    readonly asyncDispose: unique symbol;
  }
  interface AbortSignal {}
  interface Event {}
}

export type LockMode = 'exclusive' | 'shared';

/**
 * Why a held lock ended without its holder's doing: stolen by another request, lost with its
 * session, or by `close()`.
 */
export type BrokenBy = 'stolen' | 'lost' | 'closed';

export interface LockOptions {
  mode?: LockMode | undefined;
  /** Calls back with `null` rather than wait. */
  ifAvailable?: boolean | undefined;
  /** Takes the lock from whoever holds it. */
  steal?: boolean | undefined;
  /** Gives the request up, as long as it waits. */
  signal?: AbortSignal | undefined;
}

export interface AcquireOptions {
  /** Of the names that have none of their own. */
  mode?: LockMode | undefined;
  /** Resolves to `null` rather than wait. */
  ifAvailable?: boolean | undefined;
  /** Takes the lock from whoever holds it. */
  steal?: boolean | undefined;
  /** Gives the request up, as long as it waits. */
  signal?: AbortSignal | undefined;
  /** Milliseconds to wait at most; then a `TimeoutError`. */
  timeout?: number | undefined;
  /** A label for `inspect()`. */
  info?: string | undefined;
  /**
   * A lock of this thread within which this one is acquired, if `detectDeadlocks()` does not know.
   */
  within?: Lock | undefined;
  /** A `DeadlockError` rather than a request that would wait for itself. */
  deadlock?: 'refuse' | 'report' | undefined;
}

/** What `acquire` takes: a name, several, or names with their modes. */
export type LockScope = string | Iterable<string> | Readonly<Record<string, LockMode>>;

export type LockGrantedCallback<T, L = Lock | null> = (lock: L) => T;

export interface LockInfo {
  name: string;
  mode: LockMode;
  clientId: string;
}

export interface LockManagerSnapshot {
  held: LockInfo[];
  pending: LockInfo[];
}

/** The state of a lock manager with all that `query()` may not show. */
export interface Inspection {
  held: RequestInfo[];
  pending: RequestInfo[];
  deadlocks: Deadlock[];
}

export interface RequestInfo {
  /** The place of the request in the one order of arrivals. */
  request: bigint;
  clientId: string;
  /** The names, sorted. */
  scope: { name: string; mode: LockMode }[];
  /** The label that `acquire` gave it. */
  info?: string;
  /** The fencing token, if it is held. */
  token?: bigint;
  /** For how many milliseconds it has waited, if it waits. */
  waited?: number;
  /** The request within which it was made. */
  nestedIn?: bigint;
  /** Whether it was made with `steal`. */
  stole: boolean;
}

/** A cycle of requests that wait for each other if each awaits the request nested in it. */
export interface Deadlock {
  message: string;
  cycle: DeadlockStep[];
}

export interface DeadlockStep {
  request: bigint;
  clientId: string;
  /**
   * The name for which the request waits; none if it waits for the next request, which is nested in
   * it.
   */
  waitsFor?: string;
}

/** The request would have waited for itself, and asked to be refused then. */
export class DeadlockError extends Error {
  constructor(deadlock: Deadlock);
  readonly name: 'DeadlockError';
  readonly cycle: DeadlockStep[];
}

/** The interface `Lock` of the Web Locks API, with the fencing token and a signal. */
export class Lock {
  protected constructor();
  readonly name: string;
  readonly mode: LockMode;
  /**
   * Greater than that of every earlier grant: storage that rejects older tokens is safe from a
   * holder that lost its lock.
   */
  readonly token: bigint;
  /**
   * Aborts if the lock is stolen or lost; its reason is an `AbortError` whose `cause` is a
   * `BrokenBy`. To read this attribute checks the lease: code that blocked its thread past the
   * lease reads a signal that is aborted.
   */
  readonly signal: AbortSignal;
  /**
   * Whether the lock is held now: not released, stolen or lost, and the lease valid by the clock.
   */
  readonly held: boolean;
  /**
   * Throws unless the lock is held now: why it was stolen or lost, or an `InvalidStateError` if it
   * was released.
   */
  assertHeld(): void;
}

/** A lock of `acquire()`, which its holder releases. */
export class AcquiredLock extends Lock {
  private constructor();
  /**
   * The names, sorted and each once: always the same array. `name` is the first that was asked for.
   */
  readonly scope: readonly string[];
  /** Releases the lock. Resolves to `false` if it was released, stolen or lost before. */
  release(): Promise<boolean>;
  [Symbol.asyncDispose](): Promise<void>;
}

/**
 * The interface `LockManager` of the Web Locks API, with `acquire`, `inspect` and the proto-spec's
 * `forceRelease`.
 */
export class LockManager {
  private constructor();

  /** Requests a lock and runs the callback while it is held. */
  request<T>(name: string, callback: LockGrantedCallback<T, Lock>): Promise<Awaited<T>>;
  request<T>(
    name: string,
    options: LockOptions & { ifAvailable?: false | undefined },
    callback: LockGrantedCallback<T, Lock>,
  ): Promise<Awaited<T>>;
  request<T>(name: string, options: LockOptions, callback: LockGrantedCallback<T>): Promise<Awaited<T>>;

  /** A snapshot of all locks and requests. */
  query(): Promise<LockManagerSnapshot>;

  /**
   * Acquires a lock on one name, or on several at once, which its holder releases: with
   * `release()`, or at the end of the block that said `await using`. With `ifAvailable`, `null` if
   * it is not available now.
   */
  acquire(
    scope: LockScope,
    options?: AcquireOptions & { ifAvailable?: false | undefined },
  ): Promise<AcquiredLock>;
  acquire(scope: LockScope, options: AcquireOptions): Promise<AcquiredLock | null>;

  /**
   * The state of the manager with all that `query()` may not show: scopes, labels, waiting times,
   * tokens, deadlocks.
   */
  inspect(): Promise<Inspection>;

  /**
   * The proto-spec's escape hatch: breaks every held lock of the name, as a steal does, and takes
   * none. At a daemon, which can refuse, it returns a promise.
   */
  forceRelease(name: string): void | Promise<void>;

  /**
   * Ends a manager that `connect` or `createLocks` gave: its locks are released, its requests are
   * gone. Each of them ends with an `AbortError` whose `cause` is 'closed', and whatever is asked
   * of the manager later with an `InvalidStateError`. To close it twice is the same as once. The
   * manager `locks` cannot be closed: that is a `TypeError`.
   */
  close(): Promise<void>;
  /** The same, at the end of the block that said `await using`. */
  [Symbol.asyncDispose](): Promise<void>;

  /** Where its connection stands. A manager of this process is connected until it is closed. */
  readonly status: LockManagerStatus;
  /** Listens to `statuschange`, the only event. */
  addEventListener(type: 'statuschange', listener: (event: Event) => void, options?: StatusListenerOptions): void;
  removeEventListener(type: 'statuschange', listener: (event: Event) => void): void;
}

/** A manager that is closed by a failure connects again when something is asked of it. */
export type LockManagerStatus = 'connecting' | 'connected' | 'reconnecting' | 'closed';

export interface StatusListenerOptions {
  once?: boolean | undefined;
  signal?: AbortSignal | undefined;
}

/** What is needed of a class `WebSocket`: that of the runtime, or of the package `ws`. */
export type WebSocketClass = new (url: string, protocol: string) => { close(): void; send(data: Uint8Array): void };

export interface ConnectOptions {
  /** The bucket whose locks are wanted: managers of different buckets share nothing. */
  bucket?: string | undefined;
  /**
   * Credentials, for a server on a network: a token, or a function that is called for each
   * connection and gives one.
   */
  token?: string | (() => string | Promise<string>) | undefined;
  /**
   * Whether the token may be sent without TLS to another machine: whoever is on the way can read
   * it, and use it.
   */
  insecure?: boolean | undefined;
  /** The class to connect with, where the runtime has none: `WebSocket` of the package `ws`. */
  WebSocket?: WebSocketClass | undefined;
  /** Gives up connecting. Once there is a session, it does nothing. */
  signal?: AbortSignal | undefined;
  /** Waits for a server that is not there yet, rather than reject: for `ws:` and `wss:` URLs. */
  retry?: boolean | undefined;
}
