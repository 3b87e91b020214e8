/**
 * A session with the daemon that served the page: it subscribes, asks, and resumes after a lost connection, so that a lock that
 * was stolen here stays held. It never draws.
 */

import { pack, type Uint } from '../../lockkeeper/src/pack.js';
import * as to from '../../lockkeeper/src/to-client.js';
import * as from from '../../lockkeeper/src/to-server.js';
import { SUBPROTOCOL, VERSION } from '../../lockkeeper/src/wire.js';
import { CHANGES, decodeAll, SUBSCRIBE, type ToClient, type ToServer } from './messages.js';
import type { Deadlock, Lock, Model, Request } from './model.js';

/** Flags of a request. */
const STEAL = 2;

/** A reserved name: a question about it is answered with deadlocks alone. */
const NOBODY = Uint8Array.of(0x2d);

const UNAUTHORIZED = 20;
/** Codes from here on: the same may succeed later. */
const TEMPORARY = 32;
const ENDED = 22;
const SUPERSEDED = 21;
const LIMIT = 2;

export type Status =
  | { kind: 'connecting' | 'live' }
  /** Not connected, and trying again. */
  | { kind: 'lost'; why: string }
  /** The daemon wants credentials, or others. */
  | { kind: 'login'; why: string }
  | { kind: 'refused'; why: string };

export interface Options {
  readonly url: string;
  readonly bucket: string;
  readonly token: string | null;
  readonly model: Model;
  readonly onStatus: (status: Status) => void;
  readonly onChange: () => void;
  /** A lock that was stolen here is lost. */
  readonly onLost: (name: Uint8Array, by: string | null) => void;
}

type Answer = { ok: true; count: number } | { ok: false; why: string };
interface Asked {
  message: (ack: Uint, rid: number) => ToServer;
  done: (answer: Answer) => void;
}

export class Session {
  readonly #options: Options;
  #socket: WebSocket | undefined;
  #identity: [clientId: string, secret: Uint8Array] | null = null;
  #hello = 0;
  #ack: Uint = 0;
  #rid = 0;
  #ttl = 10_000;
  #seq = 0;
  #unanswered = 0;
  #synced = false;
  #failures = 0;
  #closed = false;
  #timer: ReturnType<typeof setTimeout> | undefined;
  #ping: ReturnType<typeof setInterval> | undefined;
  #subscription = 0;
  /** Parts of a state that is not whole yet. */
  #parts: to.WireEntry[] | null = null;
  #asked = new Map<number, Asked>();
  #searching: { rid: number; found: Deadlock[] } | null = null;
  #outdated = false;
  /** Locks that were stolen here, by rid. */
  readonly held = new Map<number, Uint8Array>();
  clientId = '';

  constructor(options: Options) {
    this.#options = options;
    this.#connect();
  }

  /** Ends the session, with what it holds. */
  close(): void {
    this.#closed = true;
    clearTimeout(this.#timer);
    if (this.#synced) this.#send([from.BYE, this.#ack]);
    this.#drop();
  }

  forceRelease(name: Uint8Array): Promise<Answer> {
    return this.#ask((ack, rid) => [from.FORCE_RELEASE, ack, rid, name]);
  }

  endSession(clientId: string): Promise<Answer> {
    return this.#ask((ack, rid) => [from.END_SESSION, ack, rid, clientId]);
  }

  /** Takes a lock from those who hold it, and keeps it until it is released here. */
  async steal(name: Uint8Array): Promise<Answer> {
    const scope: [Uint8Array, boolean][] = [[name, false]];
    const rid = this.#rid + 1;
    const answer = await this.#ask((ack, rid) => [from.REQUEST, ack, rid, scope, STEAL, null, 'stolen from the dashboard']);
    if (answer.ok) this.held.set(rid, name);
    return answer;
  }

  release(rid: number): Promise<Answer> {
    this.held.delete(rid);
    return new Promise((done) => {
      this.#asked.set(rid, { message: (ack) => [from.RELEASE, ack, rid, 0], done });
      this.#send([from.RELEASE, this.#ack, rid, 0]);
    });
  }

  /** A lock as it is now. */
  lockOf(key: string): Lock | undefined {
    return this.#options.model.locks.get(key);
  }

  /** What a session has. */
  requestsOf(clientId: string): Request[] {
    return [...this.#options.model.requests.values()].filter((request) => request.clientId === clientId);
  }

  /** Has the daemon search for deadlocks, if there can be one. */
  searchDeadlocks(): void {
    const { model } = this.#options;
    if (!this.#synced) return;
    if (model.nested === 0) {
      if (model.deadlocks.length > 0) model.setDeadlocks([]);
      return;
    }
    this.#outdated = this.#searching !== null;
    if (this.#outdated) return;
    this.#rid += 1;
    this.#searching = { rid: this.#rid, found: [] };
    this.#send([from.QUERY, this.#ack, this.#rid, NOBODY, true]);
  }

  #ask(message: Asked['message']): Promise<Answer> {
    return new Promise((done) => {
      if (!this.#synced) return done({ ok: false, why: 'not connected' });
      this.#rid += 1;
      this.#asked.set(this.#rid, { message, done });
      this.#send(message(this.#ack, this.#rid));
    });
  }

  #connect(): void {
    this.#options.onStatus({ kind: 'connecting' });
    const socket = new WebSocket(this.#options.url, SUBPROTOCOL);
    socket.binaryType = 'arraybuffer';
    this.#socket = socket;
    socket.onopen = () => {
      this.#hello += 1;
      const { bucket, token } = this.#options;
      // A page that is closed gives up what it holds.
      const features = from.FEATURE_GOING_AWAY_ENDS;
      this.#send([from.HELLO, VERSION, features, this.#hello, bucket, this.#identity, this.#ack, token, null, 'dashboard']);
    };
    socket.onmessage = ({ data }: MessageEvent<ArrayBuffer>) => {
      try {
        for (const message of decodeAll(new Uint8Array(data))) if (this.#socket === socket) this.#onMessage(message);
      } catch (error) {
        if (this.#socket === socket) this.#fail(String(error));
      }
    };
    socket.onclose = () => {
      if (this.#socket === socket) this.#lose('the connection was lost');
    };
  }

  #send(message: ToServer): void {
    if (this.#socket?.readyState === WebSocket.OPEN) this.#socket.send(pack(message));
  }

  #drop(): void {
    clearInterval(this.#ping);
    this.#synced = false;
    this.#parts = null;
    this.#searching = null;
    const socket = this.#socket;
    this.#socket = undefined;
    socket?.close();
  }

  /** What was asked may have been done, or not. */
  #lose(why: string): void {
    this.#drop();
    if (this.#closed) return;
    for (const { done } of this.#asked.values()) done({ ok: false, why: `${why}: whether it was done is not known` });
    this.#asked.clear();
    this.#options.onStatus({ kind: 'lost', why });
    const pause = Math.min(200 * 2 ** this.#failures, 5_000);
    this.#failures += 1;
    this.#timer = setTimeout(() => this.#connect(), pause);
  }

  #fail(why: string): void {
    this.#closed = true;
    this.#drop();
    this.#options.onStatus({ kind: 'refused', why });
  }

  #onMessage(message: ToClient): void {
    const { model, onChange } = this.#options;
    switch (message[0]) {
      case to.WELCOME: {
        const [, , , number, clientId, secret, ttl, resumed, lastRid] = message;
        this.clientId = clientId;
        this.#identity = [clientId, secret.slice()];
        this.#ttl = Number(ttl) || this.#ttl;
        if (!resumed) {
          this.#loseLocks(null);
          this.#ack = 0;
          this.#rid = 0;
        }
        this.#rid = Math.max(this.#rid, Number(lastRid));
        this.#ack = number > this.#ack ? number : this.#ack;
        return;
      }
      case to.SYNCED:
        this.#synced = true;
        this.#failures = 0;
        this.#unanswered = 0;
        clearInterval(this.#ping);
        this.#ping = setInterval(() => this.#beat(), this.#ttl / 5);
        this.#rid += 1;
        this.#subscription = this.#rid;
        this.#send([SUBSCRIBE, this.#ack, this.#rid]);
        return;
      case to.SNAPSHOT: {
        const [, rid, entries, deadlocks, lastToken, more] = message;
        if (rid === this.#searching?.rid) {
          this.#searching.found.push(...deadlocks);
          if (!more) this.#onDeadlocks();
        } else if (rid === this.#subscription) {
          this.#parts ??= [];
          for (const entry of entries) this.#parts.push(entry);
          if (more) return;
          const whole = this.#parts;
          this.#parts = null;
          model.replace(whole, lastToken, Date.now());
          this.#options.onStatus({ kind: 'live' });
          onChange();
        }
        return;
      }
      case CHANGES: {
        const [, rid, entries, gone, lastToken] = message;
        if (rid !== this.#subscription) return;
        // In the middle of a state: the daemon begins it again.
        if (this.#parts !== null) this.#parts = null;
        else {
          model.change(entries, gone, lastToken, Date.now());
          onChange();
        }
        return;
      }
      case to.OUTCOME:
        this.#acknowledge(message[1]);
        return this.#finish(message[2], { ok: true, count: Number(message[3]) });
      case to.GRANTED:
      case to.RELEASED:
        return this.#finish(message[1], { ok: true, count: 1 });
      case to.BROKEN: {
        const [, number, rid, , by] = message;
        this.#acknowledge(number);
        const name = this.held.get(Number(rid));
        if (name !== undefined) {
          this.held.delete(Number(rid));
          this.#options.onLost(name, by);
        }
        return;
      }
      case to.REFUSED: {
        const [, rid, code, why] = message;
        if (rid === this.#subscription) {
          return code === LIMIT ? this.#lose(why) : this.#fail(why);
        }
        if (rid === this.#searching?.rid) return this.#onDeadlocks();
        return this.#finish(rid, { ok: false, why });
      }
      case to.PONG:
        this.#unanswered = 0;
        return;
      case to.GOODBYE:
        return this.#onGoodbye(Number(message[1]), message[2]);
    }
  }

  #onGoodbye(code: number, why: string): void {
    if (code === UNAUTHORIZED) {
      this.#closed = true;
      this.#drop();
      this.#options.onStatus({ kind: 'login', why });
    } else if (code >= TEMPORARY || code === ENDED || code === SUPERSEDED || code === LIMIT) {
      if (code === ENDED) this.#identity = null;
      this.#lose(why);
    } else this.#fail(why);
  }

  #onDeadlocks(): void {
    const { model, onChange } = this.#options;
    model.setDeadlocks(this.#searching?.found ?? []);
    this.#searching = null;
    if (this.#outdated) this.searchDeadlocks();
    onChange();
  }

  #loseLocks(by: string | null): void {
    for (const name of this.held.values()) this.#options.onLost(name, by);
    this.held.clear();
  }

  #finish(rid: Uint, answer: Answer): void {
    this.#asked.get(Number(rid))?.done(answer);
    this.#asked.delete(Number(rid));
  }

  #acknowledge(number: Uint): void {
    if (number > this.#ack) this.#ack = number;
  }

  #beat(): void {
    // Two without an answer: another connection may do better.
    if (this.#unanswered > 1) return this.#lose('the daemon does not answer');
    this.#unanswered += 1;
    this.#seq += 1;
    this.#send([from.PING, this.#ack, this.#seq]);
  }
}
