/**
 * A session over WebSocket, which needs nothing but the language and a `WebSocket`: for browsers, Node, Bun and Deno.
 *
 * If the connection drops, it comes back, goes on with the session, and says again what it has. It takes its locks for
 * lost before the daemon does, and without hearing from it: three quarters of the ttl after it said the last thing that
 * was answered. What is asked after that waits for the next session.
 */

import { Code, noSession } from './errors.js';
import { Malformed } from './pack.js';
import type { Listener, Session, Snapshot } from './remote.js';
import type { Request } from './request.js';
import { Table } from './table.js';
import { decode, encode, Hear, Say, toName, VERSION, type ToClient, type ToServer } from './wire.js';

/** What this needs of a `WebSocket`. */
export interface Socket {
  binaryType: string;
  send(data: Uint8Array<ArrayBuffer>): void;
  close(): void;
  addEventListener(type: string, listener: (event: SocketEvent) => void): void;
}

interface SocketEvent {
  data?: unknown;
  message?: string;
}

/** A time, by two clocks. */
export type Mark = readonly [number, number];

/** What a session needs of the runtime. */
export interface World {
  open(url: string, protocol: string): Socket;
  now(): Mark;
  /** Milliseconds from one time to another. */
  between(earlier: Mark, later: Mark): number;
  later(run: () => void, milliseconds: number): () => void;
  watchPage(left: () => void, shown: () => void): () => void;
}

/** Who wants what. */
export interface Visitor {
  bucket: string;
  token: string | (() => string | Promise<string>) | null;
}

const PROTOCOL = 'lockkeeper.v1';
/** How often in a ttl the daemon is asked whether it is there. */
const BEATS = 5;
/** For which part of the ttl a session is believed in. */
const BELIEF = 3 / 4;
/** How many milliseconds a connection may take while there is no session to be lost. */
const PATIENCE = 10_000;
/** How many it may take to close. */
const LEAVING = 1000;
/** Milliseconds between attempts, at first and at most; and how many there are at least while a session is believed in. */
const PAUSE = 50;
const LONGEST_PAUSE = 2000;
const ATTEMPTS = 8;
/** What a timer can count to. */
const LONGEST_TTL = 2 ** 31 - 1;

/** The daemon refuses now, and may not a little later. */
const PASSING: number[] = [Code.LIMIT, Code.STORAGE, Code.STOPPING];

export class WebSocketSession implements Session {
  clientId = '';
  readonly opened: Promise<void>;
  readonly #table: Table;
  /** The connection that there is, or is being made. No other is heard. */
  #socket: Socket | undefined;
  /** Whether the daemon has said welcome on it. */
  #welcome = false;
  /** The session, and how to go on with it. */
  #identity: { id: string; secret: Uint8Array; ttl: number } | undefined;
  /** When the last thing was said that was answered. */
  #answered: Mark;
  /** When something was said on this connection that is not answered yet: hello and pings. */
  #unanswered: Mark[] = [];
  /** Whether there ever was a session: from then on, a daemon that is not there is waited for. */
  #wasOpen = false;
  #attempts = 0;
  #away = false;
  #closed = false;
  readonly #unwatch: () => void;
  #cancelBeat: (() => void) | undefined;
  /** Prevents the next attempt, or the end of this one. */
  #cancelAttempt: (() => void) | undefined;
  #settle!: { resolve: () => void; reject: (reason: unknown) => void };

  constructor(
    listener: Listener,
    private readonly url: string,
    private readonly visitor: Visitor,
    private readonly world: World,
  ) {
    this.#table = new Table(listener, (message) => this.#say(message));
    this.#answered = world.now();
    this.opened = new Promise((resolve, reject) => (this.#settle = { resolve, reject }));
    this.#unwatch = world.watchPage(
      () => this.#left(),
      () => this.#shown(),
    );
    this.#connect();
  }

  request(request: Request, flags: number, nestedIn: Request | undefined, info: string | undefined): void {
    this.#table.request(request, flags, nestedIn, info);
  }

  giveUp(request: Request, timedOut?: boolean): void {
    this.#table.giveUp(request, timedOut);
  }

  query(deadlocks: boolean): Promise<Snapshot> {
    return this.#table.ask((rid) => [Say.QUERY, rid, null, deadlocks]);
  }

  async forceRelease(name: string): Promise<void> {
    await this.#table.ask((rid) => [Say.FORCE_RELEASE, rid, toName(name)]);
  }

  /** Resolves when the connection is closed, so that the daemon has heard it. */
  close(): Promise<void> {
    const socket = this.#socket;
    const closed = new Promise<void>((resolve) => {
      if (socket === undefined) return resolve();
      socket.addEventListener('close', () => resolve());
      this.world.later(resolve, LEAVING);
    });
    this.#closed = true;
    this.#unwatch();
    this.#leave(noSession('the session was closed'));
    return closed;
  }

  /** A page in the back/forward cache must not hold locks. */
  #left(): void {
    this.#away = true;
    this.#leave(noSession('the page was left'));
  }

  #shown(): void {
    if (!this.#away) return;
    this.#away = false;
    this.#connect();
  }

  /** Ends the session, with all it has and all that was to be said in it. */
  #leave(reason: Error): void {
    this.#settle.reject(reason);
    this.#table.refuse('lost', reason);
    this.#end(reason);
  }

  #say(message: ToServer): boolean {
    if (this.#welcome) this.#socket!.send(encode(message));
    else if (this.#socket === undefined && this.#cancelAttempt === undefined) this.#connect();
    return this.#welcome;
  }

  #connect(): void {
    this.#cancelAttempt = undefined;
    if (this.#away || this.#closed) return;
    const socket = this.world.open(this.url, PROTOCOL);
    this.#socket = socket;
    socket.binaryType = 'arraybuffer';
    let why = 'the connection was refused, or cut';
    const on = (type: string, hear: (event: SocketEvent) => void): void =>
      socket.addEventListener(type, (event) => this.#socket === socket && hear(event));
    on('open', () => void this.#greet(socket));
    on('message', ({ data }) => this.#receive(data));
    on('error', ({ message }) => (why = message || why));
    on('close', () => this.#disconnected(why));
    const patience = this.#identity ? this.#identity.ttl / BEATS : PATIENCE;
    this.#cancelAttempt = this.world.later(() => this.#drop('it does not answer'), patience);
  }

  async #greet(socket: Socket): Promise<void> {
    const { bucket, token } = this.visitor;
    let shown: string | null = null;
    try {
      if (token !== null) shown = `${typeof token === 'function' ? await token() : token}`;
    } catch (error) {
      if (this.#socket === socket) this.#drop(`there is no token (${String(error)})`);
      return;
    }
    if (this.#socket !== socket) return;
    const resume = this.#identity;
    this.#unanswered = [this.world.now()];
    socket.send(encode([Say.HELLO, VERSION, bucket, resume ? [resume.id, resume.secret] : null, shown]));
  }

  #receive(data: unknown): void {
    let message: ToClient;
    try {
      if (!(data instanceof ArrayBuffer)) throw new Malformed('a message of text');
      message = decode(new Uint8Array(data));
    } catch (error) {
      return this.#drop(`it does not speak as a daemon does (${(error as Error).message})`);
    }
    if (message[0] === Hear.GOODBYE) this.#dismissed(Number(message[1]), message[2]);
    else if (message[0] === Hear.WELCOME) this.#begin(message[2], message[3], Number(message[4]), message[5]);
    else if (!this.#welcome) this.#drop('it does not speak as a daemon does');
    // It may have lain here for long: in a page that was frozen, on a machine that was suspended.
    else if (this.#isLost()) this.#end(lost());
    else if (message[0] === Hear.PONG) this.#heard();
    else this.#table.hear(message);
  }

  #begin(id: string, secret: Uint8Array, ttl: number, resumed: boolean): void {
    if (!resumed && this.#identity) this.#table.lose(lost());
    this.clientId = id;
    this.#identity = { id, secret, ttl: Math.min(ttl, LONGEST_TTL) };
    this.#cancelAttempt?.();
    this.#cancelAttempt = undefined;
    this.#attempts = 0;
    this.#welcome = true;
    this.#wasOpen = true;
    this.#heard();
    this.#table.connected(resumed);
    this.#settle.resolve();
  }

  /** What was said first, of what is not answered yet, is. */
  #heard(): void {
    this.#answered = this.#unanswered.shift() ?? this.#answered;
    // Set anew by a message, this timer is never one of a chain, which browsers slow down in pages that are not seen.
    this.#nextBeat();
  }

  #nextBeat(): void {
    const { ttl } = this.#identity!;
    const left = ttl * BELIEF - this.world.between(this.#answered, this.world.now());
    this.#cancelBeat?.();
    this.#cancelBeat = this.world.later(() => this.#beat(), Math.max(1, Math.min(ttl / BEATS, left)));
  }

  #beat(): void {
    if (this.#isLost()) return this.#end(lost());
    // Two beats without an answer: another connection may do better.
    if (this.#unanswered.length > 1) this.#drop('it does not answer');
    if (this.#welcome) {
      this.#unanswered.push(this.world.now());
      this.#say([Say.PING]);
    }
    this.#nextBeat();
  }

  #isLost(): boolean {
    if (this.#identity === undefined) return false;
    return this.world.between(this.#answered, this.world.now()) >= this.#identity.ttl * BELIEF;
  }

  #dismissed(code: number, words: string): void {
    if (this.#wasOpen && PASSING.includes(code)) this.#drop(words);
    else if (this.#welcome) this.#end(noSession(words, code));
    else this.#refuse(noSession(words, code));
  }

  /** Has done with this connection, of which the other side may not know. */
  #drop(why: string): void {
    const socket = this.#socket;
    this.#unplug();
    socket?.close();
    this.#disconnected(why);
  }

  /** Comes back, after a pause, if there is anything to come back for. */
  #disconnected(why: string): void {
    const reason = noSession(`no session at ${this.url}: ${why}. Does \`lockkeeper serve --listen\` run there?`);
    if (!this.#wasOpen) return this.#refuse(reason);
    this.#unplug();
    this.#table.disconnected(reason);
    if (this.#identity === undefined && this.#table.isEmpty) return;
    const belief = (this.#identity?.ttl ?? Infinity) * BELIEF;
    const pause = Math.min(PAUSE * 2 ** this.#attempts, LONGEST_PAUSE, belief / ATTEMPTS);
    this.#attempts += 1;
    this.#cancelAttempt = this.world.later(() => this.#connect(), pause * (0.5 + Math.random() / 2));
  }

  /** There is no session, and none is to be had: what waits for one is told so. */
  #refuse(reason: Error): void {
    this.#settle.reject(reason);
    this.#table.refuse(reason, reason);
    this.#end(reason);
  }

  /** The session is over. If somebody waits for one, begins another. */
  #end(reason: Error): void {
    // All that it had can be given out again at once.
    if (this.#welcome) this.#say([Say.BYE]);
    const socket = this.#socket;
    this.#unplug();
    socket?.close();
    this.#cancelBeat?.();
    this.#identity = undefined;
    this.#attempts = 0;
    this.#table.lose(reason);
    if (!this.#table.isEmpty) this.#connect();
  }

  #unplug(): void {
    this.#cancelAttempt?.();
    this.#cancelAttempt = undefined;
    this.#socket = undefined;
    this.#welcome = false;
    this.#unanswered = [];
  }
}

function lost(): Error {
  return noSession('the session was lost: no daemon answered in time');
}
