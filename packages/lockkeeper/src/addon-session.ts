/**
 * The addon's session: with a daemon of this machine, on a Unix socket. It resumes at the next daemon by itself, and opens
 * another session after one was lost.
 */

import { DeadlockError, noSession, refusal } from './errors.js';
import { newCallBuffer, readNotifications } from './mailbox.js';
import { daemonPath, loadAddon, News, type NativeRemote } from './native.js';
import type { Listener, Session, Snapshot } from './remote.js';
import type { Request } from './request.js';

/** A question, and who waits for its answer. */
interface Question {
  answer: () => void;
  refused: (reason: unknown) => void;
}

export class AddonSession implements Session {
  clientId = '';
  readonly opened: Promise<void>;
  readonly #listener: Listener;
  readonly #buffer = newCallBuffer();
  readonly #native: NativeRemote;
  /** What was asked, by slot. */
  readonly #table: (Request | Question | undefined)[] = [];
  readonly #free: number[] = [];
  /** What was said before the session was open. */
  #unsaid: (() => void)[] | undefined = [];
  /** Why there is no session. */
  #failure: Error | undefined;
  #settle!: { resolve: () => void; reject: (reason: unknown) => void };

  constructor(listener: Listener, url: string | undefined, bucket: string) {
    this.#listener = listener;
    this.opened = new Promise((resolve, reject) => (this.#settle = { resolve, reject }));
    this.#native = new (loadAddon().Remote)(this.#buffer, () => this.#collect(), url, daemonPath(), bucket);
  }

  request(request: Request, flags: number, nestedIn: Request | undefined, info: string | undefined): void {
    request.slot = this.#take(request);
    const { names, shared } = request.scope();
    this.#say(() => {
      this.#buffer[0] = request.slot;
      this.#buffer[1] = flags;
      this.#native.request(names, shared, nestedIn?.slot, info);
    });
  }

  giveUp(request: Request, timedOut = false): void {
    this.#say(() => this.#native.release(request.slot, timedOut));
  }

  /**
   * By the clock, if the session has a lease. If it is not, the listener has been told before this
   * returns.
   */
  isHeld(request: Request): boolean {
    const held = this.#native.isHeld(request.slot);
    if (!held) this.#collect();
    return held;
  }

  query(deadlocks: boolean): Promise<Snapshot> {
    return this.#ask(
      (slot) => this.#native.query(slot, deadlocks),
      (slot) => this.#native.snapshot(slot)!,
    );
  }

  forceRelease(name: string): Promise<void> {
    return this.#ask((slot) => this.#native.forceRelease(slot, name));
  }

  close(): void {
    this.#native.close();
  }

  #ask<T = void>(ask: (slot: number) => void, read?: (slot: number) => T): Promise<T> {
    return new Promise((resolve, refused) => {
      const slot = this.#take({ answer: () => resolve(read?.(slot) as T), refused });
      this.#say(() => ask(slot));
    });
  }

  #say(say: () => void): void {
    if (this.#failure) queueMicrotask(() => this.#fail());
    if (this.#unsaid !== undefined) return void this.#unsaid.push(say);
    say();
  }

  #collect(): void {
    readNotifications(
      this.#buffer,
      () => this.#native.collect(),
      (slot, news, token) => this.#onNotification(slot, news, token),
    );
  }

  #onNotification(slot: number, news: number, token: number): void {
    if (news === News.OPENED) return this.#open();
    const about = this.#table[slot]!;
    const question = 'answer' in about;
    if (news === News.GRANTED) return question ? undefined : this.#listener.granted(about, token);
    this.#give(slot);
    const refused = news === News.REFUSED ? this.#refusal(slot) : undefined;
    if (!question) this.#listener.over(about, refused ?? outcomes[news as keyof typeof outcomes]);
    else if (refused) about.refused(refused);
    else about.answer();
  }

  #open(): void {
    try {
      this.clientId = this.#native.clientId();
    } catch (error) {
      this.#failure = noSession((error as Error).message);
      this.#settle.reject(this.#failure);
      this.#listener.status('closed');
      return this.#fail();
    }
    this.#settle.resolve();
    this.#listener.status('connected');
    // After a session was lost, it is the next one: all was said to the addon.
    if (this.#unsaid === undefined) return;
    // Later: the notifications that are being read would be overwritten.
    queueMicrotask(() => {
      const unsaid = this.#unsaid ?? [];
      this.#unsaid = undefined;
      unsaid.forEach((say) => say());
    });
  }

  /** Refuses what cannot be said. */
  #fail(): void {
    this.#unsaid = [];
    for (const [slot, about] of this.#table.entries()) {
      if (about === undefined) continue;
      this.#give(slot);
      if ('answer' in about) about.refused(this.#failure);
      else this.#listener.over(about, this.#failure!);
    }
  }

  #refusal(slot: number): Error {
    const { code, message, cycle } = this.#native.refusal(slot) ?? { code: 0, message: 'the daemon is gone' };
    return cycle ? new DeadlockError({ message, cycle }) : refusal(code, message);
  }

  #take(entry: Request | Question): number {
    const slot = this.#free.pop() ?? this.#table.length;
    this.#table[slot] = entry;
    return slot;
  }

  #give(slot: number): void {
    this.#table[slot] = undefined;
    this.#free.push(slot);
  }
}

const outcomes = {
  [News.STOLEN]: 'stolen',
  [News.LOST]: 'lost',
  [News.UNAVAILABLE]: 'unavailable',
  [News.ENDED]: 'ended',
} as const;
