/** The interface between a lock manager and what executes its requests. */

import type { Status } from './remote.js';
import type { Request } from './request.js';
import type { LockManagerSnapshot, LockMode } from './webidl.js';

/**
 * It notifies each request: `queued`, `granted`, `unavailable`, `refused`, `broke`.
 */
export interface Transport {
  readonly clientId: string;
  /** Of a manager that can lose its connection. */
  readonly state?: Status;
  readonly events?: EventTarget;
  /** Throws where the specification has no lock manager (§3.2.1, steps 2 to 4). */
  check?(): void;
  /** Requests a lock on one name. `false` if it is known already that it is not available. */
  submit(request: Request, flags: number): boolean;
  /** The same with all that a scope may have. */
  submitScope(request: Request, flags: number, nestedIn?: Request, info?: string): boolean;
  /**
   * Takes a waiting request out of its queues, perhaps because its time was up. `false` if it does
   * not wait any more.
   */
  abort(request: Request, timedOut: boolean): boolean;
  /** Releases a lock. `false` if it was broken before; then its request has been notified. */
  release(request: Request): boolean | Promise<boolean>;
  /**
   * Whether a lock that was granted and not released is still held, by the clock if it has a lease.
   * If it is not, its request has been notified. Without this method, it is held until the request
   * is notified.
   */
  isHeld?(request: Request): boolean;
  query(): LockManagerSnapshot | Promise<LockManagerSnapshot>;
  inspect(): Inspection | Promise<Inspection>;
  forceRelease(name: string): void | Promise<void>;
  close(): void | Promise<void>;
}

/** Names, each with its mode. */
export interface Scope {
  names: string[];
  shared: boolean[];
}

/** A cycle of requests that wait for each other if each awaits the request nested in it. */
export interface Deadlock {
  message: string;
  cycle: DeadlockStep[];
}

export interface DeadlockStep {
  request: bigint;
  clientId: string;
  /**
   * The name for which the request waits; none if it waits for the next request, which is nested in
   * it.
   */
  waitsFor?: string;
}

/** The state of a lock manager with all that `query()` may not show. */
export interface Inspection {
  held: RequestInfo[];
  pending: RequestInfo[];
  deadlocks: Deadlock[];
}

export interface RequestInfo {
  /** The place of the request in the one order of arrivals. */
  request: bigint;
  clientId: string;
  /** The names, sorted. */
  scope: { name: string; mode: LockMode }[];
  /** The label that `acquire` gave it. */
  info?: string;
  /** The fencing token, if it is held. */
  token?: bigint;
  /** For how many milliseconds it has waited, if it waits. */
  waited?: number;
  /** The request within which it was made. */
  nestedIn?: bigint;
  /** Whether it was made with `steal`. */
  stole: boolean;
}
