/** The stages of a session's requests and connection. Plain constants, which bundlers inline. */

/** Stages of a request. ENDING: the host wants it no more, and to know when that is done. */
export const ASKED = 0;
export const WAITING = 1;
export const HELD = 2;
export const ENDING = 3;

/**
 * States of the connection. GREETING: Hello was sent. SYNCING: Welcome came, the end marker not
 * yet.
 */
export const NONE = 0;
export const GREETING = 1;
export const SYNCING = 2;
export const READY = 3;
