/**
 * Puts the lock manager where the specification has it (§3.1): `navigator.locks`, and the interfaces `LockManager`
 * and `Lock` on the global object. Where there is no `navigator`, makes one; a native `locks` is replaced.
 */

import { Lock } from './lock.js';
import { LockManager, locks } from './manager.js';

const scope = globalThis as { navigator?: object };
if (scope.navigator === undefined) {
  const { Navigator } = {
    Navigator: class {
      constructor() {
        throw new TypeError('Illegal constructor');
      }
    },
  };
  Object.defineProperty(Navigator.prototype, Symbol.toStringTag, { value: 'Navigator', configurable: true });
  const navigator = Object.create(Navigator.prototype) as object;
  define('Navigator', Navigator);
  Object.defineProperty(scope, 'navigator', { get: () => navigator, enumerable: true, configurable: true });
}

const navigator = scope.navigator!;
const mixin = {
  get locks(): LockManager {
    if ((this as object) !== navigator) throw new TypeError('Illegal invocation');
    return locks;
  },
};
// Where `navigator` is of no interface, its prototype is everybody's.
const prototype = Object.getPrototypeOf(navigator) as object;
const target = prototype === Object.prototype ? navigator : prototype;
Object.defineProperty(target, 'locks', Object.getOwnPropertyDescriptor(mixin, 'locks')!);
define('LockManager', LockManager);
define('Lock', Lock);

function define(name: string, value: unknown): void {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
}
