/**
 * Puts the lock manager where the specification has it (§3.1): `navigator.locks`, and the interfaces `LockManager`
 * and `Lock` on the global object. Where there is no `navigator`, makes one; a native `locks` is replaced.
 *
 * Which lock manager it is, `LOCKKEEPER_URL` says, as for `connect()`; without it, that of the process.
 */

import './runtime.js';
import { locks as local } from './local.js';
import { Lock } from './lock.js';
import { LockManager, newManager } from './manager.js';
import { reach } from './reach.js';

const locks = process.env['LOCKKEEPER_URL'] ? connecting() : local;

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

/** The manager of a daemon that may not have answered yet: requests wait for it, and are refused if it does not. */
function connecting(): LockManager {
  const remote = reach();
  remote.opened.catch(() => {});
  return newManager(remote);
}

function define(name: string, value: unknown): void {
  Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
}
