// The names of the CommonJS modules, of which there is one copy for `import` and `require`.
export {
  AcquiredLock,
  connect,
  createLocks,
  DeadlockError,
  detectDeadlocks,
  Lock,
  LockManager,
  locks,
} from '../dist/cjs/index.cjs';
