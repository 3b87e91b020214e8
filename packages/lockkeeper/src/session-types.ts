/** The inputs and outputs of a session. The same as in `crates/service/src/session/types.rs`. */

import type { Uint } from './pack.js';
import type { WireDeadlock, WireEntry } from './to-client.js';
import type { WireScope } from './to-server.js';

/** A request or question of a session, by a number that is never reused. */
export type Key = number;

/** What a session asks for when it opens. */
export interface SessionConfig {
  bucket: string;
  /** Who the client is, for people. */
  owner: string | null;
  /** The lease that it would like, in milliseconds. */
  ttl: number | null;
  /** Whether the client ends for good when its WebSocket is closed with status 1001. */
  goingAwayEnds: boolean;
}

/** A request to be made. */
export interface LockRequest {
  scope: WireScope;
  /** Bits: 1 if available, 2 steal, 4 refuse a deadlock. */
  flags: number;
  /** The request of the same session within which it is made. */
  nestedIn: Key | null;
  /** A label for people. */
  info: string | null;
}

/** Why there is no session. */
export interface Failure {
  /** After *unusable* and *closed*, another attempt makes no sense. */
  kind: 'unreachable' | 'unusable' | 'refused' | 'closed';
  message: string;
  /** The server's, if it refuses. */
  code?: number;
  /** What was thrown, if something was. */
  cause?: unknown;
}

/** What a server shows of a bucket, or of one name of it. */
export interface Parts {
  entries: WireEntry[];
  deadlocks: WireDeadlock[];
}

/** How a request or question ended. */
export type Ended =
  /** It was not to wait; or it was released or aborted, as the host wished. */
  | { how: 'unavailable' | 'released' }
  /** The lock was broken; or the session was lost, and the request with it. */
  | { how: 'broken'; cause: 'stolen' | 'lost'; by: string | null }
  /** The server refuses it. Nothing has changed. */
  | { how: 'refused'; code: number; message: string }
  /** It would have closed a cycle, and was not to. */
  | { how: 'deadlocked'; deadlock: WireDeadlock }
  | { how: 'snapshot'; snapshot: Parts }
  /** A force release or the ending of a session is done: of so many. */
  | { how: 'done'; count: Uint }
  /** There is no session, and will be none. */
  | { how: 'failed'; failure: Failure };

/** What the host is to know. */
export type Event<T> =
  /** There is a session: the same as before if it was resumed. */
  | { type: 'opened'; clientId: string; resumed: boolean }
  /** No server could be reached yet. Attempts go on. */
  | { type: 'unreachable'; failure: Failure }
  /** A server refuses the session for good. Nothing more happens. */
  | { type: 'failed'; failure: Failure }
  /** The session was lost, and all it had. Another one is being opened. */
  | { type: 'sessionLost' }
  /** The session was closed by the host. */
  | { type: 'closed' }
  | { type: 'queued'; key: Key; arrival: Uint }
  | { type: 'granted'; key: Key; token: Uint; data: T }
  /** A request or question is over. */
  | { type: 'over'; key: Key; outcome: Ended; data: T };
