/**
 * The locks of the API before the draft: `Flag` and `Lock` of the two sketches, which last while
 * the promises given to `waitUntil` do, and the explainer's, which its holder releases. They use
 * private members only: a method that user code has replaced is never called here.
 */

import { Promise, queueMicrotask, then } from './intrinsics.js';
import { react, type Request } from './request.js';
import { exposeInterface, type LockMode } from './webidl.js';

/** Only this module has it, so only this module makes locks. */
const key = Symbol('lockkeeper');

/** How a lock ended: the waiting promises fulfilled, or there is a reason why not. */
type Ending = { reason?: unknown };

/**
 * Ends the share of the waiting promise set that is the lock's own. `false` if that has ended, or
 * the lock has.
 */
let endOwnShare: (lock: AutoReleased) => boolean;
/** Has the rejection of `released` count as handled. */
let quieten: (lock: AutoReleased) => void;

/** The common part of the two sketches. */
abstract class AutoReleased {
  readonly #request: Request;
  /** The waiting promise set: how many of it have not fulfilled. The first is the lock's own. */
  #waiting = 1;
  #own = true;
  #held = true;
  #ending: Ending | undefined;
  /** Made on first use, so that an unused promise has no unhandled rejection. */
  #released: Promise<void> | undefined;
  #settle: ((ending: Ending) => void) | undefined;
  #quiet = false;

  static {
    endOwnShare = (lock) => lock.#endOwnShare();
    quieten = (lock) => void (lock.#quiet = true);
  }

  /** Throws: locks are granted, not made. */
  constructor(...illegal: never);
  // An interface object has a length of 0, so its parameters have defaults.
  constructor(given: unknown = undefined, request: Request = undefined!) {
    if (given !== key) throw new TypeError('Illegal constructor');
    this.#request = request;
    request.whenBroken((reason) => {
      this.#held = false;
      this.#end({ reason });
    });
  }

  /** The names, sorted and each once: always the same array. */
  get scope(): readonly string[] {
    return this.#request.sortedNames();
  }

  get mode(): LockMode {
    return this.#request.mode;
  }

  /**
   * Fulfils when the lock is released; rejects if a promise it waited for did, or if it was stolen
   * or lost.
   */
  get released(): Promise<void> {
    return this.#promise();
  }

  /** Greater than that of every earlier grant. */
  get token(): bigint {
    return BigInt(this.#request.token);
  }

  /**
   * Aborts if the lock is stolen or lost; its reason is an `AbortError` whose `cause` is "stolen"
   * or "lost".
   */
  get signal(): AbortSignal {
    return this.#request.signal;
  }

  /**
   * Has the lock wait for one more promise, and gives `released`. If it is not held, rejects with a
   * `TypeError`.
   */
  waitUntil(promise: unknown): Promise<void> {
    try {
      if (!this.#isHeld()) throw new TypeError('the lock is not held any more', { cause: this.#ending?.reason });
      if (arguments.length < 1) throw new TypeError('waitUntil needs 1 argument: a promise');
      this.#waiting += 1;
      react(
        promise,
        () => this.#fulfilled(),
        (reason) => this.#release({ reason }),
      );
      return this.#promise();
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** A lease that is over is noticed here. */
  #isHeld(): boolean {
    return this.#request.held && this.#held;
  }

  #fulfilled(): void {
    this.#waiting -= 1;
    if (this.#waiting === 0) this.#release({});
  }

  #endOwnShare(): boolean {
    const ends = this.#own && this.#isHeld();
    this.#own = false;
    if (ends) this.#fulfilled();
    return ends;
  }

  #release(ending: Ending): void {
    if (!this.#held) return;
    this.#held = false;
    const released = this.#request.release();
    if (typeof released === 'boolean') this.#end(ending);
    // A daemon may answer that the lock was broken before; then that is how it ended.
    else void then.call(released, () => this.#end(ending));
  }

  #end(ending: Ending): void {
    if (this.#ending) return;
    this.#ending = ending;
    this.#settle?.(ending);
  }

  #promise(): Promise<void> {
    if (this.#released) return this.#released;
    this.#released = new Promise<void>((resolve, reject) => {
      this.#settle = (ending) => ('reason' in ending ? reject(ending.reason) : resolve());
    });
    if (this.#quiet) void then.call(this.#released, undefined, () => {});
    if (this.#ending) this.#settle!(this.#ending);
    return this.#released;
  }
}

/** The flag of the first sketch. */
export class Flag extends AutoReleased {}

/** The lock of the second sketch. */
export class Lock extends AutoReleased {}

/**
 * The lock of the explainer's second proposal. Its holder has no promise to handle: `signal`, and
 * what `release()` returns, tell that it was stolen or lost.
 */
export class ExplicitLock extends Lock {
  /**
   * Releases the lock, unless it waits for promises. Returns `false` if it was released, stolen or
   * lost before.
   */
  release(): boolean {
    return endOwnShare(this);
  }
}

exposeInterface('AutoReleased', AutoReleased.prototype);
exposeInterface('Flag', Flag.prototype);
exposeInterface('Lock', Lock.prototype);
exposeInterface('ExplicitLock', ExplicitLock.prototype);

type Constructor<T> = new (given: typeof key, request: Request) => T;

/**
 * Sketch 000, steps 6.6 and 6.7: code that waits for the lock runs before the microtask that ends
 * its own share.
 */
export function grant<L extends AutoReleased>(
  Interface: Interface<L>,
  request: Request,
  resolve: (lock: L) => void,
): void {
  const lock = new (Interface as unknown as Constructor<L>)(key, request);
  resolve(lock);
  queueMicrotask(() => void endOwnShare(lock));
}

/** The same, where `release()` ends it. */
export function grantExplicit(request: Request, resolve: (lock: ExplicitLock) => void): void {
  const lock = new (ExplicitLock as unknown as Constructor<ExplicitLock>)(key, request);
  quieten(lock);
  resolve(lock);
}

/** `Flag` or `Lock`. */
export type Interface<L> = { readonly prototype: L };
