/** The messages of the protocol, with those that only subscribers have (`docs/protocol.md`). */

import { Malformed, unpack, type Uint } from '../../lockkeeper/src/pack.js';
import type { ToClient as Common, WireEntry } from '../../lockkeeper/src/to-client.js';
import type { ToServer as CommonToServer } from '../../lockkeeper/src/to-server.js';
import { begins, bool, decode as decodeCommon, entry, list, uint } from '../../lockkeeper/src/wire.js';

export const SUBSCRIBE = 9;
export const CHANGES = 16;

export type ToServer = CommonToServer | [typeof SUBSCRIBE, ack: Uint, rid: Uint];
export type ToClient =
  | Common
  | [typeof CHANGES, rid: Uint, entries: WireEntry[], gone: Uint[], lastToken: Uint, more: boolean];

const changes = begins(uint, list(entry), list(uint), uint, bool);

/** Reads what a server sends. Throws `Malformed` if it is no message. */
export function decode(bytes: Uint8Array): ToClient {
  // The kind stands after the head of the array, of six elements or a few more.
  if (bytes[1] !== CHANGES) return decodeCommon(bytes);
  const message = unpack(bytes);
  if (!Array.isArray(message) || message[0] !== CHANGES) return decodeCommon(bytes);
  if (!changes(message.slice(1))) throw new Malformed('a message with missing or wrong elements');
  return message as unknown as ToClient;
}
