/**
 * `navigator.locks` for Node, Bun and Deno: the Web Locks API, shared by all threads of the
 * process.
 *
 * @example
 * import { locks } from 'lockkeeper';
 * await locks.request('my resource', async (lock) => {
 *   // Nobody else holds "my resource" while this runs.
 * });
 */

import './runtime.js';

// But for `connect`, which reaches further here.
export { AcquiredLock, DeadlockError, Lock, LockManager } from './connect.js';
export { createLocks, locks } from './local.js';
export { connect } from './reach.js';
export type { LockMessage } from './diagnostics.js';
export { detectDeadlocks } from './nesting.js';
