/** `lockkeeper/connect` in Node, Bun and Deno. */

import './runtime.js';

export { AcquiredLock, connect, DeadlockError, Lock, LockManager } from './connect.js';
