/** The lock manager of a server on a network. */

import { later, now, process, watchPage } from './host.js';
import { newManager, type LockManager } from './manager.js';
import { observer } from './observer.js';
import { Remote, type Listener, type Session } from './remote.js';
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
   * Whether the token may be sent without TLS to another machine, where others on the network can
   * read and use it.
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
  const open = sessionAt(urls, options);
  for (const url of urls) observer.checkSecrecy?.(url, options);
  return new Remote(open);
}

/** How to open a session. `partition` resolves to a bucket that is not known yet. */
export function sessionAt(
  urls: string[],
  options: ConnectOptions,
  partition?: Promise<string>,
): (listener: Listener) => Session {
  const { bucket = 'default', token = null, retry = false } = options;
  const { WebSocket = (globalThis as ConnectOptions).WebSocket } = options;
  // Those that no policy of the page is known to block.
  const hrefs = urls.map(toHref);
  const allowed = new Set(hrefs);
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
  // This event comes before the socket's own, which says nothing.
  const violated = (event: Event): void => void allowed.delete((event as Event & { blockedURI: string }).blockedURI);
  const runtime: Runtime = {
    open(url, protocol) {
      const socket = observer.openUnixSocket?.(url) ?? (new WebSocket!(url, protocol) as Socket);
      observer.connecting?.(socket, protocol);
      return socket;
    },
    blocked: () => (allowed.size === 0 ? BLOCKED : undefined),
    now,
    later,
    watchPage: (left, shown) => watchPage(left, shown, violated),
    // So do browsers.
    goingAwayEnds: process === undefined,
  };
  return (listener) => new WebSocketSession(listener, hrefs, credentials, runtime);
}

/** The URLs of a list, or of a text with commas between them. */
export function urlsOf(url: string | readonly string[]): string[] {
  return `${url}`.split(/,(?=[a-z]+:)/i);
}

/** As an event of the page has it. */
function toHref(url: string): string {
  if (observer.openUnixSocket && url.startsWith('unix:/')) return url;
  try {
    if (/^wss?:/i.test(url)) return new URL(url).href;
  } catch {
    // It has no host, say.
  }
  throw new TypeError(`"${url}" is no ws: or wss: URL`);
}

const BLOCKED = "the page's Content-Security-Policy (connect-src) does not allow it";
