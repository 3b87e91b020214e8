/**
 * `navigator.locks` for Node, Bun and Deno: the Web Locks API, shared by all threads of the process.
 *
 * @example
 * import { locks } from 'lockkeeper';
 * await locks.request('my resource', async (lock) => {
 *   // Nobody else holds "my resource" while this runs.
 * });
 */

// But for `connect`, which reaches further here.
export * from './connect.js';
export { locks } from './local.js';
export { connect } from './reach.js';
export type { LockMessage } from './diagnostics.js';
export { detectDeadlocks } from './nesting.js';
