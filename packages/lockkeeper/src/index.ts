/**
 * `navigator.locks` for Node, Bun and Deno: the Web Locks API, shared by all threads of the process.
 *
 * @example
 * import { locks } from 'lockkeeper';
 * await locks.request('my resource', async (lock) => {
 *   // Nobody else holds "my resource" while this runs.
 * });
 */

export { DeadlockError, type BrokenBy } from './errors.js';
export { AcquiredLock, Lock } from './lock.js';
export { LockManager, type AcquireOptions, type LockGrantedCallback, type LockScope } from './manager.js';
export { locks } from './local.js';
export { connect } from './reach.js';
export type { LockMessage } from './diagnostics.js';
export { detectDeadlocks } from './nesting.js';
export type { Deadlock, DeadlockStep, Inspection, RequestInfo } from './transport.js';
export type { ConnectOptions } from './websocket.js';
export type { LockInfo, LockManagerSnapshot, LockMode, LockOptions } from './webidl.js';
