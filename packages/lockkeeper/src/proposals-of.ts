/**
 * The forms of the Web Locks API before the draft, for any lock manager of this package. Their
 * locks are ordinary locks of that manager. Browsers load this module as `lockkeeper/proposals`; it
 * needs no addon.
 */

import { bind, type Proposals } from './forms.js';
import { transportOf, type LockManager } from './manager.js';

export { ExplicitLock, Flag, Lock } from './auto-release.js';
export type { Proposals, ProposedScope, RequestFlagOptions, RequestLockOptions } from './forms.js';
export type { ScopedLock } from './lock.js';

export function proposals(manager: LockManager): Proposals {
  const transport = transportOf(manager);
  if (!transport) throw new TypeError('proposals(manager) takes `locks`, or a manager from connect()');
  return bind(() => transport);
}
