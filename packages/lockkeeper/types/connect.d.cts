import type { ConnectOptions, LockManager } from './api.cjs';

export * from './api.cjs';

/**
 * The lock manager of the daemon at `url` (`ws://host:port/` or `wss://…`). Of several daemons of a
 * fleet, the next one is used when one fails.
 */
export function connect(url: string | readonly string[], options?: ConnectOptions): Promise<LockManager>;
