/**
 * The channels `lockkeeper:…` of `node:diagnostics_channel`. A request is published on `request`,
 * on `grant` if it is granted, and on the channel of its end, always with the same `id`, so that
 * waiting and holding times can be measured. Without subscribers a message has no cost.
 */

import { builtin } from './host.js';
import { observer, type Channel } from './observer.js';
import type { Request } from './request.js';
import type { LockMode } from './webidl.js';

export interface LockMessage {
  /** The same in all messages about one request; of this thread. */
  id: number;
  names: string[];
  mode: LockMode;
  clientId: string;
  /** Of a lock. */
  token?: bigint;
  /** Why it ended: 'stolen', 'lost' or 'closed', the reason of the abort, or the error. */
  cause?: unknown;
}

/** None in a runtime that has no such module. */
const channel = builtin?.('node:diagnostics_channel').channel;
const open = (name: Channel): ReturnType<typeof channel> => channel(`lockkeeper:${name}`);

const ids = new WeakMap<Request, number>();
let last = 0;

/** Has requests published from now on. */
export function publishRequests(): void {
  if (channel === undefined) return;
  const channels = {
    request: open('request'),
    grant: open('grant'),
    release: open('release'),
    steal: open('steal'),
    lost: open('lost'),
    abort: open('abort'),
    timeout: open('timeout'),
    unavailable: open('unavailable'),
    error: open('error'),
  };
  observer.publish = (name, request, cause) => {
    const to = channels[name];
    if (to.hasSubscribers) to.publish(messageOf(request, cause));
  };
}

function messageOf(request: Request, cause: unknown): LockMessage {
  const { mode, token, transport } = request;
  let id = ids.get(request);
  if (id === undefined) ids.set(request, (id = last += 1));
  const message: LockMessage = { id, names: [...request.scope().names], mode, clientId: transport.clientId };
  if (token) message.token = BigInt(token);
  if (cause !== undefined) message.cause = cause;
  return message;
}
