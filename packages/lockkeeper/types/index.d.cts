import type { ConnectOptions, LockManager, LockMode } from './api.cjs';

export * from './api.cjs';

/** The lock manager of this process, shared by all its threads. */
export const locks: LockManager;

/**
 * A lock manager of its own: nobody else has its names, on this thread or others. For tests and
 * libraries. It lives as long as its thread, or until `close()`.
 */
export function createLocks(): LockManager;

/**
 * The lock manager of the daemon at `url`: `ws://host:port/`, `wss://…`,
 * `unix:/path/to/daemon.sock`, `machine` (the machine's, for several users) or `user` (this user's
 * own, which is started if none runs). Without one, that which `LOCKKEEPER_URL` names, or else this
 * user's. Of several URLs, of the daemons of a fleet, the next one is used when one fails; Unix
 * sockets and WebSockets may be in one list.
 */
export function connect(url?: string | readonly string[], options?: ConnectOptions): Promise<LockManager>;

/**
 * From now on, requests that are made in the callback of a lock are known to be nested in it:
 * `inspect()` shows deadlocks, a warning of the process tells of one that lasts, and `acquire(…, {
 * deadlock: 'refuse' })` knows them.
 */
export function detectDeadlocks(): void;

/**
 * A message of the channels `lockkeeper:…` of `node:diagnostics_channel`. A request is published on
 * `request`, then perhaps on `grant`, and at its end on one of `release`, `steal`, `lost`, `abort`,
 * `timeout`, `unavailable` and `error`.
 */
export interface LockMessage {
  /** The same in all messages about one request; of this thread. */
  id: number;
  names: string[];
  mode: LockMode;
  clientId: string;
  /** Of a lock. */
  token?: bigint;
  /** Why it ended: 'stolen', 'lost' or 'closed', the reason of the abort, or the error. */
  cause?: unknown;
}
