/**
 * The forms before the draft, for the lock manager at `navigator.locks` if that is one of this
 * package's, or else for that of the process. `proposals(manager)` returns them for any other.
 */

import './runtime.js';
import { bind, type Proposals } from './forms.js';
import { local } from './local.js';
import { transportOf } from './manager.js';

export * from './proposals-of.js';

const here = bind(() => transportOf((globalThis as { navigator?: { locks?: unknown } }).navigator?.locks) ?? local);

export const requestFlag: Proposals['requestFlag'] = here.requestFlag;
export const requestLock: Proposals['requestLock'] = here.requestLock;
export const requestExplicitLock: Proposals['requestExplicitLock'] = here.requestExplicitLock;
export const requestScopedLock: Proposals['requestScopedLock'] = here.requestScopedLock;
export const forceRelease: Proposals['forceRelease'] = here.forceRelease;
