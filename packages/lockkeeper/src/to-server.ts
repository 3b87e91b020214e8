/**
 * What a client sends: kinds of messages and their elements. Plain constants, which bundlers
 * inline.
 */

import type { Uint } from './pack.js';

export const HELLO = 0;
export const REQUEST = 1;
export const RELEASE = 2;
export const FORCE_RELEASE = 3;
export const END_SESSION = 4;
export const QUERY = 5;
export const PING = 6;
export const BYE = 8;

/** A bit of `features` in Hello. */
export const FEATURE_GOING_AWAY_ENDS = 2;

/** Bits of `flags` in Release. */
export const QUIET = 1;
export const TIMED_OUT = 2;

type Bytes = Uint8Array;
export type WireScope = readonly (readonly [name: Bytes, shared: boolean])[];
/** A request of this session, or of the session with this client id. */
type NestedIn = [clientId: string | null, rid: Uint];

/**
 * `ack` is the greatest number of a numbered message up to which the client has processed all of
 * them.
 */
export type ToServer =
  | [
      typeof HELLO,
      version: number,
      features: number,
      hello: number,
      bucket: string,
      resume: [clientId: string, secret: Bytes] | null,
      ack: Uint,
      token: string | null,
      ttl: number | null,
      owner: string | null,
    ]
  | [
      typeof REQUEST,
      ack: Uint,
      rid: Uint,
      WireScope,
      flags: number,
      nestedIn: NestedIn | null,
      info: string | null,
    ]
  | [typeof RELEASE, ack: Uint, rid: Uint, flags: number]
  | [typeof FORCE_RELEASE, ack: Uint, rid: Uint, name: Bytes]
  | [typeof END_SESSION, ack: Uint, rid: Uint, clientId: string]
  | [typeof QUERY, ack: Uint, rid: Uint, name: Bytes | null, deadlocks: boolean]
  | [typeof PING, ack: Uint, seq: number]
  | [typeof BYE, ack: Uint];
