import type { ConnectOptions, LockManager } from './api.cjs';

export * from './api.cjs';

/** The lock manager of the daemon at `url` (`ws://host:port/` or `wss://…`). */
export function connect(url: string, options?: ConnectOptions): Promise<LockManager>;
