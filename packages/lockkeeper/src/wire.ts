/**
 * The messages of the protocol (`docs/protocol.md`), as arrays: just what is in MessagePack. The first element says
 * which message it is.
 */

import { Malformed, pack, unpack, type Uint, type Value } from './pack.js';

export const VERSION = 1;

/** What a client says. */
export const Say = {
  HELLO: 0,
  REQUEST: 1,
  RELEASE: 2,
  ABORT: 3,
  FORCE_RELEASE: 4,
  QUERY: 5,
  RECLAIM: 6,
  READY: 7,
  PING: 8,
  BYE: 9,
  HEIR: 10,
} as const;

type Rid = number;
type Bytes = Uint8Array;
export type WireScope = (readonly [name: Bytes, shared: boolean])[];
export type Claim = [token: Uint, receipt: Bytes] | [ticket: Uint] | [null];

export type ToServer =
  | [typeof Say.HELLO, version: number, bucket: string, [id: string, secret: Bytes] | null, token: string | null]
  | [typeof Say.REQUEST, Rid, WireScope, flags: number, nestedIn: Rid | null, info: string | null]
  | [typeof Say.RELEASE, Rid]
  | [typeof Say.ABORT, Rid, timedOut: boolean]
  | [typeof Say.FORCE_RELEASE, Rid, name: Bytes]
  | [typeof Say.QUERY, Rid, name: Bytes | null, deadlocks: boolean]
  | [typeof Say.RECLAIM, Rid, WireScope, info: string | null, Claim]
  | [typeof Say.READY | typeof Say.PING | typeof Say.BYE]
  | [typeof Say.HEIR, pid: number];

/** What a daemon says. */
export const Hear = {
  WELCOME: 0,
  GRANTED: 1,
  QUEUED: 2,
  UNAVAILABLE: 3,
  RELEASED: 4,
  ABORTED: 5,
  BROKEN: 6,
  REFUSED: 7,
  SNAPSHOT: 8,
  PONG: 9,
  GOODBYE: 10,
  DEADLOCKED: 11,
} as const;

/** One name of one request. It is held if it has a token. */
export type WireEntry = [
  name: Bytes,
  shared: boolean,
  clientId: string,
  ticket: Uint,
  token: Uint | null,
  info: string | null,
  since: Uint,
  nestedIn: Uint | null,
  stole: boolean,
  pid: Uint | null,
];

export type WireDeadlock = [words: string, cycle: [ticket: Uint, clientId: string, waitsFor: Bytes | null][]];

/** A rid that is a BigInt was never said by this side. */
export type ToClient =
  | [typeof Hear.WELCOME, version: Uint, clientId: string, secret: Bytes, ttl: Uint, resumed: boolean]
  | [typeof Hear.GRANTED, rid: Uint, token: Uint, receipt: Bytes]
  | [typeof Hear.QUEUED, rid: Uint, ticket: Uint]
  | [typeof Hear.UNAVAILABLE | typeof Hear.RELEASED | typeof Hear.ABORTED, rid: Uint]
  | [typeof Hear.BROKEN, rid: Uint, cause: 0 | 1]
  | [typeof Hear.REFUSED, rid: Uint, code: Uint, words: string]
  | [typeof Hear.SNAPSHOT, rid: Uint, entries: WireEntry[], deadlocks: WireDeadlock[], lastToken: Uint]
  | [typeof Hear.PONG]
  | [typeof Hear.GOODBYE, code: Uint, words: string]
  | [typeof Hear.DEADLOCKED, rid: Uint, WireDeadlock];

export function encode(message: ToServer): Uint8Array<ArrayBuffer> {
  return pack(message);
}

/** Reads what a daemon says. Throws `Malformed` if it is no message. */
export function decode(bytes: Uint8Array): ToClient {
  const message = unpack(bytes);
  const shape = Array.isArray(message) ? shapes[message[0] as number] : undefined;
  if (shape === undefined) throw new Malformed('no such message');
  if (!shape(message)) throw new Malformed('a message with a wrong number or type of elements');
  return message as unknown as ToClient;
}

type Shape = (value: Value) => boolean;

const uint: Shape = (value) => typeof value === 'number' || typeof value === 'bigint';
const bool: Shape = (value) => typeof value === 'boolean';
const text: Shape = (value) => typeof value === 'string';
const bytes: Shape = (value) => value instanceof Uint8Array;
const seal: Shape = (value) => value instanceof Uint8Array && value.length === 16;
const cause: Shape = (value) => value === 0 || value === 1;
const orNil = (shape: Shape): Shape => (value) => value === null || shape(value);
const list = (shape: Shape): Shape => (value) => Array.isArray(value) && value.every(shape);
const tuple = (...shapes: Shape[]): Shape => (value) =>
  Array.isArray(value) && value.length === shapes.length && shapes.every((shape, i) => shape(value[i]));

const entry = tuple(bytes, bool, text, uint, orNil(uint), orNil(text), uint, orNil(uint), bool, orNil(uint));

const deadlock = tuple(text, list(tuple(uint, text, orNil(bytes))));

/** By the number of the message. */
const shapes: Shape[] = [
  tuple(uint, uint, text, seal, uint, bool),
  tuple(uint, uint, uint, seal),
  tuple(uint, uint, uint),
  tuple(uint, uint),
  tuple(uint, uint),
  tuple(uint, uint),
  tuple(uint, uint, cause),
  tuple(uint, uint, uint, text),
  tuple(uint, uint, list(entry), list(deadlock), uint),
  tuple(uint),
  tuple(uint, uint, text),
  tuple(uint, uint, deadlock),
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
