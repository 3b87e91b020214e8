/** The daemon's requests and their locks, as received. No page, no connection. */

import type { Uint } from '../../lockkeeper/src/pack.js';
import type { WireDeadlock, WireEntry } from '../../lockkeeper/src/to-client.js';
import { fromName } from '../../lockkeeper/src/wire.js';

/** A live request: it holds, or waits for, each of its names. */
export interface Request {
  readonly arrival: Uint;
  readonly clientId: string;
  readonly token: Uint | null;
  readonly info: string | null;
  readonly owner: string | null;
  /** When it was granted, or began to wait, by the clock of this page. */
  readonly since: number;
  readonly nestedIn: Uint | null;
  readonly stole: boolean;
  readonly names: { readonly lock: Lock; readonly shared: boolean }[];
}

/** A name that is held or waited for. */
export interface Lock {
  readonly key: string;
  readonly bytes: Uint8Array;
  readonly name: string;
  /** In the order of arrival. */
  readonly holders: Request[];
  readonly waiters: Request[];
}

export type Deadlock = WireDeadlock;

/** Bytes as a key: each byte maps to one character. */
const keys = new TextDecoder('latin1');

export class Model {
  readonly requests = new Map<Uint, Request>();
  readonly locks = new Map<string, Lock>();
  deadlocks: Deadlock[] = [];
  /** Requests that are part of a cycle. */
  readonly inCycle = new Set<Uint>();
  held = 0;
  waiting = 0;
  /** Waiting requests that are nested in another: only they can close a cycle. */
  nested = 0;
  lastToken: Uint = 0;
  /** Counts changes. */
  version = 0;

  /** Takes on the whole state, in place of what there was. */
  replace(entries: WireEntry[], lastToken: Uint, now: number): void {
    this.requests.clear();
    this.locks.clear();
    this.held = this.waiting = this.nested = 0;
    this.change(entries, [], lastToken, now);
  }

  /** Applies changed and ended requests. */
  change(entries: WireEntry[], gone: Uint[], lastToken: Uint, now: number): void {
    this.version += 1;
    this.lastToken = lastToken;
    const touched = new Set<Lock>();
    for (const arrival of gone) this.#remove(arrival, touched);
    const fresh = new Set<Uint>();
    for (const entry of entries) {
      const [bytes, shared, clientId, arrival, token, info, since, nestedIn, stole, owner] = entry;
      if (!fresh.has(arrival)) {
        fresh.add(arrival);
        this.#remove(arrival, touched);
        const request = { arrival, clientId, token, info, owner, since: now - Number(since), nestedIn, stole, names: [] };
        this.requests.set(arrival, request);
        this.#count(request, 1);
      }
      const request = this.requests.get(arrival)!;
      const lock = this.#lock(bytes);
      request.names.push({ lock, shared });
      (token === null ? lock.waiters : lock.holders).push(request);
      touched.add(lock);
    }
    // Once for each lock: a queue may be long, and many of it come and go at once.
    for (const lock of touched) {
      this.#settle(lock.holders);
      this.#settle(lock.waiters);
      if (lock.holders.length + lock.waiters.length === 0) this.locks.delete(lock.key);
    }
  }

  setDeadlocks(deadlocks: Deadlock[]): void {
    this.version += 1;
    this.deadlocks = deadlocks;
    this.inCycle.clear();
    for (const [, cycle] of deadlocks) for (const [arrival] of cycle) this.inCycle.add(arrival);
  }

  isDeadlocked(lock: Lock): boolean {
    if (this.inCycle.size === 0) return false;
    const cyclic = (request: Request) => this.inCycle.has(request.arrival);
    return lock.waiters.some(cyclic) || lock.holders.some(cyclic);
  }

  #lock(bytes: Uint8Array): Lock {
    const key = keys.decode(bytes);
    let lock = this.locks.get(key);
    if (lock === undefined) {
      // A copy: the bytes are part of a whole message.
      lock = { key, bytes: bytes.slice(), name: fromName(bytes), holders: [], waiters: [] };
      this.locks.set(key, lock);
    }
    return lock;
  }

  /** It stays in its queues until they are settled. */
  #remove(arrival: Uint, touched: Set<Lock>): void {
    const request = this.requests.get(arrival);
    if (request === undefined) return;
    this.requests.delete(arrival);
    this.#count(request, -1);
    for (const { lock } of request.names) touched.add(lock);
  }

  /** Sorts a queue, without ended requests. */
  #settle(queue: Request[]): void {
    let length = 0;
    for (const request of queue) if (this.requests.get(request.arrival) === request) queue[length++] = request;
    queue.length = length;
    if (queue.some((request, i) => i > 0 && queue[i - 1]!.arrival > request.arrival)) {
      queue.sort((a, b) => (a.arrival < b.arrival ? -1 : 1));
    }
  }

  #count({ token, nestedIn }: Request, by: number): void {
    if (token !== null) this.held += by;
    else {
      this.waiting += by;
      if (nestedIn !== null) this.nested += by;
    }
  }
}
