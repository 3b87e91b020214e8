/**
 * What the daemon has told: requests, and the locks that they are about. No page, no connection.
 */

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

/** A name that somebody holds or waits for. */
export interface Lock {
  readonly key: string;
  readonly bytes: Uint8Array;
  readonly name: string;
  /** In the order of arrival. */
  readonly holders: Request[];
  readonly waiters: Request[];
}

export type Deadlock = WireDeadlock;

/** Bytes as a key: each byte has a character of its own. */
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

  /** Requests are from now on as told here, or gone. */
  change(entries: WireEntry[], gone: Uint[], lastToken: Uint, now: number): void {
    this.version += 1;
    this.lastToken = lastToken;
    for (const arrival of gone) this.#remove(arrival);
    const fresh = new Set<Uint>();
    for (const entry of entries) {
      const [bytes, shared, clientId, arrival, token, info, since, nestedIn, stole, owner] = entry;
      if (!fresh.has(arrival)) {
        fresh.add(arrival);
        this.#remove(arrival);
        const request = { arrival, clientId, token, info, owner, since: now - Number(since), nestedIn, stole, names: [] };
        this.requests.set(arrival, request);
        this.#count(request, 1);
      }
      const request = this.requests.get(arrival)!;
      const lock = this.#lock(bytes);
      request.names.push({ lock, shared });
      insert(token === null ? lock.waiters : lock.holders, request);
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

  #remove(arrival: Uint): void {
    const request = this.requests.get(arrival);
    if (request === undefined) return;
    this.requests.delete(arrival);
    this.#count(request, -1);
    for (const { lock } of request.names) {
      remove(request.token === null ? lock.waiters : lock.holders, request);
      if (lock.holders.length + lock.waiters.length === 0) this.locks.delete(lock.key);
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

/** Where a request stands, or would. Nearly always it is the last or the first. */
function place(queue: Request[], arrival: Uint): number {
  let [low, high] = [0, queue.length];
  if (high > 0 && queue[high - 1]!.arrival < arrival) return high;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (queue[middle]!.arrival < arrival) low = middle + 1;
    else high = middle;
  }
  return low;
}

function insert(queue: Request[], request: Request): void {
  const at = place(queue, request.arrival);
  // A name can stand in a request once only.
  if (queue[at] !== request) queue.splice(at, 0, request);
}

function remove(queue: Request[], request: Request): void {
  const at = place(queue, request.arrival);
  if (queue[at] === request) queue.splice(at, 1);
}
