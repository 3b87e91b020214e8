/**
 * The messages of the protocol, version 2 (`docs/protocol.md`), as arrays: just what is in MessagePack. The first element
 * is the kind of the message. Elements after those that are known are ignored, so a later version can add some.
 */

import { Malformed, pack, unpack, type Uint, type Value } from './pack.js';

export const VERSION = 2;

/** The WebSocket subprotocol. */
export const SUBPROTOCOL = 'lockkeeper.v2';

/** The longest message that a server reads. */
export const MAX_MESSAGE = 2 ** 20;

/** Bits of `features` in Hello. */
export const Feature = { FIFO: 1, GOING_AWAY_ENDS: 2 } as const;

/** Kinds of messages that a client sends. */
export const Send = {
  HELLO: 0,
  REQUEST: 1,
  RELEASE: 2,
  FORCE_RELEASE: 3,
  END_SESSION: 4,
  QUERY: 5,
  PING: 6,
  CONFIRM: 7,
  BYE: 8,
} as const;

/** Bits of `flags` in Release. */
export const EndFlag = { QUIET: 1, TIMED_OUT: 2 } as const;

type Bytes = Uint8Array;
export type WireScope = readonly (readonly [name: Bytes, shared: boolean])[];
/** A request of this session, or of the session with this client id. */
type NestedIn = [clientId: string | null, rid: Uint];

/** `ack` is the greatest number of a numbered message up to which the client has processed all of them. */
export type ToServer =
  | [
      typeof Send.HELLO,
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
      typeof Send.REQUEST,
      ack: Uint,
      rid: Uint,
      WireScope,
      flags: number,
      nestedIn: NestedIn | null,
      info: string | null,
    ]
  | [typeof Send.RELEASE, ack: Uint, rid: Uint, flags: number]
  | [typeof Send.FORCE_RELEASE, ack: Uint, rid: Uint, name: Bytes]
  | [typeof Send.END_SESSION, ack: Uint, rid: Uint, clientId: string]
  | [typeof Send.QUERY, ack: Uint, rid: Uint, name: Bytes | null, deadlocks: boolean]
  | [typeof Send.PING, ack: Uint, seq: number]
  | [typeof Send.CONFIRM | typeof Send.BYE, ack: Uint];

/** Kinds of messages that a server sends. */
export const Receive = {
  WELCOME: 0,
  LISTED: 1,
  SYNCED: 2,
  GRANTED: 3,
  QUEUED: 4,
  UNAVAILABLE: 5,
  RELEASED: 6,
  BROKEN: 7,
  OUTCOME: 8,
  REFUSED: 9,
  DEADLOCKED: 10,
  SNAPSHOT: 11,
  PONG: 12,
  FIFO: 13,
  CONFIRMED: 14,
  GOODBYE: 15,
} as const;

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
      typeof Receive.WELCOME,
      version: Uint,
      features: Uint,
      number: Uint,
      clientId: string,
      secret: Bytes,
      ttl: Uint,
      resumed: boolean,
      lastRid: Uint,
    ]
  | [typeof Receive.LISTED, WireListed[]]
  | [typeof Receive.SYNCED | typeof Receive.FIFO | typeof Receive.CONFIRMED]
  | [typeof Receive.GRANTED, rid: Uint, token: Uint]
  | [typeof Receive.QUEUED, rid: Uint, arrival: Uint]
  | [typeof Receive.UNAVAILABLE | typeof Receive.RELEASED, rid: Uint]
  | [typeof Receive.BROKEN, number: Uint, rid: Uint, cause: 0 | 1, by: string | null]
  | [typeof Receive.OUTCOME, number: Uint, rid: Uint, count: Uint]
  | [typeof Receive.REFUSED, rid: Uint, code: Uint, message: string]
  | [typeof Receive.DEADLOCKED, rid: Uint, WireDeadlock]
  | [typeof Receive.SNAPSHOT, rid: Uint, WireEntry[], WireDeadlock[], lastToken: Uint, more: boolean]
  | [typeof Receive.PONG, seq: Uint]
  | [typeof Receive.GOODBYE, code: Uint, message: string];

export function encode(message: ToServer): Uint8Array<ArrayBuffer> {
  return pack(message);
}

/** Reads what a server sends. Throws `Malformed` if it is no message. */
export function decode(bytes: Uint8Array): ToClient {
  const message = unpack(bytes);
  const [kind, ...rest] = Array.isArray(message) ? (message as Value[]) : [];
  const shape = typeof kind === 'number' ? shapes[kind] : undefined;
  if (shape === undefined) throw new Malformed('no such message');
  if (!shape(rest)) throw new Malformed('a message with missing or wrong elements');
  return message as unknown as ToClient;
}

type Shape = (value: Value) => boolean;

const uint: Shape = (value) => typeof value === 'number' || typeof value === 'bigint';
const bool: Shape = (value) => typeof value === 'boolean';
const text: Shape = (value) => typeof value === 'string';
const bytes: Shape = (value) => value instanceof Uint8Array;
const secret: Shape = (value) => value instanceof Uint8Array && value.length === 16;
const cause: Shape = (value) => value === 0 || value === 1;
const orNil = (shape: Shape): Shape => (value) => value === null || shape(value);
const list = (shape: Shape): Shape => (value) => Array.isArray(value) && value.every(shape);
/** These elements at least. */
const begins = (...shapes: Shape[]): Shape => (value) =>
  Array.isArray(value) && value.length >= shapes.length && shapes.every((shape, i) => shape(value[i]));
const tuple = (...shapes: Shape[]): Shape => (value) =>
  Array.isArray(value) && value.length === shapes.length && begins(...shapes)(value);

const listed = tuple(uint, uint, orNil(uint));
const entry = tuple(bytes, bool, text, uint, orNil(uint), orNil(text), uint, orNil(uint), bool, orNil(text));
const deadlock = tuple(text, list(tuple(uint, text, orNil(bytes))));

/** What follows the kind, by kind. */
const shapes: Shape[] = [
  begins(uint, uint, uint, text, secret, uint, bool, uint),
  begins(list(listed)),
  begins(),
  begins(uint, uint),
  begins(uint, uint),
  begins(uint),
  begins(uint),
  begins(uint, uint, cause, orNil(text)),
  begins(uint, uint, uint),
  begins(uint, uint, text),
  begins(uint, deadlock),
  begins(uint, list(entry), list(deadlock), uint, bool),
  begins(uint),
  begins(),
  begins(),
  begins(uint, text),
];

const encoder = new TextEncoder();
const decoder = new TextDecoder('utf-8', { ignoreBOM: true });

/** The bytes of a name: WTF-8, so that two strings are equal if and only if their bytes are. */
export function toName(name: string): Uint8Array {
  if (!/\p{Surrogate}/u.test(name)) return encoder.encode(name);
  const parts = name.split(/(\p{Surrogate})/u).flatMap((part, i) => {
    const unit = part.charCodeAt(0);
    return i % 2 === 0 ? [...encoder.encode(part)] : [0xed, 0x80 | ((unit >> 6) & 0x3f), 0x80 | (unit & 0x3f)];
  });
  return Uint8Array.from(parts);
}

/** The string that a name's bytes spell. What no string spells becomes U+FFFD. */
export function fromName(bytes: Uint8Array): string {
  let name = '';
  let start = 0;
  for (let at = bytes.indexOf(0xed); at >= 0; at = bytes.indexOf(0xed, at + 1)) {
    const [second = 0, third = 0] = bytes.subarray(at + 1, at + 3);
    // In UTF-8, these never follow each other.
    if ((second & 0xe0) !== 0xa0 || (third & 0xc0) !== 0x80) continue;
    const surrogate = 0xd000 | ((second & 0x3f) << 6) | (third & 0x3f);
    name += decoder.decode(bytes.subarray(start, at)) + String.fromCharCode(surrogate);
    start = at + 3;
  }
  return name + decoder.decode(bytes.subarray(start));
}
