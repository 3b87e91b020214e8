/**
 * Keeps a process alive while a request waits. A page needs no such thing, and does not load this.
 */

import { builtin } from './host.js';

const timers = builtin('node:timers');

/** Keeps the event loop alive, at no cost, while a request waits. */
export class Liveness {
  waiting = 0;
  private timer: NodeJS.Timeout | undefined;

  waits(more: 1 | -1): void {
    this.waiting += more;
    if (this.waiting === 0) this.timer?.unref();
    else if (this.waiting === more) (this.timer ??= timers.setInterval(() => {}, 2 ** 31 - 1))?.ref();
  }

  /** No request waits any more, or not for now. */
  end(): void {
    timers.clearInterval(this.timer);
    this.timer = undefined;
  }
}
