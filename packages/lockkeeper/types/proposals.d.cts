import type { Proposals } from './proposals-of.cjs';

export * from './proposals-of.cjs';

export const requestFlag: Proposals['requestFlag'];
export const requestLock: Proposals['requestLock'];
export const requestExplicitLock: Proposals['requestExplicitLock'];
export const requestScopedLock: Proposals['requestScopedLock'];
export const forceRelease: Proposals['forceRelease'];
