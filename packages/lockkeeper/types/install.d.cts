import type { AcquiredLock, AcquireOptions, Inspection, LockOptions, LockScope } from './api.cjs';
import type { Lock as OwnLock, LockManagerSnapshot as Snapshot, LockManagerStatus, StatusListenerOptions } from './api.cjs';

// These are merged with the types of TypeScript's library "dom" and of @types/node, where they are.
declare global {
  // In a worker the library has a `WorkerNavigator`, and only one type may be given to a variable.
  var navigator: typeof globalThis extends { onmessage: any; navigator: infer T } ? T : Navigator;

  interface Navigator {
    readonly locks: LockManager;
  }

  interface LockManager {
    request<T>(name: string, callback: (lock: OwnLock) => T): Promise<Awaited<T>>;
    request<T>(
      name: string,
      options: LockOptions & { ifAvailable?: false | undefined },
      callback: (lock: OwnLock) => T,
    ): Promise<Awaited<T>>;
    request<T>(name: string, options: LockOptions, callback: (lock: OwnLock | null) => T): Promise<Awaited<T>>;
    query(): Promise<Snapshot>;
    acquire(
      scope: LockScope,
      options?: AcquireOptions & { ifAvailable?: false | undefined },
    ): Promise<AcquiredLock>;
    acquire(scope: LockScope, options: AcquireOptions): Promise<AcquiredLock | null>;
    inspect(): Promise<Inspection>;
    forceRelease(name: string): void | Promise<void>;
    close(): Promise<void>;
    [Symbol.asyncDispose](): Promise<void>;
    readonly status: LockManagerStatus;
    addEventListener(type: 'statuschange', listener: (event: Event) => void, options?: StatusListenerOptions): void;
    removeEventListener(type: 'statuschange', listener: (event: Event) => void): void;
  }
}
