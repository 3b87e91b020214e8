export { AcquiredLock, connect, DeadlockError, Lock, LockManager } from '../dist/cjs/connect-runtime.cjs';
