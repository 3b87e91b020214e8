/**
 * The transport to a server, with a session of the addon (`addon-session.ts`) or over a WebSocket
 * (`websocket-session.ts`). A session tracks its requests and reconnects by itself. This module has
 * what both share.
 */

import { Promise, queueMicrotask } from './intrinsics.js';
import type { Liveness } from './liveness.js';
import { watchForDeadlock } from './nesting.js';
import { observer } from './observer.js';
import type { Request } from './request.js';
import * as State from './state.js';
import type { Deadlock, Inspection, RequestInfo, Transport } from './transport.js';
import type { LockManagerSnapshot, LockMode } from './webidl.js';

/**
 * A session with a server. It never blocks, and does not call its listener within a call, except in
 * `isHeld`.
 */
export interface Session {
  readonly clientId: string;
  /** Rejects if no session can be opened. */
  readonly opened: Promise<void>;
  request(request: Request, flags: number, nestedIn: Request | undefined, info: string | undefined): void;
  /** Releases a lock, or cancels a waiting request. */
  releaseOrCancel(request: Request, timedOut?: boolean): void;
  /**
   * Whether a granted lock is still held, by the clock if the session has a lease. If it is not,
   * the listener has been notified before this returns.
   */
  isHeld?(request: Request): boolean;
  query(deadlocks: boolean): Promise<Snapshot>;
  forceRelease(name: string): Promise<void>;
  close(): void | Promise<void>;
}

/**
 * Where a session stands. One that is closed by a failure connects again when something is asked of
 * it.
 */
export type Status = 'connecting' | 'connected' | 'reconnecting' | 'closed';

/** Hears what becomes of requests, and of the session. */
export interface Listener {
  status(status: Status): void;
  /** With `now`, it is the only notification of its task. */
  granted(request: Request, token: number | bigint, now?: boolean): void;
  /** `why` describes a loss, for people. */
  over(request: Request, how: Outcome, why?: string): void;
}

/** How a request ended: as its owner wished, or not at all; or by an error, which refuses it. */
export type Outcome = 'ended' | 'unavailable' | 'stolen' | 'lost' | Error;

/**
 * What a daemon shows: an entry for each name of each request, held first, each in the order of
 * arrival.
 */
export interface Snapshot {
  entries: Entry[];
  deadlocks: Deadlock[];
}

export interface Entry {
  place: { name: string; mode: LockMode };
  clientId: string;
  /** The same for all names of a request. */
  arrival: number | bigint;
  token?: number | bigint | undefined;
  info?: string | undefined;
  since: number;
  nestedIn?: number | bigint | undefined;
  stole: boolean;
}

export class Remote implements Transport, Listener {
  /** Throws where the specification has no lock manager. */
  check?: () => void;
  /** Told when the status has changed. */
  readonly events = new EventTarget();
  state: Status = 'connecting';
  readonly #open: (listener: Listener) => Session;
  #started: Session | undefined;
  #opened: Promise<void> | undefined;
  /** Requests that are being released, and the functions to call then. */
  readonly #releasing = new Map<Request, (done: boolean) => void>();
  /** Counts what waits for the daemon. */
  readonly #liveness = observer.newLiveness?.();
  #closed = false;

  /** `open` is called when something is first asked of it. */
  constructor(open: (listener: Listener) => Session) {
    this.#open = open;
  }

  /** Rejects if no session can be opened. */
  get opened(): Promise<void> {
    return (this.#opened ??= this.#whenOpened());
  }

  get #session(): Session {
    if (this.#started === undefined) {
      this.#started = this.#open(this);
      // Each request reports the failure to its caller.
      this.#started.opened.catch(() => {});
    }
    return this.#started;
  }

  get clientId(): string {
    return this.#session.clientId;
  }

  submit(request: Request, flags: number): boolean {
    return this.submitScope(request, flags);
  }

  submitScope(request: Request, flags: number, nestedIn?: Request, info?: string): boolean {
    this.#check();
    const session = this.#session;
    this.#liveness?.waits(1);
    request.queued();
    const outer = nestedIn?.transport === this ? nestedIn : undefined;
    session.request(request, flags, outer, info);
    if (outer) watchForDeadlock(request, () => this.#deadlock(request));
    return true;
  }

  abort(request: Request, timedOut: boolean): boolean {
    this.#session.releaseOrCancel(request, timedOut);
    return true;
  }

  release(request: Request): Promise<boolean> {
    this.#liveness?.waits(1);
    const released = new Promise<boolean>((resolve) => this.#releasing.set(request, resolve));
    this.#session.releaseOrCancel(request);
    return released;
  }

  isHeld(request: Request): boolean {
    return this.#session.isHeld?.(request) ?? true;
  }

  async query(): Promise<LockManagerSnapshot> {
    const lists: LockManagerSnapshot = { held: [], pending: [] };
    const { entries } = await this.#ask((session) => session.query(false));
    for (const { place, clientId, token } of entries) {
      (token === undefined ? lists.pending : lists.held).push({ clientId, mode: place.mode, name: place.name });
    }
    return lists;
  }

  async inspect(): Promise<Inspection> {
    return inspection(await this.#ask((session) => session.query(true)));
  }

  async forceRelease(name: string): Promise<void> {
    await this.#ask((session) => session.forceRelease(name));
  }

  async close(): Promise<void> {
    this.#closed = true;
    this.status('closed');
    const closed = this.#started?.close();
    await (this.#liveness ? during(this.#liveness, closed) : closed);
    this.#liveness?.end();
  }

  granted(request: Request, token: number | bigint, now?: boolean): void {
    // One that was cancelled in the meantime will be notified of its end.
    if (request.state !== State.WAITING) return;
    this.#liveness?.waits(-1);
    request.granted(token, now);
  }

  over(request: Request, how: Outcome, why?: string): void {
    if (request.state !== State.HELD && request.state !== State.GRANTED) this.#liveness?.waits(-1);
    const releasing = this.#releasing.get(request);
    this.#releasing.delete(request);
    if (how === 'unavailable') request.unavailable();
    else if (how === 'stolen') request.broke(how);
    // What `close()` ends is not lost.
    else if (how === 'lost') request.broke(this.#closed ? 'closed' : how, why);
    else if (how !== 'ended') request.fail(how);
    releasing?.(how === 'ended');
  }

  status(status: Status): void {
    if (this.state === status) return;
    this.state = status;
    // Listeners are other people's code.
    queueMicrotask(() => this.events.dispatchEvent(new Event('statuschange')));
  }

  async #whenOpened(): Promise<void> {
    if (!this.#liveness) return this.#session.opened;
    try {
      await during(this.#liveness, this.#session.opened);
    } catch (error) {
      if (this.#liveness.waiting === 0) this.#liveness.end();
      throw error;
    }
  }

  /**
   * The cycle in which a request waits. No caller depends on the answer, so failures are ignored.
   */
  async #deadlock(request: Request): Promise<Deadlock | undefined> {
    const { names } = request.scope();
    const { deadlocks } = await this.#session.query(true);
    return deadlocks.find(({ cycle }) =>
      cycle.some((step) => step.clientId === this.clientId && names.includes(step.waitsFor as string)),
    );
  }

  #check(): void {
    if (this.#closed) throw new DOMException('the session is closed: connect() again', 'InvalidStateError');
  }

  #ask<T>(ask: (session: Session) => Promise<T>): Promise<T> {
    this.#check();
    const answer = ask(this.#session);
    return this.#liveness ? during(this.#liveness, answer) : answer;
  }
}

/** Keeps the process alive meanwhile. */
async function during<T>(liveness: Liveness, promise: T | Promise<T>): Promise<T> {
  liveness.waits(1);
  try {
    return await promise;
  } finally {
    liveness.waits(-1);
  }
}

/** By request rather than by name. */
function inspection({ entries, deadlocks }: Snapshot): Inspection {
  const requests = new Map<number | bigint, RequestInfo>();
  for (const { place, clientId, arrival, token, info, since, nestedIn, stole } of entries) {
    const known = requests.get(arrival);
    if (known) {
      known.scope.push(place);
      continue;
    }
    const request: RequestInfo = { request: BigInt(arrival), clientId, scope: [place], stole };
    if (info !== undefined) request.info = info;
    if (token === undefined) request.waited = since;
    else request.token = BigInt(token);
    if (nestedIn !== undefined) request.nestedIn = BigInt(nestedIn);
    requests.set(arrival, request);
  }
  const all = [...requests.values()];
  for (const { scope } of all) scope.sort((a, b) => (a.name < b.name ? -1 : 1));
  return {
    held: all.filter(({ token }) => token !== undefined),
    pending: all.filter(({ token }) => token === undefined),
    deadlocks,
  };
}
