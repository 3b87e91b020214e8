/**
 * Defines `navigator.locks`, and the interfaces `LockManager` and `Lock` on the global object, as
 * in the specification (§3.1). Without a `navigator`, it makes one. A native `locks` is replaced.
 *
 * `LOCKKEEPER_URL` chooses the lock manager, as for `connect()`; without it, it is that of the
 * process.
 */

import './runtime.js';
import { define, expose } from './expose.js';
import { locks as local } from './local.js';
import { newManager, type LockManager } from './manager.js';
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

expose(scope.navigator!, locks);

/**
 * The manager of a daemon that may not have answered yet: requests wait for it, and are refused if
 * it does not.
 */
function connecting(): LockManager {
  const remote = reach();
  remote.opened.catch(() => {});
  return newManager(remote);
}
