/** Defines `navigator.locks` and the interfaces as in the specification (§3.1). */

import { Lock } from './lock.js';
import { LockManager } from './manager.js';

export function expose(navigator: object, locks: LockManager): void {
  const mixin = {
    get locks(): LockManager {
      if ((this as object) !== navigator) throw new TypeError('Illegal invocation');
      return locks;
    },
  };
  // If `navigator` has no interface, its prototype is that of all objects.
  const prototype = Object.getPrototypeOf(navigator) as object;
  const target = prototype === Object.prototype ? navigator : prototype;
  Object.defineProperty(target, 'locks', Object.getOwnPropertyDescriptor(mixin, 'locks')!);
  define('LockManager', LockManager);
  define('Lock', Lock);
}

export function define(name: string, value: unknown): void {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
}
