/**
 * The nesting of requests, for reports of deadlocks. It costs every request a little, so it is off
 * until `detectDeadlocks()` is called.
 */

import type { AsyncLocalStorage } from 'node:async_hooks';
import { later, process } from './host.js';
import { observer } from './observer.js';
import type { Request } from './request.js';
import * as State from './state.js';
import type { Deadlock } from './transport.js';

/** The lock in whose callback the running code is. */
export const outer: { storage: AsyncLocalStorage<Request> | undefined } = { storage: undefined };

/** How long a nested request waits before the search. */
const SEARCH_AFTER = 1000;

/**
 * From now on, requests that are made in the callback of a lock are recorded as nested in it:
 * `inspect()` shows deadlocks, a process warning reports one that lasts, and `acquire(…, {
 * deadlock: 'refuse' })` takes them into account.
 */
export function detectDeadlocks(): void {
  outer.storage ??= new (process!.getBuiltinModule('node:async_hooks').AsyncLocalStorage)();
}

/** The live request within which the running code was called. */
export function outerRequest(): Request | undefined {
  const request = outer.storage?.getStore();
  return request?.state === State.HELD ? request : undefined;
}

/** Warns if the request, which waits, turns out to wait for itself. */
export function watchForDeadlock(
  request: Request,
  find: () => Deadlock | null | Promise<Deadlock | undefined>,
): void {
  const look = async (): Promise<void> => {
    const deadlock = request.state === State.WAITING && (await find());
    if (!deadlock) return;
    (observer.warn ?? console.warn)(deadlock.message);
  };
  later(() => void look().catch(() => {}), SEARCH_AFTER);
}
