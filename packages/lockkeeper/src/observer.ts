/**
 * Hooks for what only the runtimes do: diagnostics, warnings about ignored options, and the
 * lifetime of the process. `runtime.ts` fills them in, so browsers need not load that code. They
 * never change what a request does.
 */

import type { Liveness } from './liveness.js';
import type { Request } from './request.js';
import type { Socket } from './websocket-session.js';

/** The channels of a request: the first, the grant, and one for each way to end. */
export type Channel =
  | 'request'
  | 'grant'
  | 'release'
  | 'steal'
  | 'lost'
  | 'abort'
  | 'timeout'
  | 'unavailable'
  | 'error';

export const observer: {
  publish?: (channel: Channel, request: Request, cause?: unknown) => void;
  /** Looks at what `request()` was given, before that is converted. */
  advise?: (name: unknown, options: unknown) => void;
  /** Keeps the process alive while a request waits. */
  newLiveness?: () => Liveness;
  /** A connection is being made: it is not to keep the process alive. */
  connecting?: (socket: object, protocol: string) => void;
  /** Connects to a URL of a list that is none of a WebSocket. */
  openUnixSocket?: (url: string) => Socket | undefined;
  /** Throws if a token would be sent in clear to another machine. */
  checkSecrecy?: (url: string, options: { token?: unknown; insecure?: boolean }) => void;
  /** Calls `exits` when the process does. Returns how to prevent it. */
  watchExit?: (exits: () => void) => () => void;
  /** Tells people of a deadlock. */
  warn?: (message: string) => void;
} = {};
