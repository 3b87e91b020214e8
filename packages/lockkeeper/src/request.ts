/**
 * A lock request (§2.5) and the lock it becomes, on this thread's side: one record for both, as in
 * the engine. There are two kinds: one runs a callback, one returns the lock.
 */

import { broken, timedOut, type BrokenBy } from './errors.js';
import { task } from './host.js';
import { Promise, queueMicrotask, then } from './intrinsics.js';
import { newAcquiredLock, newLock, newScopedLock, type Lock } from './lock.js';
import { outer } from './nesting.js';
import { observer, type Channel } from './observer.js';
import * as State from './state.js';
import type { Scope, Transport } from './transport.js';
import { addAbortAlgorithm, reasonOf, type LockMode } from './webidl.js';

/** What a timer can count to: 25 days. Who would wait longer waits for ever. */
const MAX_TIMEOUT = 2 ** 31 - 1;

/** The functions of the promise that was made last: an executor that is no closure. */
let resolveLast: (value: unknown) => void;
let rejectLast: (reason: unknown) => void;
const executor = (resolve: (value: unknown) => void, reject: (reason: unknown) => void): void => {
  resolveLast = resolve;
  rejectLast = reject;
};

const begin = (request: Request): void => request.begin();
const beginLate = (request: unknown): unknown => (request as Request).beginLate();

export abstract class Request {
  state: number = State.NEW;
  /** Its place in the transport's table. */
  slot = -1;
  /** The fencing token, once it is granted. */
  token: number | bigint = 0;
  /**
   * What the owner is given: the released promise of a callback's lock, or the promise of a lock.
   */
  promise: Promise<unknown> = new Promise(executor);
  /** Settle it. While the request waits, to resolve it starts the delivery. */
  resolve = resolveLast;
  reject = rejectLast;
  /** Why it was given up or broken. */
  failure?: unknown;
  /** Stops listening to the signal and the clock. */
  private stop?: (() => void) | undefined;
  /** Behind `lock.signal`; made on first use. */
  private controller?: AbortController;
  /** Behind `lock.scope`; made on first use. */
  private frozen?: readonly string[];
  private tell?: (reason: unknown) => void;

  constructor(
    readonly transport: Transport,
    readonly name: string,
    readonly mode: LockMode,
  ) {}

  scope(): Scope {
    return { names: [this.name], shared: [this.mode === 'shared'] };
  }

  /** The names, sorted and each once: always the same array. */
  sortedNames(): readonly string[] {
    return (this.frozen ??= sorted(this.scope().names));
  }

  /** The engine granted the request inside the call that made it. */
  protected abstract grantedAtOnce(): void;
  /** Hands the lock to the owner. */
  protected abstract deliver(): void;
  /** Tells the owner that there is no lock now (§4.1, step 3.5.1). */
  protected abstract deliverNothing(): void;

  queued(): void {
    this.state = State.WAITING;
    // The grant arrives in another asynchronous context. A reaction runs in the context of its
    // `then`.
    this.promise = then.call(this.promise, beginLate);
  }

  /** It was not to wait, and cannot be granted. */
  unavailable(): void {
    if (this.state === State.ENDED) return;
    const waited = this.state === State.WAITING;
    this.state = State.UNAVAILABLE;
    if (waited) task(this.resolve, this);
    else task(begin, this);
  }

  /** With `now`, the caller runs in a separate task, so that no later one is needed. */
  granted(token: number | bigint, now = false): void {
    const waited = this.state === State.WAITING;
    this.state = State.GRANTED;
    this.token = token;
    if (!waited) this.grantedAtOnce();
    else if (now) this.resolve(this);
    else task(this.resolve, this);
  }

  /** The same as `begin`, of one that waited. Gives what its promise becomes. */
  beginLate(): Promise<unknown> {
    // It has failed while it was resolved.
    if (this.state === State.ENDED) throw this.failure;
    const promise = new Promise(executor);
    this.resolve = resolveLast;
    this.reject = rejectLast;
    this.begin();
    return promise;
  }

  /** The task of §4.4, step 14. A lock that was aborted or broken since is not delivered. */
  begin(): void {
    if (this.state === State.UNAVAILABLE) {
      this.end();
      return this.deliverNothing();
    }
    if (this.state !== State.GRANTED) return;
    this.state = State.HELD;
    this.disarm();
    observer.publish?.('grant', this);
    // Who hears that it was granted may have stolen it.
    if (this.state === State.HELD) this.deliver();
  }

  /** Stolen, or lost. One that was cancelled before has no owner. */
  broke(cause: BrokenBy, why?: string): void {
    if (this.state === State.ENDED) return;
    const error = broken(describe(this.scope()), cause, why);
    this.fail(error, observer.publish && [cause === 'stolen' ? 'steal' : 'lost', cause]);
    this.tell?.(error);
  }

  /**
   * Calls `tell` if the lock is broken before it is released. It is called while mail is read: not
   * for user code.
   */
  whenBroken(tell: (reason: unknown) => void): void {
    this.tell = tell;
  }

  /** Gives the request up, unless the owner has the lock already. */
  abort(reason: unknown, timedOut = false): void {
    const gone =
      (this.state === State.WAITING && this.transport.abort(this, timedOut)) ||
      (this.state === State.GRANTED && this.transport.release(this));
    if (gone) this.fail(reason, observer.publish && [timedOut ? 'timeout' : 'abort', reason]);
  }

  /** Releases the lock. `false` if it was not held any more. */
  release(): boolean | Promise<boolean> {
    if (this.state !== State.HELD) return false;
    const released = this.transport.release(this);
    if (typeof released === 'boolean') return this.released(released);
    this.state = State.RELEASING;
    return then.call(released, (done) => this.released(done as boolean)) as Promise<boolean>;
  }

  private released(done: boolean): boolean {
    if (done) {
      this.end();
      observer.publish?.('release', this);
    }
    return done;
  }

  /** Aborts the request with the signal, or when the time is up, unless it is delivered before. */
  arm(signal: AbortSignal | undefined, timeout?: number): void {
    if (this.state !== State.WAITING && this.state !== State.GRANTED) return;
    const unlisten = signal && addAbortAlgorithm(signal, () => this.abort(reasonOf(signal)));
    // What is granted already does not time out.
    const counts = timeout !== undefined && timeout <= MAX_TIMEOUT && this.state === State.WAITING;
    const expire = (): void => this.abort(timedOut(describe(this.scope()), timeout!), true);
    const timer = counts ? setTimeout(expire, timeout) : undefined;
    // That of the same clock, which may be a test's.
    const clear = clearTimeout;
    this.stop = () => {
      unlisten?.();
      if (counts) clear(timer);
    };
  }

  /** Whether the lock is held now. A lease that is over is noticed here. */
  get held(): boolean {
    return this.state === State.HELD && (this.transport.isHeld?.(this) ?? true);
  }

  /** Aborts when the lock is broken: before it is returned, if the lease is over. */
  get signal(): AbortSignal {
    if (this.state === State.HELD) this.transport.isHeld?.(this);
    this.controller ??= new AbortController();
    if (this.failure) this.controller.abort(this.failure);
    return this.controller.signal;
  }

  /** Throws unless the lock is held now. */
  assertHeld(): void {
    if (this.held) return;
    throw this.failure ?? new DOMException(`The lock ${describe(this.scope())} was released`, 'InvalidStateError');
  }

  /** It is over, and this is why. */
  fail(reason: unknown, told?: [Channel, unknown]): void {
    this.end();
    this.failure = reason;
    this.reject(reason);
    // Listeners are other people's code: they run when this thread is done with its mail.
    queueMicrotask(() => {
      this.controller?.abort(reason);
      observer.publish?.(told?.[0] ?? 'error', this, told ? told[1] : reason);
    });
  }

  private end(): void {
    this.state = State.ENDED;
    this.disarm();
  }

  private disarm(): void {
    const { stop } = this;
    if (stop === undefined) return;
    this.stop = undefined;
    stop();
  }
}

/** `request()`: runs a callback in a task and holds the lock until what it returns has settled. */
export class CallbackRequest extends Request {
  /** Whether the callback ran without a lock. */
  private without?: boolean;
  /** The turn in which it begins. */
  turn?: Turn | undefined;

  constructor(
    transport: Transport,
    name: string,
    mode: LockMode,
    private readonly callback: (lock: Lock | null) => unknown,
  ) {
    super(transport, name, mode);
  }

  protected override grantedAtOnce(): void {
    task(takeTurn(this).begin);
  }

  protected override deliver(): void {
    this.run(newLock(this));
  }

  protected override deliverNothing(): void {
    observer.publish?.('unavailable', this);
    this.without = true;
    this.run(null);
  }

  /** §4.4, steps 14.2 and 14.3, and what §2.4 has to follow. */
  protected run(lock: Lock | null): void {
    const { callback } = this;
    const turn = this.turn ?? takeTurn(this);
    this.turn = undefined;
    let result: unknown;
    try {
      result = lock && outer.storage ? outer.storage.run(this, () => callback(lock)) : callback(lock);
    } catch (error) {
      return void then.call(rejectedWith(error), turn.resolved, turn.rejected);
    }
    react(result, turn.resolved, turn.rejected);
  }

  /**
   * §2.4: releases the lock, then settles the released promise, which is rejected already if the
   * lock was broken.
   */
  settled(settle: (result: unknown) => void, result: unknown): void {
    const released = this.without || this.release();
    if (released === true) settle(result);
    else if (released) void then.call(released, (done) => done && settle(result));
  }
}

/** The same for several names at once: the explainer's scoped release. */
export class ScopedRequest extends CallbackRequest {
  constructor(
    transport: Transport,
    private readonly names: Scope,
    mode: LockMode,
    callback: (lock: Lock | null) => unknown,
  ) {
    super(transport, names.names[0]!, mode, callback);
  }

  override scope(): Scope {
    return this.names;
  }

  protected override deliver(): void {
    this.run(newScopedLock(this));
  }
}

/**
 * The reactions of one request. Reused for other requests: making functions for each request costs
 * more than all other work.
 */
class Turn {
  request: CallbackRequest | undefined = undefined;
  readonly begin = (): void => {
    const request = this.request!;
    request.turn = this;
    request.begin();
    // It was aborted or broken before, and has no use for it.
    if (request.turn === this) this.give();
  };
  readonly resolved = (value: unknown): void => {
    const request = this.give();
    request.settled(request.resolve, value);
  };
  readonly rejected = (reason: unknown): void => {
    const request = this.give();
    request.settled(request.reject, reason);
  };

  private give(): CallbackRequest {
    const request = this.request!;
    this.request = undefined;
    if (turns.length < 1024) turns.push(this);
    return request;
  }
}

const turns: Turn[] = [];

function takeTurn(request: CallbackRequest): Turn {
  const turn = turns.pop() ?? new Turn();
  turn.request = request;
  return turn;
}

const fulfilled = resolvedWith(undefined);

/** `Promise.resolve` and `Promise.reject`, which user code can replace. */
function resolvedWith(value: unknown): Promise<unknown> {
  const promise = new Promise(executor);
  resolveLast(value);
  return promise;
}

function rejectedWith(reason: unknown): Promise<unknown> {
  const promise = new Promise(executor);
  rejectLast(reason);
  return promise;
}

/**
 * What Web IDL does with the value of a callback that returns a promise: it resolves a new one with
 * it, and reacts to that. Its `then` is read once, here too. If that is the language's own, to
 * react to the value itself is as good, and three microtasks quicker.
 */
export function react(
  value: unknown,
  resolved: (value: unknown) => void,
  rejected: (reason: unknown) => void,
): void {
  if (value === undefined) return void then.call(fulfilled, resolved, rejected);
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) {
    return void then.call(resolvedWith(value), resolved, rejected);
  }
  let promise: Promise<unknown>;
  try {
    const method: unknown = (value as { then?: unknown }).then;
    if (method === then) return void then.call(value, resolved, rejected);
    if (typeof method !== 'function') return void then.call(fulfilled, () => resolved(value));
    promise = resolvedWith({ then: (...both: unknown[]) => Reflect.apply(method, value, both) });
  } catch (error) {
    promise = rejectedWith(error);
  }
  then.call(promise, resolved, rejected);
}

/** `acquire()`: hands out a lock that its owner releases. */
export class AcquireRequest extends Request {
  constructor(
    transport: Transport,
    private readonly names: Scope,
    /** That there is no lock now is an error, not an answer. */
    private readonly orTimedOut: boolean,
    /**
     * A signal counts until the lock is delivered, so it is delivered in a task, as to a callback.
     */
    private readonly inTask: boolean,
  ) {
    super(transport, names.names[0]!, names.shared.includes(false) ? 'exclusive' : 'shared');
  }

  override scope(): Scope {
    return this.names;
  }

  protected override grantedAtOnce(): void {
    if (this.inTask) task(begin, this);
    else this.begin();
  }

  protected override deliver(): void {
    this.resolve(newAcquiredLock(this));
  }

  protected override deliverNothing(): void {
    if (this.orTimedOut) {
      const error = timedOut(describe(this.names), 0);
      observer.publish?.('timeout', this, error);
      this.reject(error);
    } else {
      observer.publish?.('unavailable', this);
      this.resolve(null);
    }
  }
}

/** A set of names, as the sketches have a scope. */
export function sorted(names: readonly string[]): readonly string[] {
  return Object.freeze([...new Set(names)].sort());
}

/** A scope in a message. */
function describe({ names }: Scope): string {
  return names.map((name) => JSON.stringify(name)).join(', ');
}
