/**
 * Several URLs of one fleet: a connection to the first daemon that takes it. To a session it is one socket, which fails when
 * all have failed.
 */

import { later } from './host.js';
import type { Socket } from './websocket-session.js';

export type SocketClass = new (url: string, protocol: string) => Socket;

/** Milliseconds after which the next daemon is tried. */
const SILENCE = 2000;

/** The URLs of a list, or of a text with commas between them. */
export function urlsOf(url: string | readonly string[]): string[] {
  const urls = Array.isArray(url) ? url.map((each) => `${each}`) : `${url}`.split(/,(?=[a-z]+:)/i);
  if (urls.length === 0) throw new TypeError('the list of URLs is empty');
  return urls;
}

/** A class of sockets that go to one of these URLs. The next one begins with the URL after that which was last in use. */
export function toOneOf(urls: string[], WebSocket: SocketClass): SocketClass {
  let first = 0;
  return class implements Socket {
    binaryType = 'blob';
    #socket: Socket | undefined;
    #closed = false;
    readonly #protocol: string;
    readonly #listeners: [type: string, listener: (event: object) => void][] = [];

    constructor(_urls: string, protocol: string) {
      this.#protocol = protocol;
      this.#connect(first, urls.length);
    }

    addEventListener(type: string, listener: (event: object) => void): void {
      this.#listeners.push([type, listener]);
    }

    send(data: Uint8Array<ArrayBuffer>): void {
      this.#socket!.send(data);
    }

    close(): void {
      this.#closed = true;
      this.#socket!.close();
    }

    #connect(at: number, left: number): void {
      let isOpen = false;
      const socket = (this.#socket = new WebSocket(urls[at]!, this.#protocol));
      socket.binaryType = 'arraybuffer';
      const isCurrent = (): boolean => this.#socket === socket;
      const failed = (): boolean => {
        cancel();
        if (isOpen || this.#closed || left === 1 || !isCurrent()) return false;
        this.#connect((at + 1) % urls.length, left - 1);
        socket.close();
        return true;
      };
      const cancel = left === 1 ? () => {} : later(failed, SILENCE);
      const on = (type: string, run: () => boolean): void =>
        socket.addEventListener(type, (event) => {
          if (isCurrent() && !run()) for (const [wanted, listener] of this.#listeners) if (wanted === type) listener(event);
        });
      on('open', () => {
        cancel();
        isOpen = true;
        first = (at + 1) % urls.length;
        return false;
      });
      on('message', () => false);
      on('error', failed);
      on('close', failed);
    }
  };
}
