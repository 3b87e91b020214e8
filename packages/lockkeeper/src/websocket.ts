/** The lock manager of a server on a network. */

import { later, now, process, unrefWebSockets, watchPage } from './host.js';
import { newManager, type LockManager } from './manager.js';
import { Remote } from './remote.js';
import { WebSocketSession, type Runtime, type Socket } from './websocket-session.js';

export interface ConnectOptions {
  /** The bucket whose locks are wanted: managers of different buckets share nothing. */
  bucket?: string;
  /** Credentials, for a server on a network: a token, or a function that is called for each connection and gives one. */
  token?: string | (() => string | Promise<string>);
  /** The class to connect with, where the runtime has none: `WebSocket` of the package `ws`. */
  WebSocket?: new (url: string, protocol: string) => Socket;
}

/** The lock manager of the daemon at `url` (`ws://host:port/` or `wss://…`). */
export async function connect(url: string, options?: ConnectOptions): Promise<LockManager> {
  const remote = overWebSocket(`${url}`, options);
  await remote.opened;
  return newManager(remote);
}

export function overWebSocket(url: string, options: ConnectOptions = {}): Remote {
  const { bucket = 'default', token, WebSocket = (globalThis as ConnectOptions).WebSocket } = options;
  if (!/^wss?:/i.test(url)) throw new TypeError(`"${url}" is no address of a daemon: it starts with ws: or wss:`);
  if (WebSocket === undefined) {
    throw new DOMException(
      'there is no WebSocket here: use Node 22 or later, or that of the package ws, as in connect(url, { WebSocket })',
      'NotSupportedError',
    );
  }
  const credentials = { bucket: `${bucket}`, token: token ?? null };
  const runtime: Runtime = {
    open(url, protocol) {
      unrefWebSockets(protocol);
      const socket: Socket & { _socket?: { unref?(): void } } = new WebSocket(url, protocol);
      // That of `ws` shows its own.
      socket.addEventListener('open', () => socket._socket?.unref?.());
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
