/**
 * The messages of the protocol, version 2 (`docs/protocol.md`), as arrays: just what is in MessagePack. The first element
 * is the kind of the message. Elements after those that are known are ignored, so a later version can add some.
 */

import { encoder, isBytes, Malformed, newDecoder, pack, unpack, type Value } from './pack.js';
import type { ToClient } from './to-client.js';
import type { ToServer } from './to-server.js';

export const VERSION = 2;

/** The WebSocket subprotocol. */
export const SUBPROTOCOL = 'lockkeeper.v2';

/** The longest message that a server reads. */
export const MAX_MESSAGE = 2 ** 20;

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

export type Shape = (value: Value) => boolean;

export const uint: Shape = (value) => typeof value === 'number' || typeof value === 'bigint';
export const bool: Shape = (value) => typeof value === 'boolean';
const text: Shape = (value) => typeof value === 'string';
const secret: Shape = (value) => isBytes(value) && value.length === 16;
const cause: Shape = (value) => value === 0 || value === 1;
const orNil = (shape: Shape): Shape => (value) => value === null || shape(value);
export const list = (shape: Shape): Shape => (value) => Array.isArray(value) && value.every(shape);
/** These elements at least. */
export const begins = (...shapes: Shape[]): Shape => (value) =>
  Array.isArray(value) && value.length >= shapes.length && shapes.every((shape, i) => shape(value[i]));
const tuple = (...shapes: Shape[]): Shape => (value) =>
  Array.isArray(value) && value.length === shapes.length && begins(...shapes)(value);

const listed = tuple(uint, uint, orNil(uint));
export const entry = tuple(isBytes, bool, text, uint, orNil(uint), orNil(text), uint, orNil(uint), bool, orNil(text));
const deadlock = tuple(text, list(tuple(uint, text, orNil(isBytes))));

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

const decoder = newDecoder(false);

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
