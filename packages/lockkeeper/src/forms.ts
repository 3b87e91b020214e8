/**
 * The forms of a request in the texts before the draft: Origin Flags (`requestFlag`), locks with
 * scopes (`requestLock`), the explainer's explicit and scoped release, and the proto-spec's
 * `forceRelease`. This module has their Web IDL conversions and their steps. The manager's
 * transport executes the request.
 */

import { Flag, grant, grantExplicit, Lock, type ExplicitLock } from './auto-release.js';
import { Promise, then } from './intrinsics.js';
import { requestOf, type ScopedLock } from './lock.js';
import { acquire, requestScope, type AcquireOptions } from './manager.js';
import { sorted, type Request } from './request.js';
import * as State from './state.js';
import type { Transport } from './transport.js';
import { toAbortSignal, toCallback, toDictionary, toDOMString, toLockMode, toNames, type LockMode } from './webidl.js';

/** A name, or several. What is neither is converted to a string. */
export type ProposedScope = string | Iterable<string>;

export interface RequestLockOptions {
  mode?: LockMode;
  signal?: AbortSignal;
  /** Resolves to `null`, or calls back with it, rather than wait. */
  ifAvailable?: boolean;
}

export interface RequestFlagOptions {
  /** Milliseconds to wait at most; then a `TimeoutError`. */
  timeout?: number;
}

type IfAvailable = RequestLockOptions & { ifAvailable: true };
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
  requestLock(scope: ProposedScope, options: IfAvailable): Promise<Lock | null>;
  requestLock(scope: ProposedScope, options?: Options): Promise<Lock>;

  /** The explainer's explicit release. */
  requestExplicitLock(scope: ProposedScope, options: IfAvailable): Promise<ExplicitLock | null>;
  requestExplicitLock(scope: ProposedScope, options?: Options): Promise<ExplicitLock>;

  /**
   * The explainer's scoped release: holds the lock while the callback runs, and gives its result.
   */
  requestScopedLock<T>(
    scope: ProposedScope,
    callback: (lock: ScopedLock | null) => T,
    options: IfAvailable,
  ): Promise<Awaited<T>>;
  requestScopedLock<T>(
    scope: ProposedScope,
    callback: (lock: ScopedLock) => T,
    options?: Options,
  ): Promise<Awaited<T>>;

  /** The proto-spec's escape hatch: `manager.forceRelease(name)`. */
  forceRelease(name: string): void | Promise<void>;
}

/** The forms, for the manager that `transport` leads to when one of them is called. */
export function bind(transport: () => Transport): Proposals {
  return {
    requestFlag: (...args: unknown[]) =>
      attempt(() => {
        const [scope, mode, options] = need(2, 'requestFlag(scope, mode, options)', args);
        const names = toScope(scope);
        const converted: AcquireOptions = { mode: toLockMode(mode) };
        const { timeout } = toOptions(options, 'requestFlag(scope, mode, options)');
        // An unrestricted double: a `+` throws for what is no number at all.
        if (timeout !== undefined) converted.timeout = +(timeout as number);
        return request(transport(), names, converted, (request, resolve) => grant(Flag, request, resolve));
      }),

    requestLock: (...args: unknown[]) =>
      attempt(() => {
        const [scope, options] = need(1, 'requestLock(scope, options)', args);
        const names = toScope(scope);
        const converted = toRequestLockOptions(options, 'requestLock(scope, options)');
        return request(transport(), names, converted, (request, resolve) => grant(Lock, request, resolve));
      }),

    requestExplicitLock: (...args: unknown[]) =>
      attempt(() => {
        const [scope, options] = need(1, 'requestExplicitLock(scope, options)', args);
        const names = toScope(scope);
        const converted = toRequestLockOptions(options, 'requestExplicitLock(scope, options)');
        return request(transport(), names, converted, grantExplicit);
      }),

    requestScopedLock: (...args: unknown[]) =>
      attempt(() => {
        const [scope, callback, options] = need(2, SCOPED, args);
        const names = toScope(scope);
        if (typeof callback !== 'function') throw new TypeError(`the callback is not a function in ${SCOPED}`);
        const converted = toRequestLockOptions(options, SCOPED);
        return requestScope(transport(), names, converted, toCallback(callback));
      }),

    forceRelease: (...args: unknown[]) => {
      const [name] = need(1, 'forceRelease(name)', args);
      return transport().forceRelease(toDOMString(name));
    },
  } as Proposals;
}

const SCOPED = 'requestScopedLock(scope, callback, options)';

/** A rejection rather than an exception. */
function attempt<T>(run: () => Promise<T>): Promise<T> {
  try {
    return run();
  } catch (error) {
    return Promise.reject(error);
  }
}

function need(count: number, form: string, args: unknown[]): unknown[] {
  if (args.length < count) throw new TypeError(`${form} needs ${count} arguments, but ${args.length} were given`);
  return args;
}

/** Steps 1 and 2 of both sketches. */
function toScope(value: unknown): readonly string[] {
  const names = sorted(toNames(value));
  if (names.length === 0) throw new TypeError('a scope needs at least one name');
  return names;
}

/**
 * Web IDL takes a function for a dictionary without members. Here it is a callback that would never
 * be called.
 */
function toOptions(value: unknown, form: string): Record<string, unknown> {
  if (typeof value === 'function') {
    throw new TypeError(`${form} takes an object of options, not a function: ${SCOPED} takes a callback, second`);
  }
  return toDictionary(value);
}

/** Members in the order of their names, each read once. */
function toRequestLockOptions(value: unknown, form: string): RequestLockOptions {
  const source = toOptions(value, form);
  const options: RequestLockOptions = {};
  const { ifAvailable } = source;
  if (ifAvailable !== undefined) options.ifAvailable = Boolean(ifAvailable);
  const { mode } = source;
  if (mode !== undefined) options.mode = toLockMode(mode);
  const { signal } = source;
  if (signal !== undefined) options.signal = toAbortSignal(signal);
  return options;
}

/** Acquires a lock for one of the forms that hand it out. */
function request<L>(
  transport: Transport,
  names: readonly string[],
  options: AcquireOptions,
  deliver: (request: Request, resolve: (lock: L) => void) => void,
): Promise<L | null> {
  const acquired = acquire(transport, names, options);
  // The promise that is awaited is resolved in the same microtask in which the lock's own share
  // begins.
  return new Promise((resolve, reject) => {
    const granted = (lock: unknown): void => {
      const request = requestOf(lock);
      if (request === undefined) resolve(null);
      // Stolen, or lost, since.
      else if (request.state !== State.HELD) reject(request.failure);
      else deliver(request, resolve);
    };
    void then.call(acquired, granted, reject);
  });
}
