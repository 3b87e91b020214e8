/**
 * The options of a request as bits. All but the first are the protocol's. Plain constants, which
 * bundlers inline.
 */

export const SHARED = 1;
export const IF_AVAILABLE = 2;
export const STEAL = 4;
export const REFUSE_DEADLOCK = 8;
