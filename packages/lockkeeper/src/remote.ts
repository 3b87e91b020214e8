/**
 * The transport to a daemon: locks that reach every process of the machine. The session is the addon's, which finds the
 * daemon again when it dies; this side has the table of its requests by slot, and believes what it is told.
 */

import { DeadlockError, notSupported } from './errors.js';
import { Liveness, newNumbers, readLetters } from './mail.js';
import { newManager, type LockManager } from './manager.js';
import { addon, daemonPath, News, type Inspection, type NativeRemote, type RequestInfo } from './native.js';
import { State, type Request, type Transport } from './request.js';
import type { LockManagerSnapshot } from './webidl.js';

export interface ConnectOptions {
  /** The bucket whose locks are wanted: managers of different buckets share nothing. */
  bucket?: string;
}

/**
 * The lock manager of this machine, which this user's daemon keeps, or of the daemon at `url`
 * (`unix:/path/to/daemon.sock`). Without a daemon, starts one.
 */
export async function connect(url?: string, { bucket = 'default' }: ConnectOptions = {}): Promise<LockManager> {
  const remote = new Remote(url === undefined ? undefined : `${url}`, `${bucket}`);
  await remote.opened;
  return newManager(remote);
}

/** Codes of the protocol. */
const Code = { NOT_SUPPORTED: 1, LIMIT: 2, DEADLOCK: 3 } as const;

/** A question, and who waits for its answer. */
interface Question {
  answer: () => void;
  refused: (reason: unknown) => void;
}

class Remote implements Transport {
  clientId = '';
  readonly opened: Promise<void>;
  readonly #numbers = newNumbers();
  readonly #session: NativeRemote;
  readonly #table: (Request | Question | undefined)[] = [];
  readonly #free: number[] = [];
  /** Requests that are being released, and who waits for that. */
  readonly #releasing = new Map<Request, (done: boolean) => void>();
  #settleOpened!: { resolve: () => void; reject: (reason: unknown) => void };
  /** Counts what waits for the daemon. */
  readonly #liveness = new Liveness();

  constructor(url: string | undefined, bucket: string) {
    this.opened = new Promise((resolve, reject) => (this.#settleOpened = { resolve, reject }));
    this.#session = new addon.Remote(this.#numbers, () => this.#collect(), url, daemonPath(), bucket);
    this.#liveness.waits(1);
  }

  submit(request: Request, flags: number): boolean {
    return this.submitScope(request, flags);
  }

  submitScope(request: Request, flags: number, nestedIn?: Request, info?: string): boolean {
    const { names, shared } = request.scope();
    const outer = nestedIn?.transport === this ? nestedIn.slot : undefined;
    request.slot = this.#numbers[0] = this.#take(request);
    this.#numbers[1] = flags;
    this.#liveness.waits(1);
    request.queued();
    try {
      this.#session.request(names, shared, outer, info);
    } catch (error) {
      this.#give(request.slot);
      this.#liveness.waits(-1);
      throw new DOMException((error as Error).message, 'InvalidStateError');
    }
    return true;
  }

  abort(request: Request): boolean {
    this.#session.release(request.slot);
    return true;
  }

  release(request: Request): Promise<boolean> {
    this.#liveness.waits(1);
    this.#session.release(request.slot);
    return new Promise((resolve) => this.#releasing.set(request, resolve));
  }

  async query(): Promise<LockManagerSnapshot> {
    const lists: LockManagerSnapshot = { held: [], pending: [] };
    for (const { place, clientId, token } of await this.#entries()) {
      (token === undefined ? lists.pending : lists.held).push({ clientId, mode: place.mode, name: place.name });
    }
    return lists;
  }

  async inspect(): Promise<Inspection> {
    const requests = new Map<bigint, RequestInfo>();
    for (const { place, clientId, ticket, token, info, since } of await this.#entries()) {
      const known = requests.get(ticket);
      if (known) {
        known.scope.push(place);
        continue;
      }
      const request: RequestInfo = { request: ticket, clientId, scope: [place], stole: false };
      if (info !== undefined) request.info = info;
      if (token === undefined) request.waited = since;
      else request.token = token;
      requests.set(ticket, request);
    }
    const all = [...requests.values()];
    for (const { scope } of all) scope.sort((a, b) => (a.name < b.name ? -1 : 1));
    const held = all.filter(({ token }) => token !== undefined);
    return { held, pending: all.filter(({ token }) => token === undefined), deadlocks: [] };
  }

  async forceRelease(name: string): Promise<void> {
    await this.#ask((slot) => this.#session.forceRelease(slot, name));
  }

  close(): void {
    this.#session.close();
    this.#liveness.end();
  }

  #entries() {
    return this.#ask(
      (slot) => this.#session.query(slot),
      (slot) => this.#session.entries(slot),
    );
  }

  #ask<T = void>(ask: (slot: number) => void, read?: (slot: number) => T): Promise<T> {
    return new Promise((resolve, refused) => {
      const slot = this.#take({ answer: () => resolve(read?.(slot) as T), refused });
      this.#liveness.waits(1);
      try {
        ask(slot);
      } catch (error) {
        this.#give(slot);
        this.#liveness.waits(-1);
        throw new DOMException((error as Error).message, 'InvalidStateError');
      }
    });
  }

  #collect(): void {
    readLetters(
      this.#numbers,
      () => this.#session.collect(),
      (slot, news, token) => this.#hear(slot, news, token),
    );
  }

  #hear(slot: number, news: number, token: number): void {
    if (news === News.OPENED) return this.#open();
    const about = this.#table[slot]!;
    if (news === News.GRANTED) {
      // One that was given up in the meantime will hear that it is.
      if ('state' in about && about.state === State.WAITING) {
        this.#liveness.waits(-1);
        about.granted(token);
      }
      return;
    }
    this.#give(slot);
    if ('answer' in about) {
      this.#liveness.waits(-1);
      if (news === News.ENDED) about.answer();
      else about.refused(this.#refusal(slot));
      return;
    }
    const releasing = this.#releasing.get(about);
    if (about.state !== State.HELD && about.state !== State.GRANTED) this.#liveness.waits(-1);
    this.#releasing.delete(about);
    if (news === News.UNAVAILABLE) about.unavailable();
    else if (news === News.REFUSED) about.refused(this.#refusal(slot));
    else if (news !== News.ENDED) about.broke(news === News.STOLEN ? 'stolen' : 'lost');
    releasing?.(news === News.ENDED);
  }

  #open(): void {
    this.#liveness.waits(-1);
    try {
      this.clientId = this.#session.clientId();
      this.#settleOpened.resolve();
    } catch (error) {
      this.#settleOpened.reject(new DOMException((error as Error).message, 'NetworkError'));
    }
  }

  #refusal(slot: number): unknown {
    const { code, message } = this.#session.refusal(slot) ?? { code: 0, message: 'the daemon is gone' };
    if (code === Code.NOT_SUPPORTED) return notSupported(message);
    if (code === Code.LIMIT) return new DOMException(message, 'QuotaExceededError');
    if (code === Code.DEADLOCK) return new DeadlockError({ message, cycle: [] });
    return new DOMException(message, 'OperationError');
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
