/**
 * The client's side of a session that has a lease: the port of `Session` in `crates/service`,
 * without the descriptors of a Unix socket. It has no I/O, clock or randomness. The same inputs at
 * the same times give the same messages and events, which `test/transcripts.test.js` checks against
 * the Rust one.
 *
 * A driver owns the connection and the clock, and calls:
 *
 * - `connectAt()`, which says when to try to connect. Then `connected()` or `connectFailed()`,
 *   `message()` for what comes, `disconnected()`;
 * - commands of the host: `request()`, `release()`, `query()`, `force()`, `close()`;
 * - `nextWake()`, which says when to call `wake()`;
 * - `takeOutput()` for the connection, `takeEvents()` for the host, `wantsDrop()` for a connection
 *   that is of no use any more.
 *
 * Times are microseconds, as integers below 2⁵³. Requests carry the host's data (`T`), handed back
 * with their end.
 *
 * The lease: the client considers its locks lost three quarters of the ttl after it *sent* the last
 * message that was answered, and the server ends the session a whole ttl after it *received* it. So
 * the client is always first, as long as their clocks do not differ in rate by more than a third.
 *
 * Resume: after a connection was lost the client compares what it wants with what the server has.
 */

import * as Code from './codes.js';
import { wtf8, type Uint } from './pack.js';
import type { Ended, Event, Failure, Key, LockRequest, Parts, SessionConfig } from './session-types.js';
import { ASKED, ENDING, GREETING, HELD, NONE, READY, SYNCING, WAITING } from './session-stages.js';
import * as Receive from './to-client.js';
import * as Send from './to-server.js';
import { MAX_MESSAGE, VERSION } from './wire.js';

/** How many pings a client sends within a ttl. */
const BEATS = 7;
/** How long the server may take to answer the first Hello. */
const HELLO_TIMEOUT = 10_000_000;
/** Between attempts to connect: at first, and at most. */
const PAUSE = 20_000;
const LONGEST_PAUSE = 2_000_000;
/** How many attempts there are at least while a lease is valid. */
const ATTEMPTS = 8;

/** What else a message has, at most. */
const OVERHEAD = 256;
const TOO_LONG = "limit reached: a request's names and label exceed 1 MiB";
const LOST: Ended = { how: 'broken', cause: 'lost', by: null };
const CLOSED: Failure = { kind: 'closed', message: 'the session is closed' };

/** A request or a question. */
interface Entry<T> {
  /** The number that it has on the wire; 0 until it is sent. */
  rid: number;
  stage: number;
  /** Whether it is being ended because its timeout expired. */
  timedOut: boolean;
  message: MessageOf;
  /** The parts received of the answer to a query. Nothing else refers to them. */
  parts: Parts | undefined;
  data: T;
}

/** The message that makes a request or asks a question. */
type MessageOf = (ack: Uint, rid: number) => Send.ToServer;

/** What the server says it has, until the end marker. */
interface Sync {
  number: Uint;
  ttl: number;
  resumed: boolean;
  lastRid: number;
  listed: Map<Uint, Uint | null>;
}

/**
 * For how many microseconds a lease of that many milliseconds is valid for the client: less than ¾
 * of it.
 */
function clientLease(ttl: number): number {
  return ttl * 750;
}

const greater = (a: Uint, b: Uint): Uint => (b > a ? b : a);

export class SessionMachine<T> {
  #identity: { clientId: string; secret: Uint8Array } | undefined;
  /** The number of the last Hello. */
  #hello = 0;
  #link: number = NONE;
  /** When the last Hello was sent. */
  #helloSent = 0;
  #sync: Sync | undefined;
  /** Counts connections. The newest is the only one that is listened to. */
  #connection = 0;
  /** When to try to connect, if there is no connection. */
  #connectAt: number | undefined;
  #failures = 0;
  /** In milliseconds; none if there is no session. */
  #ttl: number | undefined;
  /** When the last message was sent that was answered. */
  #answered: number;
  #pings: { seq: number; sent: number }[] = [];
  /** Never, if there is no lease. */
  #nextPing = Infinity;
  #seq = 0;
  #ack: Uint = 0;
  #lastRid = 0;
  #nextKey = 0;
  /** In the order of their keys. */
  readonly #entries = new Map<Key, Entry<T>>();
  /** The keys of the entries that have a number, in the order of the numbers: they only grow. */
  readonly #byRid = new Map<Uint, Key>();
  #output: Send.ToServer[] = [];
  #events: Event<T>[] = [];
  #dropConnection = false;
  #everOpened = false;
  #closed = false;

  /** A session that is yet to be opened. It wants a connection at once. */
  constructor(
    private readonly config: SessionConfig,
    now: number,
  ) {
    this.#connectAt = now;
    this.#answered = now;
  }

  /** When to connect; none while there is a connection, or the session is closed. */
  connectAt(): number | undefined {
    return this.#connectAt;
  }

  /** A connection stands. Returns its number, for `message()`. */
  connected(now: number, token: string | null): number {
    this.checkLease(now);
    this.#connection += 1;
    this.#connectAt = undefined;
    this.#dropConnection = false;
    this.#output = [];
    this.#pings = [];
    this.#hello += 1;
    const { bucket, owner, ttl, goingAwayEnds } = this.config;
    const features = goingAwayEnds ? Send.FEATURE_GOING_AWAY_ENDS : 0;
    const resume: [string, Uint8Array] | null = this.#identity
      ? [this.#identity.clientId, this.#identity.secret]
      : null;
    this.#send([Send.HELLO, VERSION, features, this.#hello, bucket, resume, this.#ack, token, ttl, owner]);
    this.#link = GREETING;
    this.#helloSent = now;
    return this.#connection;
  }

  /** No connection could be made: the next attempt comes later. */
  connectFailed(now: number, failure: Failure): void {
    this.checkLease(now);
    if (this.#closed) return;
    if (failure.kind === 'unusable' || failure.kind === 'closed') return this.#fail(failure);
    if (!this.#everOpened) this.#events.push({ type: 'unreachable', failure });
    this.#connectLater(now);
  }

  /**
   * A message came on the connection of that number. One from an older connection is ignored, as
   * are all once the session is closed.
   */
  message(now: number, connection: number, message: Receive.ToClient): void {
    if (this.#closed || connection !== this.#connection) return;
    // It may have lain unread for long: in a page that was frozen, on a machine that was suspended.
    if (this.checkLease(now)) return;
    switch (message[0]) {
      case Receive.WELCOME: {
        const [, , , number, clientId, secret, ttl, resumed, lastRid] = message;
        return this.#onWelcome(clientId, secret, {
          number,
          ttl: Number(ttl),
          resumed,
          lastRid: Number(lastRid),
          listed: new Map(),
        });
      }
      case Receive.LISTED:
        return this.#onListed(message[1]);
      case Receive.SYNCED:
        return this.#onSynced(now);
      case Receive.GRANTED:
        return this.#onGranted(message[1], message[2]);
      case Receive.QUEUED: {
        const [key, entry] = this.#entryOf(message[1]);
        if (entry?.stage !== ASKED) return;
        entry.stage = WAITING;
        this.#events.push({ type: 'queued', key, arrival: message[2] });
        return;
      }
      case Receive.UNAVAILABLE:
        return this.#finishRid(message[1], { how: 'unavailable' });
      case Receive.RELEASED:
        if (this.#entryOf(message[1])[1]?.stage !== ENDING) return;
        return this.#finishRid(message[1], { how: 'released' });
      case Receive.BROKEN: {
        const [, number, rid, cause, by] = message;
        this.#ack = greater(this.#ack, number);
        return this.#finishRid(rid, { how: 'broken', cause: cause === 0 ? 'stolen' : 'lost', by });
      }
      case Receive.OUTCOME: {
        const [, number, rid, count] = message;
        this.#ack = greater(this.#ack, number);
        return this.#finishRid(rid, { how: 'done', count });
      }
      case Receive.REFUSED:
        return this.#finishRid(message[1], { how: 'refused', code: Number(message[2]), message: message[3] });
      case Receive.DEADLOCKED:
        return this.#finishRid(message[1], { how: 'deadlocked', deadlock: message[2] });
      case Receive.SNAPSHOT: {
        const [, rid, entries, deadlocks, , more] = message;
        const parts = this.#entryOf(rid)[1]?.parts;
        if (parts === undefined) return;
        for (const entry of entries) parts.entries.push(entry);
        parts.deadlocks.push(...deadlocks);
        if (more) return;
        // The parts of a long answer come in any order.
        parts.entries.sort(
          (a, b) => +(a[4] === null) - +(b[4] === null) || +(a[3] > b[3]) - +(a[3] < b[3]),
        );
        return this.#finishRid(rid, { how: 'snapshot', snapshot: parts });
      }
      case Receive.PONG:
        return this.#onPong(message[1]);
      case Receive.GOODBYE:
        return this.#onGoodbye(now, Number(message[1]), message[2]);
    }
  }

  /** The connection of that number is gone. */
  disconnected(now: number, connection: number): void {
    if (connection === this.#connection && this.#link !== NONE) {
      this.#unlink();
      this.#connectLater(now);
    }
    this.checkLease(now);
  }

  /** Makes a request. It is sent as soon as there is a session. */
  request(request: LockRequest, data: T): Key {
    const { scope, flags, nestedIn, info } = request;
    const length = scope.reduce((sum, [name]) => sum + name.length + 8, info ? wtf8(info).length : 0);
    const message: MessageOf = (ack, rid) => {
      const outer = nestedIn === null ? 0 : (this.#entries.get(nestedIn)?.rid ?? 0);
      return [Send.REQUEST, ack, rid, scope, flags, outer === 0 ? null : [null, outer], info];
    };
    return this.#enter(length, message, data);
  }

  /** Asks for the state of the bucket, or of one name of it. */
  query(name: Uint8Array | null, deadlocks: boolean, data: T): Key {
    return this.#enter(name?.length ?? 0, (ack, rid) => [Send.QUERY, ack, rid, name, deadlocks], data, noParts());
  }

  /**
   * Breaks every lock on a name (bytes), or ends another session of the bucket (the text of its
   * client id).
   */
  force(target: Uint8Array | string, data: T): Key {
    const kind = typeof target === 'string' ? Send.END_SESSION : Send.FORCE_RELEASE;
    return this.#enter(target.length, (ack, rid) => [kind, ack, rid, target] as Send.ToServer, data);
  }

  /**
   * Releases a lock or aborts a request. An event reports when that is done, unless it is `quiet`.
   * Does nothing if it had ended, or is being released already.
   */
  release(key: Key, timedOut = false, quiet = false): void {
    const entry = this.#entries.get(key);
    if (entry === undefined || entry.stage === ENDING) return;
    entry.stage = ENDING;
    entry.timedOut = timedOut;
    if (quiet) this.#remove(key);
    if (entry.rid === 0) this.#finish(key, { how: 'released' });
    else if (this.#link === READY) this.#sendRelease(entry.rid, timedOut, quiet);
  }

  /** Whether a lock is held now: granted, not broken, and the lease valid at this time. */
  isHeld(now: number, key: Key): boolean {
    return this.#entries.get(key)?.stage === HELD && this.#leaseIsValid(now);
  }

  /** Whether the server has not said anything of a request or question yet. */
  isUnanswered(key: Key): boolean {
    return this.#entries.get(key)?.stage === ASKED;
  }

  /** Ends the session with all it has. The driver sends what there is and closes the connection. */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    if (this.#link === READY) this.#send([Send.BYE, this.#ack]);
    this.#connectAt = undefined;
    this.#loseAll();
    this.#refuseRest(CLOSED);
    this.#events.push({ type: 'closed' });
  }

  /** What is to be sent on the connection. */
  takeOutput(): Send.ToServer[] {
    const output = this.#output;
    if (output.length > 0) this.#output = [];
    return output;
  }

  /** What the host is to know. */
  takeEvents(): Event<T>[] {
    const events = this.#events;
    if (events.length > 0) this.#events = [];
    return events;
  }

  /**
   * Whether the driver is to close the connection, once what there is has been sent. Asked once.
   */
  wantsDrop(): boolean {
    const drop = this.#dropConnection;
    this.#dropConnection = false;
    return drop;
  }

  /** When `wake()` has something to do; `Infinity` if never. */
  nextWake(): number {
    return Math.min(
      this.#awaitsMarker() ? this.#helloSent + this.helloTimeout() : Infinity,
      this.#leaseDeadline(),
      this.#link === READY ? this.#nextPing : Infinity,
    );
  }

  /**
   * Sends a ping, gives up a connection that does not answer, or the session when its lease has
   * expired.
   */
  wake(now: number): void {
    if (this.checkLease(now)) return;
    if (this.#awaitsMarker()) {
      if (now >= this.#helloSent + this.helloTimeout()) this.#abandonConnection(now);
    } else if (this.#link === READY && now >= this.#nextPing) {
      // Two pings without an answer: another connection may do better.
      if (this.#pings.length > 1) return this.#abandonConnection(now);
      this.#seq += 1;
      this.#pings.push({ seq: this.#seq, sent: now });
      this.#send([Send.PING, this.#ack, this.#seq]);
      this.#nextPing = now + this.#beat();
    }
  }

  /**
   * How long the server may take to answer a Hello: longer without a session, or before the end
   * marker of a new one.
   */
  helloTimeout(): number {
    return Math.min(Math.max((this.#ttl ?? Infinity) * 250, 1), HELLO_TIMEOUT);
  }

  /** Whether the lease has expired. If so, all is lost, and the next session is opened. */
  checkLease(now: number): boolean {
    if (this.#closed || this.#leaseIsValid(now)) return false;
    // All that it had can be given out again at once.
    if (this.#link === READY) this.#send([Send.BYE, this.#ack]);
    this.#loseSession(now);
    return true;
  }

  #leaseDeadline(): number {
    return this.#ttl === undefined ? Infinity : this.#answered + clientLease(this.#ttl);
  }

  #leaseIsValid(now: number): boolean {
    return now < this.#leaseDeadline();
  }

  #awaitsMarker(): boolean {
    return this.#link === GREETING || this.#link === SYNCING;
  }

  #beat(): number {
    return Math.max(Math.floor((this.#ttl! * 1000) / BEATS), 1);
  }

  /** The session is over. What was sent in it is lost; what was not waits for the next one. */
  #loseSession(now: number): void {
    this.#loseAll();
    this.#dropConnection = this.#link !== NONE;
    this.#unlink();
    this.#failures = 0;
    this.#connectAt = now;
    this.#events.push({ type: 'sessionLost' });
  }

  #loseAll(): void {
    this.#identity = undefined;
    this.#ttl = undefined;
    this.#nextPing = Infinity;
    this.#ack = 0;
    this.#lastRid = 0;
    const keys = [...this.#byRid.values()];
    this.#byRid.clear();
    for (const key of keys) {
      const entry = this.#entries.get(key)!;
      entry.rid = 0;
      // Whether it was done is not known: a force release is not asked again.
      if (entry.stage === ENDING) this.#finish(key, { how: 'released' });
      else if (entry.parts === undefined) this.#finish(key, LOST);
    }
  }

  /** There will be no session for what was not sent. */
  #refuseRest(failure: Failure): void {
    for (const key of [...this.#entries.keys()]) this.#finish(key, { how: 'failed', failure });
  }

  #fail(failure: Failure): void {
    this.#dropConnection = this.#link !== NONE;
    this.#unlink();
    this.#connectAt = undefined;
    this.#loseAll();
    this.#refuseRest(failure);
    this.#closed = true;
    this.#events.push({ type: 'failed', failure });
  }

  #abandonConnection(now: number): void {
    this.#dropConnection = true;
    this.#unlink();
    this.#connectLater(now);
  }

  #unlink(): void {
    this.#link = NONE;
    this.#pings = [];
    // Whatever still comes on that connection is not for this session.
    this.#connection += 1;
  }

  #connectLater(now: number): void {
    if (this.#closed) return;
    const lease = this.#ttl === undefined ? Infinity : Math.floor(clientLease(this.#ttl) / ATTEMPTS);
    const pause = Math.min(PAUSE * 2 ** Math.min(this.#failures, 10), LONGEST_PAUSE, lease);
    this.#failures += 1;
    this.#connectAt = now + pause;
  }

  #onWelcome(clientId: string, secret: Uint8Array, sync: Sync): void {
    if (this.#link !== GREETING) return;
    if (!sync.resumed && this.#identity) {
      // The server does not know the session any more.
      this.#loseAll();
      this.#events.push({ type: 'sessionLost' });
    }
    this.#identity = { clientId, secret };
    this.#link = SYNCING;
    this.#sync = sync;
  }

  #onListed(requests: Receive.WireListed[]): void {
    if (this.#link !== SYNCING) return;
    for (const [rid, , token] of requests) this.#sync!.listed.set(rid, token);
  }

  #onSynced(now: number): void {
    if (this.#link !== SYNCING) return;
    this.#link = READY;
    const { number, ttl, resumed, lastRid, listed } = this.#sync!;
    this.#sync = undefined;
    this.#ttl = ttl;
    this.#answered = this.#helloSent;
    // The answer may have lain unread, while the session had no lease to expire.
    if (this.checkLease(now)) return;
    this.#ack = greater(this.#ack, number);
    this.#failures = 0;
    this.#nextPing = now + this.#beat();
    this.#everOpened = true;
    const again = this.#compare(lastRid, listed);
    this.#lastRid = Math.max(this.#lastRid, lastRid);
    this.#events.push({ type: 'opened', clientId: this.#identity!.clientId, resumed });
    const unwanted = [...listed.keys()].filter((rid) => !this.#byRid.has(rid)).sort((a, b) => (a < b ? -1 : 1));
    for (const rid of unwanted) this.#sendRelease(rid, false, true);
    // First the old numbers that the server has not recorded, in their order; then what has none.
    for (const [rid, key] of this.#byRid) if (rid > lastRid) this.#sendEntry(this.#entries.get(key)!);
    for (const key of again) this.#sendNew(key, this.#entries.get(key)!);
    for (const [key, entry] of this.#entries) if (entry.rid === 0) this.#sendNew(key, entry);
  }

  /**
   * Settles what the server knows, or says by its silence. Returns what had no effect and is still
   * wanted.
   */
  #compare(lastRid: number, listed: Map<Uint, Uint | null>): Key[] {
    const again: Key[] = [];
    for (const [rid, key] of [...this.#byRid]) {
      const entry = this.#entries.get(key)!;
      const { stage } = entry;
      const token = listed.get(rid);
      if (token !== undefined) {
        if (stage === ENDING) this.#sendRelease(rid, entry.timedOut, false);
        else if (token !== null) this.#onGranted(rid, token);
        else if (stage === ASKED) entry.stage = WAITING;
        // No server sends this. In any case, the lock is not held.
        else if (stage === HELD) this.#finish(key, LOST);
      } else if (stage === ENDING) {
        // It was ended as wished, or was never made.
        this.#finish(key, { how: 'released' });
      } else if (stage !== ASKED) {
        this.#finish(key, LOST);
      } else if (rid <= lastRid) {
        // It had no effect: it was refused, or had *if available*. The outcome of a force release
        // is repeated until it is acknowledged, so a missing one was refused, too.
        this.#byRid.delete(rid);
        entry.rid = 0;
        again.push(key);
      }
      // Else the server never had it: it is sent again under its old number.
    }
    return again;
  }

  #onGoodbye(now: number, code: number, message: string): void {
    const failure: Failure = { kind: 'refused', code, message };
    if (code === Code.SUPERSEDED) return this.#abandonConnection(now);
    if (code === Code.ENDED) return this.#loseSession(now);
    if (code >= Code.STOPPING) {
      if (!this.#everOpened) this.#events.push({ type: 'unreachable', failure });
      return this.#abandonConnection(now);
    }
    // A limit may be temporary, and a session that was open is worth another attempt.
    const passing = code === Code.LIMIT || code === Code.STORAGE;
    if (passing && this.#everOpened) this.#abandonConnection(now);
    else this.#fail(failure);
  }

  #onGranted(rid: Uint, token: Uint): void {
    const [key, entry] = this.#entryOf(rid);
    if (entry === undefined || entry.stage > WAITING) return;
    entry.stage = HELD;
    this.#events.push({ type: 'granted', key, token, data: entry.data });
  }

  #onPong(seq: Uint): void {
    for (const ping of this.#pings) if (ping.seq === seq) this.#answered = Math.max(this.#answered, ping.sent);
    this.#pings = this.#pings.filter((ping) => ping.seq > seq);
  }

  /**
   * `length` is that of what a message has no limit for: no server takes one that is too long, it
   * would end the session.
   */
  #enter(length: number, message: MessageOf, data: T, parts?: Parts): Key {
    const key = this.#nextKey++;
    if (length + OVERHEAD > MAX_MESSAGE) {
      const outcome: Ended = { how: 'refused', code: Code.LIMIT, message: TOO_LONG };
      this.#events.push({ type: 'over', key, outcome, data });
      return key;
    }
    const entry: Entry<T> = { rid: 0, stage: ASKED, timedOut: false, message, parts, data };
    this.#entries.set(key, entry);
    if (this.#closed) this.#finish(key, { how: 'failed', failure: CLOSED });
    else if (this.#link === READY) this.#sendNew(key, entry);
    return key;
  }

  /** Sends what has no number yet, under a new one. */
  #sendNew(key: Key, entry: Entry<T>): void {
    entry.rid = this.#lastRid += 1;
    this.#byRid.set(entry.rid, key);
    this.#sendEntry(entry);
  }

  #sendEntry(entry: Entry<T>): void {
    // What came of an earlier answer is not half of this one.
    if (entry.parts) entry.parts = noParts();
    this.#send(entry.message(this.#ack, entry.rid));
  }

  #sendRelease(rid: Uint, timedOut: boolean, quiet: boolean): void {
    const flags = (quiet ? Send.QUIET : 0) | (timedOut ? Send.TIMED_OUT : 0);
    this.#send([Send.RELEASE, this.#ack, rid, flags]);
  }

  #send(message: Send.ToServer): void {
    this.#output.push(message);
  }

  #entryOf(rid: Uint): [Key, Entry<T> | undefined] {
    const key = this.#byRid.get(rid) ?? -1;
    return [key, this.#entries.get(key)];
  }

  #finishRid(rid: Uint, outcome: Ended): void {
    const key = this.#byRid.get(rid);
    if (key !== undefined) this.#finish(key, outcome);
  }

  #finish(key: Key, outcome: Ended): void {
    const entry = this.#remove(key);
    if (entry) this.#events.push({ type: 'over', key, outcome, data: entry.data });
  }

  #remove(key: Key): Entry<T> | undefined {
    const entry = this.#entries.get(key);
    if (entry === undefined) return undefined;
    this.#entries.delete(key);
    if (entry.rid !== 0) this.#byRid.delete(entry.rid);
    return entry;
  }
}

function noParts(): Parts {
  return { entries: [], deadlocks: [] };
}
