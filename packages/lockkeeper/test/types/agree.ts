/** The code agrees with the types that are written by hand. Compiled, never run. */

import * as connecting from '../../src/connect.js';
import * as lockkeeper from '../../src/index.js';
import type { LockMessage } from '../../src/index.js';
import * as shapes from '../../src/proposals.js';
import type * as PublicConnect from '../../types/connect.cjs';
import type * as Public from '../../types/index.cjs';
import type * as PublicShapes from '../../types/proposals.cjs';

/** The names of a module, both ways. */
type Name<A> = Exclude<keyof A, 'default' | 'module.exports'>;
type Names<A, B> = [Name<A>, Name<B>] extends [Name<B>, Name<A>] ? true : false;
export const names: [
  Names<typeof Public, typeof lockkeeper>,
  Names<typeof PublicConnect, typeof connecting>,
  Names<typeof PublicShapes, typeof shapes>,
] = [true, true, true];

export const locks: Public.LockManager = lockkeeper.locks;
export const createLocks: typeof Public.createLocks = lockkeeper.createLocks;
export const detectDeadlocks: typeof Public.detectDeadlocks = lockkeeper.detectDeadlocks;
export const connect: typeof Public.connect = lockkeeper.connect;
export const connectOnly: typeof PublicConnect.connect = connecting.connect;
export const error: Public.DeadlockError = new lockkeeper.DeadlockError({ message: '', cycle: [] });
export const message: Public.LockMessage = {} as LockMessage;
export const proposals: PublicShapes.Proposals = shapes.proposals(lockkeeper.locks);
export const requestLock: typeof PublicShapes.requestLock = shapes.requestLock;
/** No member is missing in the types. */
type Missing =
  | Exclude<keyof lockkeeper.LockManager, keyof Public.LockManager>
  | Exclude<keyof lockkeeper.Lock, keyof Public.Lock>
  | Exclude<keyof lockkeeper.AcquiredLock, keyof Public.AcquiredLock>;
export const none: [Missing] extends [never] ? true : Missing = true;
