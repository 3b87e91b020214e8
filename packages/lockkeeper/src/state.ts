/** States of a request. A request only moves forward. Plain constants, which bundlers inline. */

export const NEW = 0;
export const WAITING = 1;
/** The engine counts it as held, but its owner does not know yet. */
export const GRANTED = 2;
export const UNAVAILABLE = 3;
export const HELD = 4;
export const RELEASING = 5;
export const ENDED = 6;
