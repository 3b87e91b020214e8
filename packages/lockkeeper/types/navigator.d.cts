import './install.cjs';

/**
 * Attributes of the script tag, with `data-` before them, or members of the global `lockkeeper`.
 */
export interface NavigatorOptions {
  /**
   * Where the daemon is: `ws://host:port/` or `wss://…`. Of the daemons of a fleet, several; in an
   * attribute, with commas between them.
   */
  url?: string | readonly string[] | undefined;
  /**
   * The bucket whose locks are wanted; by default the one of the page's origin and top-level site.
   */
  bucket?: string | undefined;
  /** Credentials: a token, or a function that is called for each connection and gives one. */
  token?: string | (() => string | Promise<string>) | undefined;
  /** Where a token is fetched for each connection. */
  tokenUrl?: string | undefined;
  /** Wait for a daemon that is not there yet, rather than reject. */
  retry?: boolean | string | undefined;
}

declare global {
  var lockkeeper: NavigatorOptions | undefined;
}
