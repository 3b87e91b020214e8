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
export {
  LockManager,
  locks,
  type AcquireOptions,
  type LockGrantedCallback,
  type LockScope,
} from './manager.js';
export { connect, type ConnectOptions } from './remote.js';
export type { LockMessage } from './diagnostics.js';
export type { Deadlock, DeadlockStep, Inspection, RequestInfo } from './native.js';
export { detectDeadlocks } from './nesting.js';
export type { LockInfo, LockManagerSnapshot, LockMode, LockOptions } from './webidl.js';
