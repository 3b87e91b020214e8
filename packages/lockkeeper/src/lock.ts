/** The `Lock` of a holder (§3.3): of one name, of several names, or with explicit release. */

import type { Request } from './request.js';
import { detached, exposeInterface, isObject, type LockMode } from './webidl.js';

/** Only this package has it, so only this package makes locks. */
const key = Symbol('lockkeeper');

/** The interface `Lock` of the Web Locks API, with the fencing token and a signal. */
export class Lock {
  #request: Request;

  /** Throws: locks are granted, not made. */
  constructor(...illegal: never);
  // An interface object has a length of 0, so its parameters have defaults.
  constructor(given: unknown = undefined, request: Request = undefined!) {
    if (given !== key) throw new TypeError('Illegal constructor');
    this.#request = request;
  }

  get name(): string {
    return this.#request.name;
  }

  get mode(): LockMode {
    return this.#request.mode;
  }

  /**
   * Greater than that of every earlier grant: storage that rejects older tokens is safe from a
   * holder that lost its lock.
   */
  get token(): bigint {
    return BigInt(this.#request.token);
  }

  /**
   * Aborts if the lock is stolen or lost; its reason is an `AbortError` whose `cause` is a
   * `BrokenBy`.
   *
   * Reading this attribute checks the lease: code that blocked its thread past the lease reads an
   * aborted signal. A signal that was read before aborts in a later task only, so prefer
   * `lock.signal.aborted` to `signal.aborted`.
   */
  get signal(): AbortSignal {
    return this.#request.signal;
  }

  /**
   * Whether the lock is held now: not released, stolen or lost, and the lease valid by the clock.
   */
  get held(): boolean {
    return this.#request.held;
  }

  /**
   * Throws unless the lock is held now: why it was stolen or lost, or an `InvalidStateError` if it
   * was released.
   */
  assertHeld(): void {
    (requestOf(this) ?? detached('Lock')).assertHeld();
  }

  /** The request behind a lock, or `undefined` if it is none. */
  static [key](lock: unknown): Request | undefined {
    return isObject(lock) && #request in lock ? lock.#request : undefined;
  }
}

/** A lock on all names of a scope, which ends with its callback. */
export class ScopedLock extends Lock {
  /**
   * The names, sorted and each once: always the same array. `name` is the first that was asked for.
   */
  get scope(): readonly string[] {
    return requestOf(this)!.sortedNames();
  }
}

/** A lock of `acquire()`. */
export class AcquiredLock extends Lock {
  /**
   * The names, sorted and each once: always the same array. `name` is the first that was asked for.
   */
  get scope(): readonly string[] {
    return acquired(this).sortedNames();
  }

  /** Releases the lock. Resolves to `false` if it was released, stolen or lost before. */
  async release(): Promise<boolean> {
    return acquired(this).release();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await acquired(this).release();
  }
}

exposeInterface('Lock', Lock.prototype);

export const requestOf: (lock: unknown) => Request | undefined = Lock[key];
// Internal: not visible to users.
delete (Lock as { [key]?: unknown })[key];

/** The request behind a lock of `acquire()`, and no other: its holder releases it. */
function acquired(lock: unknown): Request {
  return (lock instanceof AcquiredLock && requestOf(lock)) || detached('Lock');
}

type Constructor<T> = new (given: typeof key, request: Request) => T;
const LockConstructor = Lock as unknown as Constructor<Lock>;
const ScopedLockConstructor = ScopedLock as unknown as Constructor<ScopedLock>;
const AcquiredLockConstructor = AcquiredLock as unknown as Constructor<AcquiredLock>;

export function newLock(request: Request): Lock {
  return new LockConstructor(key, request);
}

export function newScopedLock(request: Request): ScopedLock {
  return new ScopedLockConstructor(key, request);
}

export function newAcquiredLock(request: Request): AcquiredLock {
  return new AcquiredLockConstructor(key, request);
}
