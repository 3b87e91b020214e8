/** What a runtime does besides locking. Every entry point for runtimes imports it. */

import { giveAdvice } from './advice.js';
import { publishRequests } from './diagnostics.js';
import { builtin, process } from './host.js';
import { Liveness } from './liveness.js';
import { observer } from './observer.js';
import { keepTokensSecret } from './secrecy.js';
import { takeUnixSockets } from './unix-socket.js';

publishRequests();
giveAdvice();
keepTokensSecret();
takeUnixSockets();
observer.newLiveness = () => new Liveness();
observer.connecting = unref;
observer.watchExit = watchExit;
observer.warn = (message) =>
  process!.emitWarning(message, { type: 'DeadlockWarning', code: 'LOCKKEEPER_DEADLOCK' });

let subscribed = false;

/**
 * Keeps a WebSocket from keeping a Node process alive. The one of `ws` exposes its socket. Node's
 * own does not, but diagnostics show its socket, with the protocol in its headers.
 */
function unref(socket: object, protocol: string): void {
  const shown = socket as EventTarget & { _socket?: { unref?(): void } };
  shown.addEventListener('open', () => shown._socket?.unref?.());
  if (subscribed) return;
  subscribed = true;
  builtin?.('node:diagnostics_channel').subscribe('undici:client:sendHeaders', (message) => {
    const { headers, socket } = message as { headers: string; socket: { unref(): void } };
    if (headers.includes(`\r\nsec-websocket-protocol: ${protocol}\r\n`)) socket.unref();
  });
}

const watching = new Set<() => void>();

function watchExit(exits: () => void): () => void {
  if (watching.size === 0) process?.on('exit', tellAll);
  watching.add(exits);
  return () => {
    watching.delete(exits);
    if (watching.size === 0) process?.off('exit', tellAll);
  };
}

function tellAll(): void {
  for (const exits of watching) exits();
}
