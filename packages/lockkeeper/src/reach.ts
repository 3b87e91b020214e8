/** Chooses the lock manager for a URL: one over WebSocket, or this machine's. */

import { AddonSession } from './addon-session.js';
import { notSupported } from './errors.js';
import { builtin } from './host.js';
import type { LockManager } from './manager.js';
import { Remote } from './remote.js';
import { checkMembers } from './webidl.js';
import { MEMBERS, overWebSocket, urlsOf, whenOpened, type ConnectOptions } from './websocket.js';

/**
 * The lock manager of the daemon at `url`: `ws://host:port/`, `wss://…`,
 * `unix:/path/to/daemon.sock`, `machine` (the machine's, for several users) or `user` (this user's
 * own, which is started if none runs). Without one, that which `LOCKKEEPER_URL` names, or else this
 * user's; then `LOCKKEEPER_BUCKET` and `LOCKKEEPER_TOKEN_FILE` count as they do for the command. A
 * token is never sent to a server that its file was not set for. Of several URLs, of the daemons of
 * a fleet, the next one is used when one fails; Unix sockets and WebSockets may be in one list.
 */
export async function connect(url?: string | readonly string[], options?: ConnectOptions): Promise<LockManager> {
  return whenOpened(() => reach(url, options), options);
}

export function reach(url?: string | readonly string[], options: ConnectOptions = {}): Remote {
  checkMembers('connect(url, options)', options, MEMBERS);
  const given = url === undefined ? variable('LOCKKEEPER_URL') : url;
  if (given?.length === 0) throw new TypeError(given === '' ? 'the URL is empty' : 'the list of URLs is empty');
  const urls = given === undefined ? [] : urlsOf(given);
  const all = url === undefined ? { ...fromEnvironment(), ...defined(options) } : options;
  if (urls.some((url) => /^wss?:/i.test(url))) return overWebSocket(urls, all);
  for (const [option, instead] of Object.entries(NOT_LOCAL)) {
    if (options[option as keyof ConnectOptions]) throw new TypeError(`${option} is for ws: and wss: URLs. ${instead}`);
  }
  if (process.platform === 'win32') {
    throw notSupported(
      'on Windows there is no daemon to start, and no socket of one: use connect(url) with the URL of a daemon on another machine, ' +
        "in WSL or in a container, such as 'wss://locks.example/', or `locks` for the threads of this process",
    );
  }
  const { bucket = 'default' } = all;
  const places = urls.length > 0 ? urls.join() : undefined;
  return new Remote((listener) => new AddonSession(listener, places, `${bucket}`));
}

/** The options that a Unix socket has no use for, and why. */
const NOT_LOCAL = {
  token: 'On a Unix socket, the permissions of its file say who may connect',
  insecure: 'What goes over a Unix socket never leaves the machine',
  WebSocket: 'A Unix socket is reached by the addon',
  retry: 'The daemon of a machine is started if none runs',
};

function fromEnvironment(): ConnectOptions {
  const bucket = variable('LOCKKEEPER_BUCKET');
  const file = variable('LOCKKEEPER_TOKEN_FILE');
  return {
    ...(bucket !== undefined && { bucket }),
    // It is read for each connection: tokens expire.
    ...(file !== undefined && {
      // A long line may have been folded, as by an editor or a mail.
      token: async () => (await builtin('node:fs').promises.readFile(file, 'utf8')).replaceAll(/\s/g, ''),
    }),
  };
}

/** One that is empty counts as none. */
function variable(name: string): string | undefined {
  return process.env[name] || undefined;
}

function defined(options: ConnectOptions): ConnectOptions {
  return Object.fromEntries(Object.entries(options).filter(([, value]) => value !== undefined));
}
