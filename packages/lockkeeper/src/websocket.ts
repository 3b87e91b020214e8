/** The lock manager of a server on a network. */

import { later, now, process, watchPage } from './host.js';
import { newManager, type LockManager } from './manager.js';
import { observer } from './observer.js';
import { Remote, type Listener, type Session } from './remote.js';
import { toOneOf, urlsOf, type SocketClass } from './socket-list.js';
import { addAbortAlgorithm, checkMembers, isAborted, reasonOf, toAbortSignal } from './webidl.js';
import { WebSocketSession, type Credentials, type Runtime, type Socket } from './websocket-session.js';

export interface ConnectOptions {
  /** The bucket whose locks are wanted: managers of different buckets share nothing. */
  bucket?: string;
  /**
   * Credentials, for a server on a network: a token, or a function that is called for each
   * connection and gives one.
   */
  token?: string | (() => string | Promise<string>);
  /**
   * Whether the token may be sent without TLS to another machine: whoever is on the way can read
   * it, and use it.
   */
  insecure?: boolean;
  /** The class to connect with, where the runtime has none: `WebSocket` of the package `ws`. */
  WebSocket?: new (url: string, protocol: string) => { close(): void; send(data: Uint8Array): void };
  /** Gives up connecting. Once there is a session, it does nothing. */
  signal?: AbortSignal;
  /** Waits for a server that is not there yet, rather than reject. */
  retry?: boolean;
}

export const MEMBERS = ['bucket', 'token', 'insecure', 'WebSocket', 'signal', 'retry'];

/**
 * The lock manager of the daemon at `url` (`ws://host:port/` or `wss://…`). Of several daemons of a
 * fleet, the next one is used when one fails.
 */
export async function connect(url: string | readonly string[], options?: ConnectOptions): Promise<LockManager> {
  return whenOpened(() => overWebSocket(urlsOf(url), options), options);
}

/** The manager of a session, once it is open. */
export async function whenOpened(reach: () => Remote, options?: ConnectOptions): Promise<LockManager> {
  const signal = options?.signal;
  if (signal && isAborted(toAbortSignal(signal))) throw reasonOf(signal);
  const remote = reach();
  const { opened } = remote;
  let stop: (() => void) | undefined;
  try {
    await (signal
      ? new Promise((resolve, reject) => {
          stop = addAbortAlgorithm(signal, () => {
            reject(reasonOf(signal));
            void remote.close();
          });
          opened.then(resolve, reject);
        })
      : opened);
  } finally {
    stop?.();
  }
  return newManager(remote);
}

export function overWebSocket(urls: string[], options: ConnectOptions = {}): Remote {
  checkMembers('connect(url, options)', options, MEMBERS);
  for (const url of urls) observer.checkSecrecy?.(url, options);
  if (urls.length === 1) return new Remote(sessionAt(urls[0]!, options));
  for (const url of urls) {
    if (!/^wss?:/i.test(url)) throw new TypeError(`"${url}" does not go with other URLs: it does not start with ws: or wss:`);
  }
  const { WebSocket = (globalThis as ConnectOptions).WebSocket } = options;
  const all = WebSocket && { ...options, WebSocket: toOneOf(urls, WebSocket as SocketClass) };
  return new Remote(sessionAt(urls.map((url) => new URL(url).href).join(), all ?? options));
}

/** How to open a session. `partition` tells a bucket that is not known yet. */
export function sessionAt(
  url: string,
  options: ConnectOptions,
  partition?: Promise<string>,
): (listener: Listener) => Session {
  const { bucket = 'default', token = null, retry = false } = options;
  const { WebSocket = (globalThis as ConnectOptions).WebSocket } = options;
  if (!/^wss?:/i.test(url)) throw new TypeError(`"${url}" does not start with ws: or wss:`);
  // Browsers have one.
  if (process && WebSocket === undefined) {
    throw new DOMException(
      'no WebSocket here: use Node 22 or later, or that of the package ws: connect(url, { WebSocket })',
      'NotSupportedError',
    );
  }
  const credentials: Credentials = { bucket: `${bucket}`, token, retry };
  if (partition) {
    credentials.token = async () => {
      credentials.bucket = await partition;
      return typeof token === 'function' ? token() : token;
    };
  }
  let blocked: string | undefined;
  // This event comes before the socket's own, which says nothing.
  (globalThis as Partial<EventTarget>).addEventListener?.('securitypolicyviolation', (event) => {
    if ((event as Event & { blockedURI: string }).blockedURI === new URL(url).href) blocked = BLOCKED;
  });
  const runtime: Runtime = {
    open(url, protocol) {
      const socket = new WebSocket!(url, protocol) as Socket;
      observer.connecting?.(socket, protocol);
      return socket;
    },
    blocked: () => blocked,
    now,
    later,
    watchPage,
    // So do browsers.
    goingAwayEnds: process === undefined,
  };
  return (listener) => new WebSocketSession(listener, url, credentials, runtime);
}

const BLOCKED = "the page's Content-Security-Policy (connect-src) does not allow it";
