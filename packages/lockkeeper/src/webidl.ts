/** The conversions of the Web IDL standard that the interfaces use. */

import { addEventListener, removeEventListener } from './intrinsics.js';

export type LockMode = 'exclusive' | 'shared';

export interface LockOptions {
  mode?: LockMode;
  ifAvailable?: boolean;
  steal?: boolean;
  signal?: AbortSignal;
}

export interface LockInfo {
  name: string;
  mode: LockMode;
  clientId: string;
}

export interface LockManagerSnapshot {
  held: LockInfo[];
  pending: LockInfo[];
}

const aborted = Object.getOwnPropertyDescriptor(AbortSignal.prototype, 'aborted')?.get;
const reason = Object.getOwnPropertyDescriptor(AbortSignal.prototype, 'reason')?.get;

/** DOMString. A symbol throws. */
export function toDOMString(value: unknown): string {
  return typeof value === 'string' ? value : `${value as string}`;
}

/**
 * `(DOMString or sequence<DOMString>)`: what can be iterated is a sequence, all else is converted
 * to a string.
 */
export function toNames(value: unknown): string[] {
  if ((typeof value !== 'object' && typeof value !== 'function') || value === null) return [toDOMString(value)];
  const method = (value as { [Symbol.iterator]?: unknown })[Symbol.iterator];
  if (method === undefined || method === null) return [toDOMString(value)];
  if (typeof method !== 'function') throw new TypeError('a scope whose Symbol.iterator is no function');
  const iterator = Reflect.apply(method, value, []) as Iterator<unknown>;
  return Array.from({ [Symbol.iterator]: () => iterator }, (name) => toDOMString(name));
}

/** A dictionary, of which `undefined` and `null` are the empty one. */
export function toDictionary(value: unknown): Record<string, unknown> {
  if (value === undefined || value === null) return {};
  if (typeof value !== 'object' && typeof value !== 'function') throw new TypeError('options is no object');
  return value as Record<string, unknown>;
}

/** What is no dictionary of Web IDL: an object, with these members at most. */
export function checkMembers(form: string, options: object, members: string[]): void {
  if (!isObject(options)) {
    throw new TypeError(`${form} takes an object. A callback is for request(name, options, callback)`);
  }
  for (const key in options) {
    if (!members.includes(key)) throw new TypeError(`${form} has no option ${key}, but ${members.join(', ')}`);
  }
}

/** The dictionary LockOptions: members in the order of their names, each read once. */
export function toLockOptions(value: unknown): LockOptions {
  const source = toDictionary(value);
  const options: LockOptions = {};
  const ifAvailable = source['ifAvailable'];
  if (ifAvailable !== undefined) options.ifAvailable = Boolean(ifAvailable);
  const mode = source['mode'];
  if (mode !== undefined) options.mode = toLockMode(mode);
  const signal = source['signal'];
  if (signal !== undefined) options.signal = toAbortSignal(signal);
  const steal = source['steal'];
  if (steal !== undefined) options.steal = Boolean(steal);
  return options;
}

export function toLockMode(value: unknown): LockMode {
  const mode = toDOMString(value);
  if (mode !== 'exclusive' && mode !== 'shared') {
    throw new TypeError(`"${mode}" is neither "exclusive" nor "shared"`);
  }
  return mode;
}

export function toAbortSignal(value: unknown): AbortSignal {
  try {
    // The getter knows its own.
    aborted?.call(value);
  } catch {
    throw new TypeError('signal is not an AbortSignal');
  }
  return value as AbortSignal;
}

/** Whether a signal is aborted, and why. An own property of the same name is no answer. */
export function isAborted(signal: AbortSignal): boolean {
  return aborted ? (aborted.call(signal) as boolean) : signal.aborted;
}

export function reasonOf(signal: AbortSignal): unknown {
  return reason ? reason.call(signal) : signal.reason;
}

export const NO_CALLBACK = 'request(name, options, callback) needs a callback. acquire(scope, options) needs none';

export function toCallback<T>(value: unknown): (argument: T) => unknown {
  if (typeof value !== 'function') throw new TypeError(NO_CALLBACK);
  return value as (argument: T) => unknown;
}

/** The algorithms of each signal (DOM, "add"). */
const algorithms = new WeakMap<AbortSignal, AbortAlgorithms>();

/** Runs `algorithm` when the signal aborts. Returns how to remove it. */
export function addAbortAlgorithm(signal: AbortSignal, algorithm: () => void): () => void {
  let all = algorithms.get(signal);
  if (all === undefined) algorithms.set(signal, (all = new AbortAlgorithms(signal)));
  return all.add(algorithm);
}

/**
 * Abort algorithms are not listeners: they run before listeners that were added later, and events
 * neither start nor stop them. So this uses two: a listener, which user code may stop, and a
 * private dependent signal, which is notified last.
 */
class AbortAlgorithms {
  readonly #all = new Set<() => void>();
  readonly #signal: AbortSignal;
  readonly #own: AbortSignal;
  readonly #run = (): void => {
    if (!isAborted(this.#signal)) return;
    for (const algorithm of this.#all) algorithm();
  };

  constructor(signal: AbortSignal) {
    this.#signal = signal;
    this.#own = AbortSignal.any([signal]);
    addEventListener.call(this.#own, 'abort', this.#run);
  }

  add(algorithm: () => void): () => void {
    if (this.#all.size === 0) addEventListener.call(this.#signal, 'abort', this.#run);
    this.#all.add(algorithm);
    return () => {
      this.#all.delete(algorithm);
      if (this.#all.size === 0) removeEventListener.call(this.#signal, 'abort', this.#run);
    };
  }
}

export function isObject(value: unknown): value is object {
  return typeof value === 'object' && value !== null;
}

/** Throws the error of a method that was detached from its object. */
export function detached(name: string): never {
  throw new TypeError(`call the method on its ${name}, or bind it`);
}

/**
 * Operations and attributes of an interface are enumerable; a class makes them not. Minifiers
 * change the names of classes.
 */
export function exposeInterface(name: string, prototype: object): void {
  for (const member of Object.getOwnPropertyNames(prototype)) {
    if (member !== 'constructor') Object.defineProperty(prototype, member, { enumerable: true });
  }
  const named = { value: name, configurable: true };
  Object.defineProperty(prototype, Symbol.toStringTag, named);
  Object.defineProperty(prototype.constructor, 'name', named);
}
