/**
 * A lock request (§2.5) and the lock it becomes, from this thread's side: one record for both, as in the engine.
 * There are two kinds, which differ in how they tell their owner: one runs a callback, one hands out the lock.
 */

import { channels, publish } from './diagnostics.js';
import { broken, timedOut, type BrokenBy } from './errors.js';
import { task } from './host.js';
import { newAcquiredLock, newLock, type Lock } from './lock.js';
import { outer } from './nesting.js';
import * as State from './state.js';
import type { Scope, Transport } from './transport.js';
import { addAbortAlgorithm, type LockMode } from './webidl.js';

/** What a timer can count to: 25 days. Who would wait longer waits for ever. */
const MAX_TIMEOUT = 2 ** 31 - 1;

/** The functions of the promise that was made last: an executor that is no closure. */
let resolveLast: (value: unknown) => void;
let rejectLast: (reason: unknown) => void;
const executor = (resolve: (value: unknown) => void, reject: (reason: unknown) => void): void => {
  resolveLast = resolve;
  rejectLast = reject;
};

const { then } = Promise.prototype;
const begin = (request: Request): void => request.begin();
const beginLate = (request: unknown): unknown => (request as Request).beginLate();

export abstract class Request {
  state: number = State.NEW;
  /** Its place in the transport's table. */
  slot = -1;
  /** The fencing token, once it is granted. */
  token: number | bigint = 0;
  /** What the owner is given: the released promise of a callback's lock, or the promise of a lock. */
  promise: Promise<unknown> = new Promise(executor);
  /** Settle it. While the request waits, to resolve it starts the delivery. */
  resolve = resolveLast;
  reject = rejectLast;
  /** Stops listening to the signal and the clock. */
  private disarm?: () => void;
  /** Behind `lock.signal`; made when somebody asks for it. */
  private controller?: AbortController;
  /** Why it was given up or broken. */
  private failure?: unknown;

  constructor(
    readonly transport: Transport,
    readonly name: string,
    readonly mode: LockMode,
  ) {}

  scope(): Scope {
    return { names: [this.name], shared: [this.mode === 'shared'] };
  }

  /** The engine granted the request inside the call that made it. */
  protected abstract grantedAtOnce(): void;
  /** Hands the lock to the owner. */
  protected abstract deliver(): void;
  /** Tells the owner that there is no lock now (§4.1, step 3.5.1). */
  protected abstract deliverNothing(): void;

  queued(): void {
    this.state = State.WAITING;
    // The grant will come out of somebody else's asynchronous context. A reaction runs in that of its own `then`.
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

  /** With `now`, the caller runs in a task of its own, which is as good as a later one. */
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
    this.disarm?.();
    publish(channels.grant, this);
    // Who hears that it was granted may have stolen it.
    if (this.state === State.HELD) this.deliver();
  }

  /** Stolen, or lost. One that was given up before is nobody's. */
  broke(cause: BrokenBy): void {
    if (this.state === State.ENDED) return;
    const error = broken(describe(this.scope()), cause);
    this.fail(error);
    // Listeners are other people's code: they run when this thread is done with its mail.
    queueMicrotask(() => {
      this.controller?.abort(error);
      publish(channels.steal, this);
    });
  }

  /** Gives the request up, unless the owner has the lock already. */
  abort(reason: unknown, timedOut = false): void {
    const gone =
      (this.state === State.WAITING && this.transport.abort(this, timedOut)) ||
      (this.state === State.GRANTED && this.transport.release(this));
    if (gone) this.fail(reason);
  }

  /** Releases the lock. `false` if it was not held any more. */
  release(): boolean | Promise<boolean> {
    if (this.state !== State.HELD) return false;
    const released = this.transport.release(this);
    if (typeof released === 'boolean') return this.released(released);
    this.state = State.RELEASING;
    return released.then((done) => this.released(done));
  }

  private released(done: boolean): boolean {
    if (done) {
      this.end();
      publish(channels.release, this);
    }
    return done;
  }

  /** Aborts the request with the signal, or when the time is up, unless it is delivered before. */
  arm(signal: AbortSignal | undefined, timeout?: number): void {
    if (this.state !== State.WAITING && this.state !== State.GRANTED) return;
    const unlisten = signal && addAbortAlgorithm(signal, () => this.abort(signal.reason));
    const expire = (): void => this.abort(timedOut(describe(this.scope()), timeout!), true);
    const timer = timeout !== undefined && timeout <= MAX_TIMEOUT ? setTimeout(expire, timeout) : undefined;
    this.disarm = () => {
      unlisten?.();
      clearTimeout(timer);
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

  /** It is over, and this is why. */
  fail(reason: unknown): void {
    this.end();
    this.failure = reason;
    this.reject(reason);
  }

  private end(): void {
    this.state = State.ENDED;
    this.disarm?.();
  }
}

/** `request()`: runs a callback in a task and holds the lock until what it returns has settled. */
export class CallbackRequest extends Request {
  /** Whether the callback was told that there is no lock. */
  private nothing?: boolean;
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
    this.nothing = true;
    this.run(null);
  }

  /** §4.4, steps 14.2 and 14.3, and what §2.4 has to follow. */
  private run(lock: Lock | null): void {
    const { callback } = this;
    const turn = this.turn ?? takeTurn(this);
    this.turn = undefined;
    let result: unknown;
    try {
      result = lock && outer.storage ? outer.storage.run(this, () => callback(lock)) : callback(lock);
    } catch (error) {
      result = Promise.reject(error);
    }
    react(result, turn.resolved, turn.rejected);
  }

  /** §2.4: releases the lock, then settles the released promise, which is rejected already if the lock was broken. */
  settled(settle: (result: unknown) => void, result: unknown): void {
    const released = this.nothing || this.release();
    if (released === true) settle(result);
    else if (released) void released.then((done) => done && settle(result));
  }
}

/**
 * What is called back for a request in its turn. Used again for another: functions that are made for each request cost
 * more than anything else.
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

const fulfilled = Promise.resolve();

/**
 * What Web IDL does with the value of a callback that returns a promise: it resolves a new one with it, and reacts to
 * that. Its `then` is read once, here too. If that is the language's own, to react to the value itself is as good, and
 * three microtasks quicker.
 */
function react(value: unknown, resolved: (value: unknown) => void, rejected: (reason: unknown) => void): void {
  if (value === undefined) return void then.call(fulfilled, resolved, rejected);
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) {
    return void then.call(Promise.resolve(value), resolved, rejected);
  }
  let promise: Promise<unknown>;
  try {
    const method: unknown = (value as { then?: unknown }).then;
    if (method === then) return void then.call(value, resolved, rejected);
    if (typeof method !== 'function') return void then.call(fulfilled, () => resolved(value));
    promise = new Promise((resolve) => resolve({ then: (...both: unknown[]) => Reflect.apply(method, value, both) }));
  } catch (error) {
    promise = Promise.reject(error);
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
  ) {
    super(transport, names.names[0]!, names.shared.includes(false) ? 'exclusive' : 'shared');
  }

  override scope(): Scope {
    return this.names;
  }

  protected override grantedAtOnce(): void {
    this.begin();
  }

  protected override deliver(): void {
    this.resolve(newAcquiredLock(this));
  }

  protected override deliverNothing(): void {
    if (this.orTimedOut) this.reject(timedOut(describe(this.names), 0));
    else this.resolve(null);
  }
}

/** A scope in a message. */
function describe({ names }: Scope): string {
  return names.map((name) => JSON.stringify(name)).join(', ');
}
