/**
 * The messages of the protocol, version 2 (`docs/protocol.md`), as arrays, exactly as in
 * MessagePack. The first element is the kind of the message. Elements after the known ones are
 * ignored, so a later version can add some.
 */

import { isBytes, Malformed, newDecoder, pack, remembering, unpack, unpackAll, type Value } from './pack.js';
import type { ToClient } from './to-client.js';
import type { ToServer } from './to-server.js';

export const VERSION = 2;

/** The WebSocket subprotocol. */
export const SUBPROTOCOL = 'lockkeeper.v2';

/** The longest message that a server reads, and the longest frame with several. */
export const MAX_MESSAGE = 2 ** 20;
export const MAX_BATCH = 2 ** 16;

export function encode(message: ToServer): Uint8Array<ArrayBuffer> {
  return pack(message);
}

/** Reads one message of a server. Throws `Malformed` if it is none. */
export function decode(bytes: Uint8Array): ToClient {
  return check(unpack(bytes));
}

/** Reads a frame: messages one after the other. */
export function decodeAll(bytes: Uint8Array): ToClient[] {
  return unpackAll(bytes).map(check);
}

export function check(message: Value): ToClient {
  const shape = Array.isArray(message) && typeof message[0] === 'number' ? shapes[message[0]] : undefined;
  if (!shape?.(message)) throw new Malformed('no such message');
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
const begins = (...shapes: Shape[]): Shape => (value) => {
  if (!Array.isArray(value) || value.length < shapes.length) return false;
  for (let i = 0; i < shapes.length; i++) if (!shapes[i]!(value[i])) return false;
  return true;
};
const tuple = (...shapes: Shape[]): Shape => {
  const elements = begins(...shapes);
  return (value) => elements(value) && (value as Value[]).length === shapes.length;
};
/** Its kind, and these elements at least. */
export const message = (...shapes: Shape[]): Shape => begins(uint, ...shapes);

const listed = tuple(uint, uint, orNil(uint));
export const entry = tuple(isBytes, bool, text, uint, orNil(uint), orNil(text), uint, orNil(uint), bool, orNil(text));
const deadlock = tuple(text, list(tuple(uint, text, orNil(isBytes))));

/** Messages by their kind. */
const shapes: Shape[] = [
  message(uint, uint, uint, text, secret, uint, bool, uint),
  message(list(listed)),
  message(),
  message(uint, uint),
  message(uint, uint),
  message(uint),
  message(uint),
  message(uint, uint, cause, orNil(text)),
  message(uint, uint, uint),
  message(uint, uint, text),
  message(uint, deadlock),
  message(uint, list(entry), list(deadlock), uint, bool),
  message(uint),
  message(),
  message(),
  message(uint, text),
];

const decoder = newDecoder(false);

/** The bytes of a name: two strings are equal if and only if these are. */
export { wtf8 as toName } from './pack.js';

/** The string that a name's bytes spell. What no string spells becomes U+FFFD. */
export function fromName(bytes: Uint8Array): string {
  return nameOf(bytes, 0, bytes.length);
}

const nameOf = remembering((bytes) => {
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
});
