/** Which lock manager a URL means: one over WebSocket, or this machine's. */

import { AddonSession } from './addon-session.js';
import { newManager, type LockManager } from './manager.js';
import { Remote } from './remote.js';
import { overWebSocket, type ConnectOptions } from './websocket.js';

/**
 * The lock manager of the daemon at `url`: `unix:/path/to/daemon.sock`, `ws://host:port/` or `wss://…`. Without one, that
 * which `LOCKKEEPER_URL` names, or else this user's on this machine, which is started if none runs.
 */
export async function connect(url?: string, options?: ConnectOptions): Promise<LockManager> {
  const remote = reach(url, options);
  await remote.opened;
  return newManager(remote);
}

export function reach(url?: string, options: ConnectOptions = {}): Remote {
  const named = url === undefined ? process.env['LOCKKEEPER_URL'] : `${url}`;
  if (named !== undefined && /^wss?:/i.test(named)) return overWebSocket(named, options);
  const { bucket = 'default' } = options;
  return new Remote((listener) => new AddonSession(listener, named || undefined, `${bucket}`));
}
