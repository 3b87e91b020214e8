/**
 * What a server sends: kinds of messages and their elements. Plain constants, which bundlers
 * inline.
 */

import type { Uint } from './pack.js';

export const WELCOME = 0;
export const LISTED = 1;
export const SYNCED = 2;
export const GRANTED = 3;
export const QUEUED = 4;
export const UNAVAILABLE = 5;
export const RELEASED = 6;
export const BROKEN = 7;
export const OUTCOME = 8;
export const REFUSED = 9;
export const DEADLOCKED = 10;
export const SNAPSHOT = 11;
export const PONG = 12;
export const GOODBYE = 15;

type Bytes = Uint8Array;

/** A live request of a resumed session. It is held if it has a token. */
export type WireListed = [rid: Uint, arrival: Uint, token: Uint | null];

/** One name of one request. It is held if it has a token. */
export type WireEntry = [
  name: Bytes,
  shared: boolean,
  clientId: string,
  arrival: Uint,
  token: Uint | null,
  info: string | null,
  since: Uint,
  nestedIn: Uint | null,
  stole: boolean,
  owner: string | null,
];

export type WireDeadlock = [words: string, cycle: [arrival: Uint, clientId: string, waitsFor: Bytes | null][]];

/** A rid that is a BigInt was never sent by this side. */
export type ToClient =
  | [
      typeof WELCOME,
      version: Uint,
      features: Uint,
      number: Uint,
      clientId: string,
      secret: Bytes,
      ttl: Uint,
      resumed: boolean,
      lastRid: Uint,
    ]
  | [typeof LISTED, WireListed[]]
  | [typeof SYNCED]
  | [typeof GRANTED, rid: Uint, token: Uint]
  | [typeof QUEUED, rid: Uint, arrival: Uint]
  | [typeof UNAVAILABLE | typeof RELEASED, rid: Uint]
  | [typeof BROKEN, number: Uint, rid: Uint, cause: 0 | 1, by: string | null]
  | [typeof OUTCOME, number: Uint, rid: Uint, count: Uint]
  | [typeof REFUSED, rid: Uint, code: Uint, message: string]
  | [typeof DEADLOCKED, rid: Uint, WireDeadlock]
  | [typeof SNAPSHOT, rid: Uint, WireEntry[], WireDeadlock[], lastToken: Uint, more: boolean]
  | [typeof PONG, seq: Uint]
  | [typeof GOODBYE, code: Uint, message: string];
