/**
 * The codes of the protocol that this package distinguishes. Plain constants, which bundlers
 * inline.
 */

export const NOT_SUPPORTED = 1;
export const LIMIT = 2;
export const STORAGE = 4;
export const FORBIDDEN = 6;
export const UNAUTHORIZED = 20;
export const SUPERSEDED = 21;
export const ENDED = 22;
/** From here on, the client tries again later. */
export const STOPPING = 32;
