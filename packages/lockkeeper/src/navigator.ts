/**
 * `navigator.locks` in a browser, from a daemon on a network: for windows and for dedicated, shared
 * and service workers. It is available once this script has run; requests wait for the connection.
 *
 *     <script src="navigator.min.js" data-url="wss://locks.example" data-token-url="/lock-token"></script>
 *
 * Attributes of the script, or the global `lockkeeper`, have the daemon's URL. There is no fallback
 * to the native locks, because they would not exclude other devices.
 */

import { expose } from './expose.js';
import { newManager, type LockManager } from './manager.js';
import { Remote, type Listener, type Session } from './remote.js';
import { sessionAt, urlsOf, type ConnectOptions } from './websocket.js';

/**
 * The attributes of the script tag, with `data-` before them; or the members of the global
 * `lockkeeper`.
 */
export interface NavigatorOptions extends Pick<ConnectOptions, 'bucket' | 'token'> {
  /** One, or those of the daemons of a fleet, with commas between them in an attribute. */
  url?: string | readonly string[];
  /** Where a token is fetched for each connection. */
  tokenUrl?: string;
  /** Wait for a daemon that is not there yet. As an attribute, whatever its value. */
  retry?: boolean | string;
}

/** What this needs of a window or a worker. */
const scope = globalThis as unknown as {
  navigator: object;
  isSecureContext: boolean;
  origin: string;
  location: { ancestorOrigins?: ArrayLike<string> };
  parent?: unknown;
  document?: { currentScript: { dataset?: NavigatorOptions } | null; defaultView: object | null; referrer: string };
  indexedDB: Databases;
  StorageBucket?: { prototype: object };
  lockkeeper?: NavigatorOptions;
};

/** What `bucket` is of pages that are not embedded by another site. */
const FIRST_PARTY = 'default';

/** How often a worker looks for the name, and how many milliseconds apart. */
const LOOKS = 40;
const APART = 50;

const { document } = scope;
const attributes = document?.currentScript?.dataset;
const options = (): NavigatorOptions => scope.lockkeeper ?? attributes ?? {};

// The interfaces are [SecureContext].
if (scope.isSecureContext) {
  const remote = remoteOf();
  expose(scope.navigator, newManager(remote));
  if (scope.StorageBucket) addToBuckets(scope.StorageBucket.prototype);
  // A module that imports this one can set the global first.
  queueMicrotask(() => {
    if (options().url !== undefined && scope.origin !== 'null') remote.opened.catch(() => {});
  });
}

/**
 * Storage buckets have separate locks (Storage Buckets API). Their names are below that of the
 * page's bucket.
 */
function addToBuckets(prototype: object): void {
  const managers = new Map<string, LockManager>();
  const get = function (this: { name: string }): LockManager {
    const { name } = this;
    if (!managers.has(name)) managers.set(name, newManager(remoteOf(` ${name}`)));
    return managers.get(name)!;
  };
  Object.defineProperty(prototype, 'locks', { get, enumerable: true, configurable: true });
}

function remoteOf(below = ''): Remote {
  const remote = new Remote((listener) => reach(below)(listener));
  remote.check = check;
  return remote;
}

/** §3.2.1, steps 2 to 4. */
function check(): void {
  if (document && !document.defaultView) fail('the document is not fully active', 'InvalidStateError');
  if (scope.origin === 'null') fail('an opaque origin has no locks', 'SecurityError');
}

function fail(message: string, name: string): never {
  throw new DOMException(message, name);
}

function reach(below: string): (listener: Listener) => Session {
  const { url, token, tokenUrl, bucket, retry = false } = options();
  if (url === undefined) throw new TypeError('no data-url, and no lockkeeper.url');
  const credentials = tokenUrl === undefined ? token : () => fetchToken(tokenUrl);
  const partition = bucket ?? (document ? partitionOfWindow() : open());
  const named = Promise.resolve(partition).then((name = FIRST_PARTY) => name + below);
  return sessionAt(urlsOf(url), { token: credentials, retry: retry !== false } as ConnectOptions, named);
}

async function fetchToken(url: string): Promise<string> {
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status}`);
  return response.text();
}

/**
 * Browsers partition storage by the top-level site, and by whether an ancestor is of another site.
 * So do the buckets. A page has no list of public suffixes, so sites are compared by the last two
 * labels of the host. These never separate hosts that a browser treats as one site, and take two
 * sites below a suffix of two labels (`co.uk`) for one. Where a frame cannot see its ancestors
 * (Firefox), the referrer is used, which is the embedding page until the frame navigates. So the
 * name that the first page of this storage partition has stored takes precedence.
 */
function partitionOfWindow(): string | Promise<string> {
  const seen = scope.parent === scope ? [] : scope.location.ancestorOrigins;
  const ancestors = Array.from(seen ?? [document!.referrer || 'null'], siteOf);
  const own = siteOf(scope.origin);
  const partition = ancestors.some((site) => site !== own) ? ancestors.at(-1)! : FIRST_PARTY;
  // For workers too, which cannot see it: a database of the same partition, with that name in it.
  const left = open(partition);
  return seen ? partition : left.then((name = partition) => name);
}

function siteOf(origin: string): string {
  // One that is opaque is "null".
  if (!origin.includes(':')) return origin;
  const { protocol, hostname } = new URL(origin);
  // All of an address, or the last two labels of a name.
  return `${protocol}//${/^.*\d$|[^.]+\.?[^.]*$/.exec(hostname)}`;
}

/** The part of the interface that is used here. */
interface Databases {
  open(name: string): {
    result: { objectStoreNames: ArrayLike<string>; createObjectStore(name: string): void; close(): void };
    transaction: { abort(): void };
    onupgradeneeded: () => void;
    onsuccess: () => void;
    onerror: () => void;
  };
}

/**
 * The name in the database, which is made with that name if there is none. A worker, which has no
 * name, waits for a window to leave it, for two seconds: the page may have started it before it ran
 * this. Without storage, there is no partition.
 */
function open(name?: string, looks = LOOKS): Promise<string | undefined> {
  return new Promise<string | undefined>((resolve) => {
    const request = scope.indexedDB.open('lockkeeper');
    request.onupgradeneeded = () =>
      name === undefined ? request.transaction.abort() : request.result.createObjectStore(name);
    request.onsuccess = () => {
      resolve(request.result.objectStoreNames[0]);
      // Who keeps it open could keep it from being deleted.
      request.result.close();
    };
    request.onerror = () => {
      setTimeout(() => resolve(looks > 0 ? open(name, looks - 1) : undefined), APART);
    };
  }).catch(() => undefined);
}
