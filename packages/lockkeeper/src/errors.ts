/** The errors with which a request or lock can end. */

import * as Code from './codes.js';
import type { Deadlock, DeadlockStep } from './transport.js';

/**
 * Why a held lock ended without its holder's doing: stolen by another request, lost with its
 * session, or by `close()`.
 */
export type BrokenBy = 'stolen' | 'lost' | 'closed';

/** An `AbortError` (§4.1), with the kind of loss as its `cause`. */
export function broken(names: string, cause: BrokenBy, why?: string): DOMException {
  const by = cause === 'stolen' ? ' by another request' : why ? `: ${why}` : '';
  return withCause(new DOMException(`The lock ${names} was ${cause}${by}`, 'AbortError'), cause);
}

export function notSupported(message: string): DOMException {
  return new DOMException(message, 'NotSupportedError');
}

export function timedOut(names: string, milliseconds: number): DOMException {
  return new DOMException(`The lock ${names} was not granted within ${milliseconds} ms`, 'TimeoutError');
}

/** The error of a refusal by the engine. The arguments are valid, so it is a limit. */
export function refused(error: unknown): DOMException {
  return new DOMException((error as Error).message, 'QuotaExceededError');
}

/** The error of a refusal by a server, with a code for programs and a message for people. */
export function refusal(code: number, message: string): Error {
  return new DOMException(message, NAMES[code] ?? 'OperationError');
}

const NAMES: { [code: number]: string } = {
  [Code.NOT_SUPPORTED]: 'NotSupportedError',
  [Code.LIMIT]: 'QuotaExceededError',
  [Code.FORBIDDEN]: 'NotAllowedError',
};

/** Why there is no session: no server answers, or the server refuses. */
export function noSession(message: string, code?: number, cause?: unknown): DOMException {
  const error = new DOMException(message, code === Code.UNAUTHORIZED ? 'NotAllowedError' : 'NetworkError');
  return cause === undefined ? error : withCause(error, cause);
}

function withCause(error: DOMException, cause: unknown): DOMException {
  return Object.defineProperty(error, 'cause', { value: cause, configurable: true });
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
