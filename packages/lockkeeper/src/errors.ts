/** The errors that a lock may end with. */

import type { Deadlock, DeadlockStep } from './native.js';

/** Why a held lock ended without its holder's doing: another request stole it, or its session was lost. */
export type BrokenBy = 'stolen' | 'lost';

/** An `AbortError`, as §4.1 has it, whose `cause` tells *stolen* from *lost*. */
export function broken(names: string, cause: BrokenBy): DOMException {
  const text = cause === 'stolen' ? 'was stolen by another request' : 'was lost';
  const error = new DOMException(`The lock ${names} ${text}`, 'AbortError');
  Object.defineProperty(error, 'cause', { value: cause, configurable: true, writable: true });
  return error;
}

export function notSupported(message: string): DOMException {
  return new DOMException(message, 'NotSupportedError');
}

export function timedOut(names: string, milliseconds: number): DOMException {
  return new DOMException(`The lock ${names} was not granted within ${milliseconds} ms`, 'TimeoutError');
}

/** What the engine refuses once the arguments are right: a limit stands against it. */
export function refused(error: unknown): unknown {
  return error instanceof Error ? new DOMException(error.message, 'QuotaExceededError') : error;
}

/** The request would have waited for itself, and asked to be refused then. */
export class DeadlockError extends Error {
  override readonly name = 'DeadlockError';
  readonly cycle: DeadlockStep[];

  constructor(deadlock: Deadlock) {
    super(deadlock.message);
    this.cycle = deadlock.cycle;
  }
}
