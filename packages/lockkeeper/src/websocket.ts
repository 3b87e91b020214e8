/** The lock manager of a server on a network. */

import { later, now, process, watchPage } from './host.js';
import { newManager, type LockManager } from './manager.js';
import { observer } from './observer.js';
import { Remote } from './remote.js';
import { checkMembers } from './webidl.js';
import { WebSocketSession, type Runtime, type Socket } from './websocket-session.js';

export interface ConnectOptions {
  /** The bucket whose locks are wanted: managers of different buckets share nothing. */
  bucket?: string;
  /** Credentials, for a server on a network: a token, or a function that is called for each connection and gives one. */
  token?: string | (() => string | Promise<string>);
  /** The class to connect with, where the runtime has none: `WebSocket` of the package `ws`. */
  WebSocket?: new (url: string, protocol: string) => { close(): void; send(data: Uint8Array): void };
}

/** The lock manager of the daemon at `url` (`ws://host:port/` or `wss://…`). */
export async function connect(url: string, options?: ConnectOptions): Promise<LockManager> {
  const remote = overWebSocket(`${url}`, options);
  await remote.opened;
  return newManager(remote);
}

export function overWebSocket(url: string, options: ConnectOptions = {}): Remote {
  checkMembers('connect(url, options)', options, ['bucket', 'token', 'WebSocket']);
  const { bucket = 'default', token, WebSocket = (globalThis as ConnectOptions).WebSocket } = options;
  if (!/^wss?:/i.test(url)) throw new TypeError(`"${url}" is no URL of a daemon, which starts with ws: or wss:`);
  if (WebSocket === undefined) {
    throw new DOMException(
      'no WebSocket here: use Node 22 or later, or that of the package ws: connect(url, { WebSocket })',
      'NotSupportedError',
    );
  }
  const credentials = { bucket: `${bucket}`, token: token ?? null };
  const runtime: Runtime = {
    open(url, protocol) {
      const socket = new WebSocket(url, protocol) as Socket;
      observer.connecting?.(socket, protocol);
      return socket;
    },
    now,
    later,
    watchPage,
    // So do browsers.
    goingAwayEnds: process === undefined,
  };
  return new Remote((listener) => new WebSocketSession(listener, url, credentials, runtime));
}
