/**
 * Locks of a daemon on a network, for browsers, processes and machines. Browsers load this module;
 * it needs no addon.
 *
 * @example
 * import { connect } from 'lockkeeper/connect';
 * const locks = await connect('wss://locks.example', { token });
 * await locks.request('document 7', async (lock) => {
 *   // No other tab, device or server edits it while this runs.
 * });
 */

export { DeadlockError, type BrokenBy } from './errors.js';
export { AcquiredLock, Lock } from './lock.js';
export { LockManager, type AcquireOptions, type LockGrantedCallback, type LockScope } from './manager.js';
export { connect, type ConnectOptions } from './websocket.js';
export type { Deadlock, DeadlockStep, Inspection, RequestInfo } from './transport.js';
export type { LockInfo, LockManagerSnapshot, LockMode, LockOptions } from './webidl.js';
