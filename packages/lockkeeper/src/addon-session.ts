/**
 * The addon's session with a daemon of this machine, over a Unix socket. It resumes at the next
 * daemon by itself, and opens another session after one was lost.
 *
 * A session that cannot be opened is idle: it has no descriptor, thread or hook until the next
 * request.
 */

import { DeadlockError, noSession, refusal } from './errors.js';
import { newCallBuffer, readNotifications } from './mailbox.js';
import { daemonPath, loadAddon, News, Stage, type NativeRemote, type Refusal } from './native.js';
import { missingDaemon } from './platform.js';
import type { Listener, Session, Snapshot } from './remote.js';
import type { Request } from './request.js';

/** A question, and the promise of its answer. */
interface Question {
  answer: () => void;
  refused: (reason: unknown) => void;
}

export class AddonSession implements Session {
  clientId = '';
  readonly opened: Promise<void>;
  readonly #listener: Listener;
  readonly #url: string | undefined;
  readonly #bucket: string;
  readonly #buffer = newCallBuffer();
  /** None while the session is idle. */
  #native: NativeRemote | undefined;
  /**
   * What was asked, by slot, and the slots that are free. The addon knows a request by its slot.
   */
  #table: (Request | Question | undefined)[] = [];
  #free: number[] = [];
  /** The advice if there is no daemon, and none can be started. */
  #instead = '';
  #settle!: { resolve: () => void; reject: (reason: unknown) => void };

  constructor(listener: Listener, url: string | undefined, bucket: string) {
    this.#listener = listener;
    this.#url = url;
    this.#bucket = bucket;
    this.opened = new Promise((resolve, reject) => (this.#settle = { resolve, reject }));
    this.#start();
  }

  request(request: Request, flags: number, nestedIn: Request | undefined, info: string | undefined): void {
    const native = this.#begun((reason) => this.#listener.over(request, reason));
    if (native === undefined) return;
    request.slot = this.#take(request);
    const { names, shared } = request.scope();
    this.#buffer[0] = request.slot;
    this.#buffer[1] = flags;
    native.request(names, shared, nestedIn?.slot, info);
  }

  releaseOrCancel(request: Request, timedOut = false): void {
    this.#native?.release(request.slot, timedOut);
  }

  /**
   * By the clock, if the session has a lease. If it is not, the listener has been notified before
   * this returns.
   */
  isHeld(request: Request): boolean {
    const held = this.#native?.isHeld(request.slot) ?? false;
    if (!held) this.#collect();
    return held;
  }

  query(deadlocks: boolean): Promise<Snapshot> {
    return this.#ask(
      (native, slot) => native.query(slot, deadlocks),
      (native, slot) => native.snapshot(slot)!,
    );
  }

  forceRelease(name: string): Promise<void> {
    return this.#ask((native, slot) => native.forceRelease(slot, name));
  }

  close(): void {
    this.#native?.close();
    this.#collect();
    this.#rest(noSession('the session is closed'));
  }

  #start(): NativeRemote {
    this.#listener.status('connecting');
    const program = daemonPath();
    this.#instead = this.#url === undefined && program === undefined ? noDaemon() : '';
    const { Remote } = loadAddon();
    try {
      return (this.#native = new Remote(this.#buffer, () => this.#collect(), this.#url, program, this.#bucket));
    } catch (error) {
      const { code, message } = error as Error & { code?: string };
      throw code === 'InvalidArg' ? new TypeError(message) : error;
    }
  }

  /** Starts one again if none runs. There may be no descriptors or threads left for that. */
  #begun(failed: (reason: Error) => void): NativeRemote | undefined {
    try {
      return this.#native ?? this.#start();
    } catch (error) {
      this.#listener.status('closed');
      queueMicrotask(() => failed(noSession((error as Error).message)));
      return undefined;
    }
  }

  #ask<T = void>(
    ask: (native: NativeRemote, slot: number) => void,
    read?: (native: NativeRemote, slot: number) => T,
  ): Promise<T> {
    return new Promise((resolve, refused) => {
      const native = this.#begun(refused);
      if (native === undefined) return;
      const slot = this.#take({ answer: () => resolve(read?.(native, slot) as T), refused });
      ask(native, slot);
    });
  }

  #collect(): void {
    const native = this.#native;
    if (native === undefined) return;
    readNotifications(
      this.#buffer,
      () => native.collect(),
      (slot, news, token) => this.#onNotification(native, slot, news, token),
    );
  }

  #onNotification(native: NativeRemote, slot: number, news: number, token: number): void {
    if (news === News.SESSION) return this.#onSession(native, slot);
    const about = this.#table[slot];
    // Requests refused by a session's end do not belong to the next session.
    if (about === undefined || this.#native !== native) return;
    const question = 'answer' in about;
    if (news === News.GRANTED) return question ? undefined : this.#listener.granted(about, token);
    this.#table[slot] = undefined;
    this.#free.push(slot);
    const refused = news === News.REFUSED ? this.#errorOf(native.refusal(slot)) : undefined;
    if (!question) this.#listener.over(about, refused ?? outcomes[news as keyof typeof outcomes]);
    else if (refused) about.refused(refused);
    else about.answer();
  }

  #onSession(native: NativeRemote, stage: number): void {
    if (stage === Stage.FAILED) return this.#rest(this.#errorOf(native.failure()));
    if (stage === Stage.INTERRUPTED) return this.#listener.status('reconnecting');
    this.clientId = native.clientId();
    this.#settle.resolve();
    this.#listener.status('connected');
  }

  /** Frees all resources, and refuses the remaining requests. */
  #rest(reason: Error): void {
    this.#settle.reject(reason);
    this.#listener.status('closed');
    this.#native?.shut();
    this.#native = undefined;
    const left = this.#table;
    this.#table = [];
    this.#free = [];
    for (const about of left) {
      if (about === undefined) continue;
      if ('answer' in about) about.refused(reason);
      else this.#listener.over(about, reason);
    }
  }

  #errorOf(refused: Refusal | null): Error {
    const { code, message, failed, cycle } = refused ?? { code: 0, message: 'the daemon is gone', failed: true };
    if (cycle) return new DeadlockError({ message, cycle });
    return failed ? noSession(message + this.#instead, code) : refusal(code, message);
  }

  #take(entry: Request | Question): number {
    const slot = this.#free.pop() ?? this.#table.length;
    this.#table[slot] = entry;
    return slot;
  }
}

function noDaemon(): string {
  return (
    `. The daemon's program is not at ${missingDaemon()}, if that contains it; ` +
    "or use connect(url) with the URL of a running daemon, such as 'ws://127.0.0.1:7420/'"
  );
}

const outcomes = {
  [News.STOLEN]: 'stolen',
  [News.LOST]: 'lost',
  [News.UNAVAILABLE]: 'unavailable',
  [News.ENDED]: 'ended',
} as const;
