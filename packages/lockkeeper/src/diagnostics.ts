/**
 * The channels `lockkeeper:request`, `lockkeeper:grant`, `lockkeeper:release` and `lockkeeper:steal` of
 * `node:diagnostics_channel`, where there is one. A message costs nothing while nobody listens.
 */

import { process } from './host.js';
import type { Request } from './request.js';
import type { LockMode } from './webidl.js';

export interface LockMessage {
  names: string[];
  mode: LockMode;
  clientId: string;
  /** Of a lock. */
  token?: bigint;
}

const channel = process?.getBuiltinModule?.('node:diagnostics_channel').channel;
type Channel = ReturnType<NonNullable<typeof channel>> | undefined;

export const channels = {
  request: channel?.('lockkeeper:request'),
  grant: channel?.('lockkeeper:grant'),
  release: channel?.('lockkeeper:release'),
  steal: channel?.('lockkeeper:steal'),
};

/** Small, so that engines inline it: every request is told of three times. */
export function publish(channel: Channel, request: Request): void {
  if (channel?.hasSubscribers) tell(channel, request);
}

function tell(channel: NonNullable<Channel>, request: Request): void {
  const { mode, token, transport } = request;
  const message: LockMessage = { names: [...request.scope().names], mode, clientId: transport.clientId };
  if (token) message.token = BigInt(token);
  channel.publish(message);
}
