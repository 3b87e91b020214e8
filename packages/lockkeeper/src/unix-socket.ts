/**
 * The Unix socket of a daemon, with the interface of a `WebSocket`: for a list of URLs that has
 * both. For runtimes only. It requests no descriptor, so the session has a lease, because it may
 * have to move to another machine. A token is never sent over it.
 */

import type { Socket as Stream } from 'node:net';
import { builtin, process } from './host.js';
import { observer } from './observer.js';
import { pack, unpackAll, type Value } from './pack.js';
import { HELLO } from './to-server.js';
import type { Socket } from './websocket-session.js';

/** Has a list of URLs take `unix:/path` as well. */
export function takeUnixSockets(): void {
  observer.openUnixSocket = (url) => (url.startsWith('unix:') ? new UnixSocket(url.slice('unix:'.length)) : undefined);
}

/** Where the token is in Hello. */
const TOKEN = 7;

class UnixSocket implements Socket {
  binaryType = '';
  readonly #stream: Stream;
  /** What was read and is no whole message yet, its bytes, and how many are needed. */
  #chunks: Buffer[] = [];
  #size = 0;
  #needed = 4;

  constructor(path: string) {
    // Waiting requests keep the process alive, not the socket.
    const stream = (this.#stream = builtin('node:net').connect(path).unref());
    stream.on('connect', () => {
      if (isTrusted(path)) stream.emit('open');
      else stream.destroy(new Error('it is served by another user'));
    });
    stream.on('data', (chunk) => this.#read(chunk));
  }

  addEventListener(type: string, listener: (event: object) => void): void {
    this.#stream.on(type, listener);
  }

  /** A frame is a message or several; here each has its length before it. */
  send(frame: Uint8Array): void {
    const parts = unpackAll(frame).flatMap((message) => {
      const isHello = (message as Value[])[0] === HELLO;
      const bytes = isHello ? pack((message as Value[]).with(TOKEN, null)) : pack(message);
      const length = Buffer.alloc(4);
      length.writeUInt32BE(bytes.length);
      return [length, bytes];
    });
    this.#stream.write(Buffer.concat(parts));
  }

  close(): void {
    this.#stream.end();
  }

  /** The whole messages that came are one frame. */
  #read(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#size += chunk.length;
    if (this.#size < this.#needed) return;
    let rest = Buffer.concat(this.#chunks);
    const messages = [];
    while (rest.length >= (this.#needed = rest.length < 4 ? 4 : 4 + rest.readUInt32BE())) {
      messages.push(rest.subarray(4, this.#needed));
      rest = rest.subarray(this.#needed);
    }
    this.#chunks = [rest];
    this.#size = rest.length;
    if (messages.length > 0) this.#stream.emit('message', { data: Buffer.concat(messages) });
  }
}

/** As the addon has it: this user's daemon, or root's. */
function isTrusted(path: string): boolean {
  const file = builtin('node:fs').statSync(path, { throwIfNoEntry: false });
  return file?.uid === 0 || file?.uid === process!.geteuid?.();
}
