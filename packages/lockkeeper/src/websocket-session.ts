/**
 * A session over WebSocket, which needs only the language and a `WebSocket`: for browsers, Node,
 * Bun and Deno. It drives a `SessionMachine`: it owns the connection, the clock and the page, and
 * decides nothing about locks.
 *
 * A page in the back/forward cache holds no locks: its session ends when the page is hidden, and
 * another begins when it is shown. A session that cannot be opened is idle: it has no connection,
 * timer or listener until the next request.
 */

import { DeadlockError, noSession, refusal } from './errors.js';
import { task } from './host.js';
import { queueMicrotask } from './intrinsics.js';
import { packAll } from './pack.js';
import type { Listener, Outcome, Session, Snapshot } from './remote.js';
import type { Request } from './request.js';
import { SessionMachine } from './session.js';
import type { Ended, Event, Failure, Key } from './session-types.js';
import { GOODBYE, PONG, type ToClient, type WireDeadlock, type WireEntry } from './to-client.js';
import type { Deadlock } from './transport.js';
import { decodeAll, fromName, MAX_BATCH, SUBPROTOCOL, toName } from './wire.js';

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

/** What a session needs of the runtime. */
export interface Runtime {
  open(url: string, protocol: string): Socket;
  /** Microseconds of a clock that runs while the machine is suspended. */
  now(): number;
  later(run: () => void, milliseconds: number): () => void;
  /** Why a connection could never be made, if that is known. */
  blocked?(): string | undefined;
  /**
   * Tells when a page is left or the process `ends`, and when a page is shown. Returns how to stop
   * that.
   */
  watchPage(left: (ends: boolean) => void, shown: () => void): () => void;
  /** Whether connections are closed with status 1001 when the page or worker ends. */
  goingAwayEnds: boolean;
}

/** The options of a session. */
export interface Credentials {
  /** It may be known only with the token. */
  bucket: string;
  token: Token | (() => Token | Promise<Token>);
  /** Whether a server that is not there is waited for from the beginning. */
  retry?: boolean;
}

type Token = string | null;

/** A request, or a question with the promise of its answer. */
interface Submission {
  /** Hands it to the machine. */
  enter(machine: SessionMachine<Submission>): Key;
  request?: Request;
  answer?(outcome: Ended): void;
  reject?(reason: unknown): void;
}

/** A connection, or one that is being made. */
interface Connection {
  socket: Socket;
  /** Its number, once Hello was sent. */
  number: number;
  isOpen: boolean;
  /** Whether the token is being fetched. */
  waitsForToken: boolean;
  why: string;
  cancelTimeout: () => void;
}

/**
 * How much may be sent and not be answered yet. A ping waits behind it, and its answer must come in
 * time.
 */
const WINDOW = 1000;
/**
 * Microseconds that a message may wait for others, to go in one frame with them: while code of the
 * page runs.
 */
const MAX_WAIT = 1000;
/** Milliseconds that a token may take, and that closing may take. */
const TOKEN_TIMEOUT = 60_000;
const CLOSE_TIMEOUT = 1000;
/** What a timer can count to. */
const MAX_DELAY = 2 ** 31 - 1;
const SILENT = 'it does not answer';

export class WebSocketSession implements Session {
  clientId = '';
  readonly opened: Promise<void>;
  /** None while the session is idle. */
  #machine: SessionMachine<Submission> | undefined;
  #connection: Connection | undefined;
  /** What waits for room in the window, in its order: by its request, or by itself. */
  readonly #backlog = new Map<Request | Submission, Submission>();
  readonly #unanswered = new Set<Key>();
  /** Whether `#pump` is scheduled, and until when output may wait for it. */
  #pumps = false;
  #sendBy = 0;
  /**
   * Whether a server that is not there is waited for: once there was a session, or from the
   * beginning.
   */
  #waits: boolean;
  /** Whether the page is in the back/forward cache. */
  #away = false;
  /** When the machine wants to connect, and when that is done. */
  #connectAt: number | undefined;
  #connectTime = 0;
  #wakeTime = Infinity;
  #cancelWake = (): void => {};
  #unwatch: (() => void) | undefined;
  /** Why the last attempt to connect failed, for those who lose a lock by it. */
  #why: string | undefined;
  /** Why there is none, if it was refused. */
  #refusal: Error | undefined;
  #settle!: { resolve: () => void; reject: (reason: unknown) => void };

  readonly #listener: Listener;
  /** Of the daemons of a fleet. Each attempt to connect goes to the next one. */
  readonly #urls: readonly string[];
  #attempts!: number;
  readonly #credentials: Credentials;
  readonly #runtime: Runtime;

  constructor(listener: Listener, urls: readonly string[], credentials: Credentials, runtime: Runtime) {
    this.#listener = listener;
    this.#urls = urls;
    this.#credentials = credentials;
    this.#runtime = runtime;
    this.#waits = credentials.retry === true;
    this.opened = new Promise((resolve, reject) => (this.#settle = { resolve, reject }));
    this.#start();
  }

  request(request: Request, flags: number, nestedIn: Request | undefined, info: string | undefined): void {
    const { names, shared } = request.scope();
    request.slot = -1;
    const submission: Submission = {
      request,
      enter(machine) {
        const wanted = {
          scope: names.map((name, i) => [toName(name), shared[i]!] as const),
          // The first bit says that it is shared, which the scope does here.
          flags: flags >> 1,
          nestedIn: nestedIn?.slot ?? null,
          info: info ?? null,
        };
        return (request.slot = machine.request(wanted, submission));
      },
    };
    this.#submit(submission);
  }

  releaseOrCancel(request: Request, timedOut?: boolean): void {
    if (this.#backlog.delete(request)) return queueMicrotask(() => this.#listener.over(request, 'ended'));
    // What is lost by now was not released in time: code may have blocked its thread for long.
    this.#machine?.checkLease(this.#now());
    this.#machine?.release(request.slot, timedOut);
    this.#afterCommand();
  }

  /**
   * Looks at the clock. If the lease is over, all that the session had is lost before this returns.
   */
  isHeld(request: Request): boolean {
    const now = this.#now();
    if (this.#machine?.checkLease(now)) this.#pump();
    return this.#machine?.isHeld(now, request.slot) ?? false;
  }

  query(deadlocks: boolean): Promise<Snapshot> {
    return this.#ask((machine, submission) => machine.query(null, deadlocks, submission)).then((outcome) => {
      const { entries, deadlocks } = (outcome as Ended & { how: 'snapshot' }).snapshot;
      return { entries: entries.map(entryOf), deadlocks: deadlocks.map(deadlockOf) };
    });
  }

  async forceRelease(name: string): Promise<void> {
    await this.#ask((machine, submission) => machine.force(toName(name), submission));
  }

  /** Resolves when the connection is closed, so that the server has received what was sent. */
  close(): Promise<void> {
    const socket = this.#connection?.socket;
    const closed = new Promise<void>((resolve) => {
      if (socket === undefined) return resolve();
      socket.addEventListener('close', () => resolve());
      this.#runtime.later(resolve, CLOSE_TIMEOUT);
    });
    const reason = noSession('the session is closed');
    this.#settle.reject(reason);
    this.#end('lost', reason);
    this.#rest();
    return closed;
  }

  #start(): void {
    this.#attempts = 0;
    this.#listener.status('connecting');
    this.#machine = this.#newMachine();
    this.#unwatch = this.#runtime.watchPage(
      (ends) => this.#left(ends),
      () => this.#shown(),
    );
    this.#pump();
  }

  #now(): number {
    return this.#runtime.now();
  }

  #newMachine(): SessionMachine<Submission> {
    const credentials = this.#credentials;
    const { goingAwayEnds } = this.#runtime;
    const config = {
      get bucket() {
        return credentials.bucket;
      },
      ...{ owner: null, ttl: null, goingAwayEnds },
    };
    return new SessionMachine(config, this.#now());
  }

  /**
   * A page in the back/forward cache must not hold locks. When the process ends, there is no
   * listener to notify.
   */
  #left(ends: boolean): void {
    if (ends) {
      this.#machine?.close();
      this.#flush();
      this.#connection?.socket.close();
      return;
    }
    const reason = noSession('the page was left');
    if (!this.#waits) return this.#refuse(reason);
    this.#away = true;
    this.#interrupted();
    this.#end('lost', reason);
    this.#machine = this.#newMachine();
  }

  #shown(): void {
    if (!this.#away) return;
    this.#away = false;
    this.#pump();
  }

  #ask(enter: (machine: SessionMachine<Submission>, submission: Submission) => Key): Promise<Ended> {
    return new Promise((answer, reject) => {
      const submission: Submission = { enter: (machine) => enter(machine, submission), answer, reject };
      this.#submit(submission);
    });
  }

  #submit(submission: Submission): void {
    if (this.#machine === undefined) this.#start();
    // It may have failed at once.
    if (this.#machine === undefined) return queueMicrotask(() => this.#complete(submission, this.#refusal!));
    this.#backlog.set(submission.request ?? submission, submission);
    this.#fillWindow(this.#machine);
    this.#afterCommand();
  }

  #fillWindow(machine: SessionMachine<Submission>): void {
    if (this.#unanswered.size >= WINDOW) return;
    for (const [what, submission] of this.#backlog) {
      this.#backlog.delete(what);
      this.#unanswered.add(submission.enter(machine));
      if (this.#unanswered.size >= WINDOW) return;
    }
  }

  /**
   * The listener is not called within a call. The requests of one turn of the page go into one
   * frame.
   */
  #afterCommand(): void {
    if (!this.#pumps) return this.#pumpSoon(this.#unanswered.size > 16 ? task : queueMicrotask);
    const now = this.#now();
    if (now < this.#sendBy) return;
    this.#sendBy = now + MAX_WAIT;
    this.#flush();
  }

  #pumpSoon(schedule: (run: () => void) => void): void {
    this.#pumps = true;
    this.#sendBy = this.#now() + MAX_WAIT;
    schedule(() => {
      this.#pumps = false;
      this.#pump();
    });
  }

  #flush(): void {
    const frames = packAll(this.#machine?.takeOutput() ?? [], MAX_BATCH);
    for (const frame of frames) this.#connection?.socket.send(frame);
  }

  /**
   * Does what the machine wants. With `anew`, the timer is set again: one that is set by a message
   * is never one of a chain, which browsers slow down in pages that are not seen.
   */
  #pump(anew = false): void {
    const machine = this.#machine;
    if (machine === undefined) return;
    this.#flush();
    const drop = machine.wantsDrop();
    if (drop) {
      this.#closeSocket();
      this.#interrupted();
    }
    const events = machine.takeEvents();
    for (const event of events) this.#notify(machine, event, events.length === 1 && !this.#pumps);
    // Locks that were granted together are released together, as far as their callbacks have ended.
    if (events.length > 1 && !this.#pumps) this.#pumpSoon(task);
    if (this.#machine !== machine) return;
    if (drop && this.#isFinalFailure()) return this.#refuse(this.#unreachable(SILENT));
    this.#fillWindow(machine);
    this.#flush();
    this.#schedule(machine, anew);
  }

  #schedule(machine: SessionMachine<Submission>, anew: boolean): void {
    let at = machine.nextWake();
    const now = this.#now();
    const connectAt = this.#connection || this.#away ? undefined : machine.connectAt();
    if (connectAt !== undefined) {
      // Clients that lost the same server do not come back in step.
      if (connectAt !== this.#connectAt) this.#connectTime = connectAt - ((connectAt - now) * Math.random()) / 2;
      if (this.#connectTime <= now) return this.#connect(machine);
      at = Math.min(at, this.#connectTime);
    }
    this.#connectAt = connectAt;
    if (at === this.#wakeTime && !anew) return;
    this.#cancelWake();
    this.#wakeTime = at;
    if (at === Infinity) return;
    const delay = Math.min(Math.max(Math.ceil((at - now) / 1000), 1), MAX_DELAY);
    this.#cancelWake = this.#runtime.later(() => {
      this.#wakeTime = Infinity;
      machine.wake(this.#now());
      this.#pump();
    }, delay);
  }

  /** Without a token in hand, one is fetched when the connection stands. */
  #connect(machine: SessionMachine<Submission>, token?: { value: Token }): void {
    this.#connectAt = undefined;
    const source = this.#credentials.token;
    if (typeof source !== 'function') token = { value: textOf(source) };
    let socket: Socket;
    try {
      socket = this.#runtime.open(this.#urls[this.#attempts++ % this.#urls.length]!, SUBPROTOCOL);
    } catch (cause) {
      const message = cause instanceof Error ? cause.message : String(cause);
      machine.connectFailed(this.#now(), { kind: 'unusable', message, cause });
      return this.#pump();
    }
    socket.binaryType = 'arraybuffer';
    // All are tried before a lease ends. For a first session, the last one has all the time: none may be faster.
    const share = this.clientId ? this.#urls.length : this.#triedAll() ? 1 : 5;
    const timeout = Math.ceil(machine.helloTimeout() / share / 1000);
    const connection: Connection = {
      socket,
      number: 0,
      isOpen: false,
      waitsForToken: false,
      why: 'refused or interrupted',
      cancelTimeout: this.#runtime.later(() => this.#attemptFailed(SILENT), timeout),
    };
    this.#connection = connection;
    const on = (type: string, run: (event: SocketEvent) => void): void =>
      socket.addEventListener(type, (event) => this.#connection === connection && run(event));
    on('open', () => {
      connection.isOpen = true;
      if (token) this.#sendHello(connection, token.value);
      else void this.#fetchToken(connection, source as () => Token | Promise<Token>);
    });
    on('message', ({ data }) => this.#receive(connection, data));
    on('error', ({ message }) => {
      connection.why = message || connection.why;
      // In Node 22, no close follows if there was no connection.
      if (!connection.isOpen && !connection.waitsForToken) this.#attemptFailed(connection.why);
    });
    on('close', () => {
      connection.isOpen = false;
      if (connection.number > 0) this.#disconnected(connection.why);
      else if (!connection.waitsForToken) this.#attemptFailed(connection.why);
    });
    // What comes next may be long in coming, and the lease ends meanwhile.
    this.#schedule(machine, false);
  }

  /**
   * The token may take longer than a server waits for Hello. A connection that was closed meanwhile
   * is made again, with the token in hand.
   */
  async #fetchToken(connection: Connection, fetch: () => Token | Promise<Token>): Promise<void> {
    connection.waitsForToken = true;
    connection.cancelTimeout();
    const tooLong = (): void => this.#attemptFailed('the token function has not settled');
    connection.cancelTimeout = this.#runtime.later(tooLong, TOKEN_TIMEOUT);
    let value: Token;
    try {
      value = textOf(await fetch());
    } catch (cause) {
      if (this.#connection === connection) this.#attemptFailed(`the token function failed (${String(cause)})`, cause);
      return;
    }
    if (this.#connection !== connection) return;
    if (connection.isOpen) return this.#sendHello(connection, value);
    this.#closeSocket();
    this.#connect(this.#machine!, { value });
  }

  #sendHello(connection: Connection, token: Token): void {
    connection.cancelTimeout();
    connection.number = this.#machine!.connected(this.#now(), token);
    this.#pump();
  }

  #receive(connection: Connection, data: unknown): void {
    let messages: ToClient[];
    try {
      if (typeof data === 'string') throw new TypeError('text');
      messages = decodeAll(new Uint8Array(data as ArrayBuffer));
    } catch (error) {
      const why = `it does not speak the protocol (${(error as Error).message})`;
      return connection.number > 0 ? this.#disconnected(why) : this.#attemptFailed(why);
    }
    const now = this.#now();
    for (const message of messages) {
      if (message[0] === GOODBYE) {
        this.#why = message[2];
        // It is refused before it has said anything: no token would help.
        if (connection.number === 0) this.#sendHello(connection, null);
      }
      if (connection.number > 0) this.#machine!.message(now, connection.number, message);
    }
    this.#pump(messages.some(([kind]) => kind === PONG));
  }

  #attemptFailed(why: string, cause?: unknown): void {
    this.#closeSocket();
    const blocked = this.#runtime.blocked?.();
    const message = (this.#why = blocked ?? why);
    const kind = blocked ? 'unusable' : 'unreachable';
    this.#machine!.connectFailed(this.#now(), { kind, message, cause });
    this.#pump();
  }

  #disconnected(why: string): void {
    const { number } = this.#connection!;
    this.#closeSocket();
    this.#machine!.disconnected(this.#now(), number);
    this.#interrupted();
    if (this.#isFinalFailure()) this.#refuse(this.#unreachable(why));
    else this.#pump();
  }

  #triedAll(): boolean {
    return this.#attempts % this.#urls.length === 0;
  }

  /** Whether a failure is the last: there was no session yet, and no server is left to try. */
  #isFinalFailure(): boolean {
    return !this.#waits && this.#triedAll();
  }

  #interrupted(): void {
    if (this.clientId) this.#listener.status('reconnecting');
  }

  #closeSocket(): void {
    const connection = this.#connection;
    this.#connection = undefined;
    connection?.cancelTimeout();
    connection?.socket.close();
  }

  /**
   * With `alone`, this is the only notification of its task, and no earlier one has a pending task.
   */
  #notify(machine: SessionMachine<Submission>, event: Event<Submission>, alone: boolean): void {
    if ('key' in event) this.#unanswered.delete(event.key);
    switch (event.type) {
      case 'opened':
        this.clientId = event.clientId;
        this.#waits = true;
        this.#listener.status('connected');
        this.#why = undefined;
        // The server may have listed some.
        for (const key of this.#unanswered) if (!machine.isUnanswered(key)) this.#unanswered.delete(key);
        return this.#settle.resolve();
      case 'unreachable':
        if (this.#isFinalFailure()) this.#refuse(this.#reason(event.failure));
        return;
      case 'failed':
        if (this.#machine === machine) this.#refuse(this.#reason(event.failure));
        return;
      case 'granted':
        return this.#listener.granted(event.data.request!, event.token, alone);
      case 'over':
        return this.#complete(event.data, event.outcome);
    }
  }

  /** There is no session, and there will be none: waiting requests are refused. */
  #refuse(reason: Error): void {
    this.#refusal = reason;
    this.#settle.reject(reason);
    this.#end(reason, reason);
    this.#rest();
  }

  /** Ends the session, with all it has. What was not sent yet ends like this. */
  #end(how: Error | 'lost', reason: Error): void {
    const machine = this.#machine;
    const waiting = [...this.#backlog.values()];
    this.#backlog.clear();
    if (machine === undefined) return;
    machine.close();
    this.#flush();
    this.#closeSocket();
    this.#machine = undefined;
    for (const event of machine.takeEvents()) {
      if (event.type !== 'over') continue;
      const { outcome, data } = event;
      const unsent = outcome.how === 'failed' && outcome.failure.kind === 'closed';
      this.#complete(data, unsent ? (data.request ? how : reason) : outcome);
    }
    for (const submission of waiting) this.#complete(submission, submission.request ? how : reason);
    this.#unanswered.clear();
    this.#cancelWake();
    this.#wakeTime = Infinity;
    this.#connectAt = undefined;
  }

  /** Leaves nothing behind. */
  #rest(): void {
    this.#listener.status('closed');
    this.#unwatch?.();
    this.#unwatch = undefined;
    this.#away = false;
  }

  #complete({ request, answer, reject }: Submission, outcome: Ended | Error | 'lost'): void {
    const how = typeof outcome === 'object' && 'how' in outcome ? this.#outcomeOf(outcome) : outcome;
    if (request) this.#listener.over(request, how, this.#why);
    else if (how === 'ended') answer!(outcome as Ended);
    else reject!(how instanceof Error ? how : noSession('the session was lost: the outcome is unknown'));
  }

  #outcomeOf(outcome: Ended): Outcome {
    switch (outcome.how) {
      case 'broken':
        return outcome.cause;
      case 'refused':
        return refusal(outcome.code, outcome.message);
      case 'deadlocked':
        return new DeadlockError(deadlockOf(outcome.deadlock));
      case 'failed':
        return this.#reason(outcome.failure);
      case 'unavailable':
        return 'unavailable';
      default:
        return 'ended';
    }
  }

  #reason({ kind, message, code, cause }: Failure): Error {
    return kind === 'refused' ? noSession(message, code) : this.#unreachable(message, cause);
  }

  #unreachable(why: string, cause?: unknown): Error {
    // What was thrown says what is wrong: a token function's failure is not the server's.
    const trusted = /^wss/i.test(this.#urls[0]!) ? ', with a certificate that is trusted here' : '';
    const hint = cause === undefined ? `. Does \`lockkeeper serve --listen\` run there${trusted}?` : '';
    return noSession(`no session at ${this.#urls.join()}: ${why}${hint}`, undefined, cause);
  }
}

function textOf(token: unknown): Token {
  return token === null || token === undefined ? null : `${token as string}`;
}

function entryOf(entry: WireEntry): Snapshot['entries'][0] {
  const [name, shared, clientId, arrival, token, info, since, nestedIn, stole] = entry;
  return {
    place: { name: fromName(name), mode: shared ? 'shared' : 'exclusive' },
    clientId,
    arrival,
    token: token ?? undefined,
    info: info ?? undefined,
    since: Number(since),
    nestedIn: nestedIn ?? undefined,
    stole,
  };
}

function deadlockOf([message, steps]: WireDeadlock): Deadlock {
  const cycle = steps.map(([arrival, clientId, waitsFor]) => {
    const step = { request: BigInt(arrival), clientId };
    return waitsFor === null ? step : { ...step, waitsFor: fromName(waitsFor) };
  });
  return { message, cycle };
}
