/**
 * A session with the daemon that served the page. It subscribes, queries, and resumes after a lost
 * connection, so that a lock that was stolen here stays held. It drives the `SessionMachine` of the
 * package: it owns the connection and the clock. It never draws.
 */

import { LIMIT, STORAGE, UNAUTHORIZED } from '../../lockkeeper/src/codes.js';
import { later, now } from '../../lockkeeper/src/host.js';
import { pack, type Uint } from '../../lockkeeper/src/pack.js';
import { SessionMachine } from '../../lockkeeper/src/session.js';
import type { Ended, Event, Failure, Key } from '../../lockkeeper/src/session-types.js';
import * as to from '../../lockkeeper/src/to-client.js';
import * as from from '../../lockkeeper/src/to-server.js';
import { SUBPROTOCOL } from '../../lockkeeper/src/wire.js';
import { CHANGES, decodeAll, SUBSCRIBE, type ToClient, type ToServer } from './messages.js';
import type { Lock, Model, Request } from './model.js';

/** Flags of a request. */
const STEAL = 2;

/** A reserved name: a question about it is answered with deadlocks alone. */
const NOBODY = Uint8Array.of(0x2d);

/**
 * A question about this very name is sent as Subscribe. The machine asks it again whenever the
 * session is resumed.
 */
const ALL = Uint8Array.of(0x2d);

/** Milliseconds until what a limit forbids is tried again. */
const PAUSE = 2000;

const SILENT = 'the daemon does not answer';

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

export type Answer = { ok: true; count: number } | { ok: false; why: string };

/** The data of a request or question. */
interface Submission {
  over(outcome: Ended): void;
  granted?(): void;
}

interface Connection {
  readonly socket: WebSocket;
  /** The machine's number of it, once Hello was sent. */
  number: number;
  cancelTimeout: () => void;
}

export class Session {
  readonly #options: Options;
  #machine!: SessionMachine<Submission>;
  #connection: Connection | undefined;
  #isOpen = false;
  #closed = false;
  /** Why the connection is about to end. */
  #why: string | undefined;
  #wakeTime = Infinity;
  #cancelWake = (): void => {};
  #subscription: Uint = 0;
  /** Parts of a state that is not whole yet. */
  #parts: to.WireEntry[] | null = null;
  /** Whether deadlocks are being searched, and whether the answer will be outdated. */
  #searching = false;
  #outdated = false;
  /** Locks that were stolen here. They stay until the daemon has them back. */
  readonly held = new Map<Key, Uint8Array>();
  /** The unanswered questions. They end with the connection. */
  readonly #unanswered = new Map<Key, (answer: Answer) => void>();
  /** Whom to tell that a lock was given back. */
  readonly #givenBack = new Map<Key, (answer: Answer) => void>();
  clientId = '';

  constructor(options: Options) {
    this.#options = options;
    this.#start();
  }

  /** Ends the session, with what it holds. */
  close(): void {
    if (!this.#closed) this.#end();
  }

  forceRelease(name: Uint8Array): Promise<Answer> {
    return this.#force(name);
  }

  endSession(clientId: string): Promise<Answer> {
    return this.#force(clientId);
  }

  /** Takes a lock from those who hold it, and keeps it until it is released here. */
  steal(name: Uint8Array): Promise<Answer> {
    return this.#ask((done) => {
      const granted = () => {
        this.held.set(key, name);
        done({ ok: true, count: 1 });
        this.#options.onChange();
      };
      const over = (outcome: Ended) => {
        if (!this.held.delete(key)) return done(answerOf(outcome));
        const back = this.#givenBack.get(key);
        this.#givenBack.delete(key);
        if (outcome.how === 'released') back?.({ ok: true, count: 1 });
        else this.#options.onLost(name, outcome.how === 'broken' ? outcome.by : null);
        this.#options.onChange();
      };
      const request = { scope: [[name, false]] as [Uint8Array, boolean][], flags: STEAL, nestedIn: null, info: 'stolen from the dashboard' };
      const key: Key = this.#machine.request(request, { granted, over });
      return key;
    });
  }

  /**
   * Gives a lock back: without a connection, once there is one. If it is lost before, `onLost` is
   * called instead.
   */
  release(key: Key): Promise<Answer> {
    return new Promise((done) => {
      this.#givenBack.set(key, done);
      this.#machine.release(key);
      this.#pump();
    });
  }

  /** A lock as it is now. */
  lockOf(key: string): Lock | undefined {
    return this.#options.model.locks.get(key);
  }

  /** The requests of a session. */
  requestsOf(clientId: string): Request[] {
    return [...this.#options.model.requests.values()].filter((request) => request.clientId === clientId);
  }

  /** Has the daemon search for deadlocks, if there can be one. */
  searchDeadlocks(): void {
    const { model, onChange } = this.#options;
    if (!this.#isOpen) return;
    if (model.nested === 0) {
      if (model.deadlocks.length > 0) model.setDeadlocks([]);
      return;
    }
    this.#outdated = this.#searching;
    if (this.#searching) return;
    this.#searching = true;
    const over = (outcome: Ended) => {
      this.#searching = false;
      model.setDeadlocks(outcome.how === 'snapshot' ? outcome.snapshot.deadlocks : []);
      if (this.#outdated) this.searchDeadlocks();
      onChange();
    };
    this.#machine.query(NOBODY, true, { over });
    this.#pump();
  }

  #force(target: Uint8Array | string): Promise<Answer> {
    return this.#ask((done) => this.#machine.force(target, { over: (outcome) => done(answerOf(outcome)) }));
  }

  /**
   * Asks now or never: later, others may hold the lock, and it was not confirmed that it is taken
   * from them.
   */
  #ask(enter: (done: (answer: Answer) => void) => Key): Promise<Answer> {
    return new Promise((resolve) => {
      if (!this.#isOpen) return resolve({ ok: false, why: 'not connected' });
      const done = (answer: Answer) => {
        this.#unanswered.delete(key);
        resolve(answer);
      };
      const key = enter(done);
      this.#unanswered.set(key, done);
      this.#pump();
    });
  }

  #start(): void {
    if (this.#closed) return;
    const { bucket } = this.#options;
    // A closed page releases its locks.
    this.#machine = new SessionMachine<Submission>({ bucket, owner: 'dashboard', ttl: null, goingAwayEnds: true }, now());
    this.#searching = false;
    this.#subscribe();
  }

  #subscribe(): void {
    const over = (outcome: Ended) => {
      if (outcome.how !== 'refused') return;
      if (outcome.code !== LIMIT) return this.#fail({ kind: 'refused', why: outcome.message });
      this.#options.onStatus({ kind: 'lost', why: outcome.message });
      later(() => !this.#closed && this.#machine === machine && this.#subscribe(), PAUSE);
    };
    const machine = this.#machine;
    machine.query(ALL, false, { over });
    this.#pump();
  }

  #flush(): void {
    for (const message of this.#machine.takeOutput()) {
      const subscribes = message[0] === from.QUERY && message[3] === ALL;
      if (subscribes) [this.#subscription, this.#parts] = [message[2], null];
      const sent: ToServer = subscribes ? [SUBSCRIBE, message[1], message[2]] : message;
      if (this.#connection?.socket.readyState === WebSocket.OPEN) this.#connection.socket.send(pack(sent));
    }
  }

  /**
   * Does what the machine wants. With `anew`, the timer is set again: one that is set by a message
   * is never one of a chain, which browsers slow down in pages that are not seen.
   */
  #pump(anew = false): void {
    if (this.#closed) return;
    const machine = this.#machine;
    this.#flush();
    const drop = machine.wantsDrop();
    if (drop) this.#drop();
    const events = machine.takeEvents();
    for (const event of events) this.#onEvent(event);
    if (drop && !this.#closed && !events.some(({ type }) => type === 'failed')) this.#lost(SILENT);
    if (this.#closed || this.#machine !== machine) return;
    this.#flush();
    this.#schedule(anew);
  }

  #schedule(anew: boolean): void {
    const machine = this.#machine;
    const time = now();
    const connectAt = this.#connection === undefined ? machine.connectAt() : undefined;
    if (connectAt !== undefined && connectAt <= time) return this.#connect();
    const at = Math.min(machine.nextWake(), connectAt ?? Infinity);
    if (at === this.#wakeTime && !anew) return;
    this.#cancelWake();
    this.#wakeTime = at;
    if (at === Infinity) return;
    const wake = () => {
      this.#wakeTime = Infinity;
      machine.wake(now());
      if (this.#machine === machine) this.#pump();
    };
    this.#cancelWake = later(wake, Math.max(1, Math.ceil((at - time) / 1000)));
  }

  #connect(): void {
    const { url, token, onStatus } = this.#options;
    onStatus({ kind: 'connecting' });
    const socket = new WebSocket(url, SUBPROTOCOL);
    socket.binaryType = 'arraybuffer';
    const timeout = Math.ceil(this.#machine.helloTimeout() / 1000);
    const connection: Connection = { socket, number: 0, cancelTimeout: later(() => this.#onClose(SILENT), timeout) };
    this.#connection = connection;
    socket.onopen = () => {
      if (this.#connection !== connection) return;
      connection.cancelTimeout();
      connection.number = this.#machine.connected(now(), token);
      this.#pump();
    };
    socket.onmessage = ({ data }: MessageEvent<ArrayBuffer>) => this.#receive(connection, data);
    socket.onclose = () => this.#connection === connection && this.#onClose('the connection was lost');
    // The lease may end in the meantime.
    this.#schedule(false);
  }

  #receive(connection: Connection, data: ArrayBuffer): void {
    if (this.#connection !== connection) return;
    let messages: ToClient[];
    try {
      messages = decodeAll(new Uint8Array(data));
    } catch (error) {
      return this.#fail({ kind: 'refused', why: String(error) });
    }
    const time = now();
    for (const message of messages) {
      if (message[0] === CHANGES) this.#onChanges(message);
      else if (message[0] === to.SNAPSHOT && message[1] === this.#subscription) this.#onState(message);
      else {
        if (message[0] === to.GOODBYE) this.#why = message[2];
        this.#machine.message(time, connection.number, message);
      }
    }
    this.#pump(messages.some(([kind]) => kind === to.PONG));
  }

  #onState([, , entries, , lastToken, more]: Extract<ToClient, [typeof to.SNAPSHOT, ...unknown[]]>): void {
    this.#parts ??= [];
    for (const entry of entries) this.#parts.push(entry);
    if (more) return;
    const { model, onStatus, onChange } = this.#options;
    model.replace(this.#parts, lastToken, Date.now());
    this.#parts = null;
    onStatus({ kind: 'live' });
    onChange();
  }

  #onChanges([, rid, entries, gone, lastToken]: Extract<ToClient, [typeof CHANGES, ...unknown[]]>): void {
    if (rid !== this.#subscription) return;
    // In the middle of a state: the daemon begins it again.
    if (this.#parts !== null) this.#parts = null;
    else {
      this.#options.model.change(entries, gone, lastToken, Date.now());
      this.#options.onChange();
    }
  }

  #onEvent(event: Event<Submission>): void {
    switch (event.type) {
      case 'opened':
        this.#isOpen = this.#connection !== undefined;
        this.#why = undefined;
        this.clientId = event.clientId;
        return;
      case 'failed':
        return this.#onFailure(event.failure);
      case 'granted':
        return event.data.granted?.();
      case 'over':
        return event.data.over(event.outcome);
    }
  }

  #onFailure({ code, message }: Failure): void {
    if (code === LIMIT || code === STORAGE) {
      this.#lost(message);
      later(() => this.#start(), PAUSE);
    } else {
      // No token helps a page of an origin that is refused.
      const needsToken = code === UNAUTHORIZED && !/^(the|an opaque) origin /.test(message);
      this.#fail({ kind: needsToken ? 'login' : 'refused', why: message });
    }
  }

  #onClose(why: string): void {
    const { number } = this.#connection!;
    this.#drop();
    if (number > 0) this.#machine.disconnected(now(), number);
    else this.#machine.connectFailed(now(), { kind: 'unreachable', message: why });
    this.#lost(why);
    this.#pump();
  }

  /** The machine has no connection any more. */
  #lost(why: string): void {
    why = this.#why ?? why;
    this.#why = undefined;
    for (const [key, done] of this.#unanswered) {
      // The next connection does not send it again, and releases what it got.
      this.#machine.release(key, false, true);
      done({ ok: false, why: `${why}: the outcome is unknown` });
    }
    this.#options.onStatus({ kind: 'lost', why });
  }

  #fail(status: Status): void {
    this.#end();
    this.#options.onStatus(status);
  }

  #end(): void {
    this.#closed = true;
    this.#machine.close();
    this.#flush();
    this.#drop();
    for (const event of this.#machine.takeEvents()) this.#onEvent(event);
  }

  #drop(): void {
    this.#isOpen = false;
    this.#parts = null;
    this.#cancelWake();
    this.#wakeTime = Infinity;
    const connection = this.#connection;
    this.#connection = undefined;
    connection?.cancelTimeout();
    connection?.socket.close();
  }
}

function answerOf(outcome: Ended): Answer {
  switch (outcome.how) {
    case 'done':
      return { ok: true, count: Number(outcome.count) };
    case 'released':
      return { ok: true, count: 1 };
    case 'refused':
      return { ok: false, why: outcome.message };
    case 'failed':
      return { ok: false, why: outcome.failure.message };
    default:
      return { ok: false, why: 'the session was lost: the outcome is unknown' };
  }
}
