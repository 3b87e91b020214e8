/** `LockManager` (§3.2), and its extensions. */

import { notSupported } from './errors.js';
import * as Flag from './flags.js';
import { Promise } from './intrinsics.js';
import { requestOf, type AcquiredLock, type Lock } from './lock.js';
import { outerRequest } from './nesting.js';
import { observer } from './observer.js';
import type { Status } from './remote.js';
import { AcquireRequest, CallbackRequest, ScopedRequest, type Request } from './request.js';
import * as State from './state.js';
import type { Inspection, Scope, Transport } from './transport.js';
import {
  exposeInterface,
  NO_CALLBACK,
  checkMembers,
  detached,
  isAborted,
  isObject,
  reasonOf,
  toAbortSignal,
  toCallback,
  toDOMString,
  toLockMode,
  toLockOptions,
  type LockManagerSnapshot,
  type LockMode,
  type LockOptions,
} from './webidl.js';

export type LockGrantedCallback<T, L = Lock | null> = (lock: L) => T;

/** As of an `EventTarget`. */
export interface ListenerOptions {
  once?: boolean | undefined;
  signal?: AbortSignal | undefined;
}

/** What `acquire` takes: a name, several, or names with their modes. */
export type LockScope = string | Iterable<string> | Readonly<Record<string, LockMode>>;

export interface AcquireOptions {
  /** The mode of names without an explicit one. */
  mode?: LockMode;
  ifAvailable?: boolean;
  steal?: boolean;
  signal?: AbortSignal;
  /** Milliseconds to wait at most; then a `TimeoutError`. */
  timeout?: number;
  /** A label for `inspect()`. */
  info?: string;
  /**
   * A lock of this thread within which this one is acquired, if `detectDeadlocks()` does not know.
   */
  within?: Lock;
  /** A `DeadlockError` rather than a request that would wait for itself. */
  deadlock?: 'refuse' | 'report';
}

const ACQUIRE = ['mode', 'ifAvailable', 'steal', 'signal', 'timeout', 'info', 'within', 'deadlock'];

const HYPHEN = 45;

/** No options. */
const NONE: LockOptions = {};

/** Only this package has it, so only this package makes managers. */
const key = Symbol('lockkeeper');

/** The transport behind a manager of this package, or `undefined` if it is none. */
export let transportOf: (manager: unknown) => Transport | undefined;

/**
 * The interface `LockManager` of the Web Locks API, with `acquire`, `inspect` and the proto-spec's
 * `forceRelease`.
 */
export class LockManager {
  #transport: Transport;

  static {
    transportOf = (manager) =>
      isObject(manager) && #transport in manager ? manager.#transport : undefined;
  }

  /** Throws: managers are given, not made. */
  constructor(...illegal: never);
  // An interface object has a length of 0, so its parameters have defaults.
  constructor(given: unknown = undefined, transport: Transport = undefined!) {
    if (given !== key) throw new TypeError('Illegal constructor');
    this.#transport = transport;
  }

  /** Requests a lock and runs the callback while it is held (§3.2.1). */
  request<T>(name: string, callback: LockGrantedCallback<T, Lock>): Promise<Awaited<T>>;
  request<T>(
    name: string,
    options: LockOptions & { ifAvailable?: false },
    callback: LockGrantedCallback<T, Lock>,
  ): Promise<Awaited<T>>;
  request<T>(name: string, options: LockOptions, callback: LockGrantedCallback<T>): Promise<Awaited<T>>;
  request(name: unknown, second: unknown, third: unknown = undefined): Promise<unknown> {
    try {
      if (arguments.length < 2) throw new TypeError(NO_CALLBACK);
      const transport = own(this);
      observer.advise?.(name, arguments.length === 2 ? undefined : second);
      const resource = toDOMString(name);
      const options = arguments.length === 2 ? undefined : toLockOptions(second);
      const callback = toCallback(options === undefined ? second : third);
      return request(transport, resource, options ?? NONE, callback);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** A snapshot of all locks and requests (§3.2.2). */
  async query(): Promise<LockManagerSnapshot> {
    const transport = own(this);
    transport.check?.();
    return transport.query();
  }

  /**
   * Acquires a lock on one name, or on several at once, which its holder releases: with
   * `release()`, or at the end of the block that said `await using`. With `ifAvailable`, `null` if
   * it is not available now.
   */
  acquire(scope: LockScope, options?: AcquireOptions & { ifAvailable?: false }): Promise<AcquiredLock>;
  acquire(scope: LockScope, options: AcquireOptions): Promise<AcquiredLock | null>;
  acquire(scope: LockScope, options: AcquireOptions = NONE, third: unknown = undefined): Promise<AcquiredLock | null> {
    try {
      const transport = own(this);
      // Who passes three means request(), and would hold the lock for ever.
      if (typeof third === 'function') options = third as AcquireOptions;
      if (options !== NONE) checkMembers('acquire(scope, options)', options, ACQUIRE);
      return acquire(transport, scope, options);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /**
   * The state of the manager with all that `query()` may not show: scopes, labels, waiting times,
   * tokens, deadlocks.
   */
  async inspect(): Promise<Inspection> {
    return own(this).inspect();
  }

  /**
   * The proto-spec's escape hatch: breaks every held lock of the name, as a steal does, and takes
   * none. At a daemon, which can refuse, it returns a promise.
   */
  forceRelease(name: string): void | Promise<void> {
    const transport = own(this);
    if (arguments.length < 1) throw new TypeError('forceRelease needs a name');
    return transport.forceRelease(toDOMString(name));
  }

  /**
   * Ends a manager that `connect` or `createLocks` gave: its locks are released, its requests are
   * gone.
   */
  async close(): Promise<void> {
    await own(this).close();
  }

  /** Where its connection stands. A manager of this process is connected until it is closed. */
  get status(): Status {
    return own(this).state ?? 'connected';
  }

  /** Listens to `statuschange`, the only event. */
  addEventListener(type: 'statuschange', listener: (event: Event) => void, options?: ListenerOptions): void {
    own(this).events?.addEventListener(type, listener, options as { once: boolean });
  }

  removeEventListener(type: 'statuschange', listener: (event: Event) => void): void {
    own(this).events?.removeEventListener(type, listener);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await own(this).close();
  }
}

exposeInterface('LockManager', LockManager.prototype);

/** The transport of a method's manager. */
function own(manager: unknown): Transport {
  return transportOf(manager) ?? detached('LockManager');
}

/** Hands a request to its transport. If that refuses it, it is over. */
function submit(request: Request, flags: number, plain: boolean, nestedIn?: Request, info?: string): boolean {
  if (observer.publish) return submitObserved(request, flags, plain, nestedIn, info);
  const { transport } = request;
  return plain ? transport.submit(request, flags) : transport.submitScope(request, flags, nestedIn, info);
}

function submitObserved(request: Request, flags: number, plain: boolean, nestedIn?: Request, info?: string): boolean {
  const { transport } = request;
  observer.publish?.('request', request);
  try {
    return plain ? transport.submit(request, flags) : transport.submitScope(request, flags, nestedIn, info);
  } catch (error) {
    observer.publish?.('error', request, error);
    throw error;
  }
}

export function newManager(transport: Transport): LockManager {
  return new LockManager(...([key, transport] as never));
}

/**
 * §3.2.1, from step 2. Steps 2 to 4 are about documents and origins, of which most transports have
 * none.
 */
function request(
  transport: Transport,
  name: string,
  { mode = 'exclusive', ifAvailable = false, steal = false, signal }: LockOptions,
  callback: (lock: Lock | null) => unknown,
): Promise<unknown> {
  const shared = mode === 'shared';
  transport.check?.();
  checkName(name);
  checkOptions(shared, ifAvailable, steal, signal);
  const request = new CallbackRequest(transport, name, mode, callback);
  const flags = flagsOf(shared, ifAvailable, steal);
  const nestedIn = outerRequest();
  if (!submit(request, flags, nestedIn === undefined, nestedIn)) request.unavailable();
  else if (signal) request.arm(signal);
  return request.promise;
}

/** The same for several names at once, which are not empty: the explainer's scoped release. */
export function requestScope(
  transport: Transport,
  names: readonly string[],
  { mode = 'exclusive', ifAvailable = false, signal }: LockOptions,
  callback: (lock: Lock | null) => unknown,
): Promise<unknown> {
  const shared = mode === 'shared';
  names.forEach(checkName);
  checkOptions(shared, ifAvailable, false, signal);
  const scope: Scope = { names: [...names], shared: names.map(() => shared) };
  const request = new ScopedRequest(transport, scope, mode, callback);
  const flags = flagsOf(shared, ifAvailable, false);
  if (!submit(request, flags, false, outerRequest())) request.unavailable();
  else if (signal) request.arm(signal);
  return request.promise;
}

/** Step 5. */
function checkName(name: string): void {
  // An engine has this at hand, and no call.
  if (name.charCodeAt(0) === HYPHEN) throw notSupported("Names that start with '-' are reserved");
}

/** Steps 6 to 9. */
function checkOptions(
  shared: boolean,
  ifAvailable: boolean,
  steal: boolean,
  signal: AbortSignal | undefined,
): void {
  if (steal && ifAvailable) throw notSupported('steal does not go with ifAvailable');
  if (steal && shared) throw notSupported('steal does not go with a shared mode');
  if (signal && (steal || ifAvailable)) throw notSupported('signal does not go with steal or ifAvailable');
  if (signal && isAborted(signal)) throw reasonOf(signal);
}

function flagsOf(shared: boolean, ifAvailable: boolean, steal: boolean): number {
  return (shared ? Flag.SHARED : 0) | (ifAvailable ? Flag.IF_AVAILABLE : 0) | (steal ? Flag.STEAL : 0);
}

export function acquire(
  transport: Transport,
  given: LockScope,
  options: AcquireOptions,
): Promise<AcquiredLock | null> {
  const { mode = 'exclusive', ifAvailable = false, steal = false, signal, timeout, info, within, deadlock } = options;
  const scope = toScope(given, toLockMode(mode));
  scope.names.forEach(checkName);
  checkOptions(scope.shared.includes(true), ifAvailable, steal, signal && toAbortSignal(signal));
  if (deadlock !== undefined && deadlock !== 'refuse' && deadlock !== 'report') {
    throw new TypeError(`"${String(deadlock)}" is neither "refuse" nor "report"`);
  }
  if (timeout !== undefined && !(timeout >= 0)) throw new TypeError('timeout is a number of milliseconds');
  const nestedIn = within === undefined ? outerRequest() : requestOf(within);
  if (within !== undefined && nestedIn === undefined) throw new TypeError('within is not a Lock');
  // A timeout of zero means *if available*: a timer could not tell a free lock from the delay of a
  // daemon's answer.
  const now = timeout === 0 && !steal;
  const flags =
    flagsOf(scope.shared[0]!, ifAvailable || now, steal) |
    (deadlock === 'refuse' ? Flag.REFUSE_DEADLOCK : 0);
  const request = new AcquireRequest(transport, scope, now && !ifAvailable, signal !== undefined);
  const plain = scope.names.length === 1 && nestedIn === undefined && info === undefined;
  const held = nestedIn?.state === State.HELD ? nestedIn : undefined;
  const label = info === undefined ? undefined : `${info}`;
  if (!submit(request, flags, plain, held, label)) request.unavailable();
  else if (signal !== undefined || timeout !== undefined) request.arm(signal, now ? undefined : timeout);
  return request.promise as Promise<AcquiredLock | null>;
}

export function toScope(given: LockScope, mode: LockMode): Scope {
  if (typeof given === 'string') return { names: [given], shared: [mode === 'shared'] };
  if (!isObject(given)) {
    throw new TypeError('a scope is a name, several names, or an object of names and modes');
  }
  const entries: [string, LockMode][] =
    Symbol.iterator in given
      ? Array.from(given as Iterable<string>, (name) => [toDOMString(name), mode])
      : Object.entries(given).map(([name, own]) => [name, toLockMode(own)]);
  if (entries.length === 0) throw new TypeError('a scope needs at least one name');
  return { names: entries.map(([name]) => name), shared: entries.map(([, own]) => own === 'shared') };
}
