/** The errors that a lock may end with. */

import * as Code from './codes.js';
import type { Deadlock, DeadlockStep } from './transport.js';

/** Why a held lock ended without its holder's doing: another request stole it, or its session was lost. */
export type BrokenBy = 'stolen' | 'lost';

/** An `AbortError`, as §4.1 has it, whose `cause` tells *stolen* from *lost*. */
export function broken(names: string, cause: BrokenBy): DOMException {
  const text = cause === 'stolen' ? 'was stolen by another request' : 'was lost';
  return withCause(new DOMException(`The lock ${names} ${text}`, 'AbortError'), cause);
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

/** What a server refuses, with a code for programs and a message for people. */
export function refusal(code: number, message: string): Error {
  if (code === Code.NOT_SUPPORTED) return notSupported(message);
  if (code === Code.LIMIT) return new DOMException(message, 'QuotaExceededError');
  if (code === Code.FORBIDDEN) return new DOMException(message, 'NotAllowedError');
  return new DOMException(message, 'OperationError');
}

/** Why there is no session: nobody answers, or the server refuses. */
export function noSession(message: string, code?: number, cause?: unknown): DOMException {
  const error = new DOMException(message, code === Code.UNAUTHORIZED ? 'NotAllowedError' : 'NetworkError');
  return cause === undefined ? error : withCause(error, cause);
}

function withCause(error: DOMException, cause: unknown): DOMException {
  return Object.defineProperty(error, 'cause', { value: cause, configurable: true, writable: true });
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
