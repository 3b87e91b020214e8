/** Which lock manager a URL means: one over WebSocket, or this machine's. */

import { AddonSession } from './addon-session.js';
import { notSupported } from './errors.js';
import { builtin } from './host.js';
import type { LockManager } from './manager.js';
import { Remote } from './remote.js';
import { urlsOf } from './socket-list.js';
import { checkMembers } from './webidl.js';
import { MEMBERS, overWebSocket, whenOpened, type ConnectOptions } from './websocket.js';

/**
 * The lock manager of the daemon at `url`: `unix:/path/to/daemon.sock`, `ws://host:port/` or `wss://…`. Without one, that
 * which `LOCKKEEPER_URL` names, or else this user's on this machine, which is started if none runs; then `LOCKKEEPER_BUCKET`
 * and `LOCKKEEPER_TOKEN_FILE` count as they do for the command. A token is never sent to a server that its file was not set for.
 * Of several URLs, of the daemons of a fleet, the next one is used when one fails; they start with `ws:` or `wss:`.
 */
export async function connect(url?: string | readonly string[], options?: ConnectOptions): Promise<LockManager> {
  return whenOpened(() => reach(url, options), options);
}

export function reach(url?: string | readonly string[], options: ConnectOptions = {}): Remote {
  checkMembers('connect(url, options)', options, MEMBERS);
  const given = url === undefined ? variable('LOCKKEEPER_URL') : url;
  const urls = given === undefined ? [] : urlsOf(given);
  const named = urls[0];
  const all = url === undefined ? { ...fromEnvironment(), ...defined(options) } : options;
  if (urls.length > 1 || (named !== undefined && /^wss?:/i.test(named))) return overWebSocket(urls, all);
  if (options.token !== undefined) {
    throw new TypeError('a token is for ws: and wss: URLs. On a Unix socket, the permissions of its file say who may connect');
  }
  if (options.retry) throw new TypeError('retry is for ws: and wss: URLs. The daemon of a machine is started if none runs');
  if (process.platform === 'win32') {
    throw notSupported(
      "on Windows there is no daemon's socket: use connect('ws://127.0.0.1:7420/') with a daemon that listens there, " +
        'or `locks` for the threads of this process',
    );
  }
  const { bucket = 'default' } = all;
  return new Remote((listener) => new AddonSession(listener, named, `${bucket}`));
}

function fromEnvironment(): ConnectOptions {
  const bucket = variable('LOCKKEEPER_BUCKET');
  const file = variable('LOCKKEEPER_TOKEN_FILE');
  return {
    ...(bucket !== undefined && { bucket }),
    // It is read for each connection: tokens expire.
    ...(file !== undefined && {
      token: async () => (await builtin('node:fs').promises.readFile(file, 'utf8')).trim(),
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
