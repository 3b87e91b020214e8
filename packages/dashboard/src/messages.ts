/** The messages of the protocol, with those that only subscribers have (`docs/protocol.md`). */

import { Malformed, unpackAll, type Uint, type Value } from '../../lockkeeper/src/pack.js';
import type { ToClient as Common, WireEntry } from '../../lockkeeper/src/to-client.js';
import type { ToServer as CommonToServer } from '../../lockkeeper/src/to-server.js';
import { bool, check as checkCommon, entry, list, message, uint } from '../../lockkeeper/src/wire.js';

export const SUBSCRIBE = 9;
export const CHANGES = 16;

export type ToServer = CommonToServer | [typeof SUBSCRIBE, ack: Uint, rid: Uint];
export type ToClient =
  | Common
  | [typeof CHANGES, rid: Uint, entries: WireEntry[], gone: Uint[], lastToken: Uint, more: boolean];

const changes = message(uint, list(entry), list(uint), uint, bool);

/**
 * Reads a frame of a server: messages one after the other. Throws `Malformed` if there is something
 * else.
 */
export function decodeAll(bytes: Uint8Array): ToClient[] {
  return unpackAll(bytes).map(check);
}

function check(message: Value): ToClient {
  if (!Array.isArray(message) || message[0] !== CHANGES) return checkCommon(message);
  if (!changes(message)) throw new Malformed('a message with missing or wrong elements');
  return message as unknown as ToClient;
}
