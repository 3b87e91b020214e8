/** The requests and questions of a session, and how the daemon's words change them: the truth of this side. */

import { DeadlockError, refusal } from './errors.js';
import type { Listener, Outcome, Snapshot } from './remote.js';
import type { Request } from './request.js';
import type { Deadlock } from './transport.js';
import { fromName, Hear, Say, toName, type Claim, type ToClient, type ToServer } from './wire.js';
import type { WireDeadlock, WireEntry, WireScope } from './wire.js';

/** How far a request is. What comes after HELD is being given up. */
const Stage = { UNSAID: 0, ASKED: 1, WAITING: 2, HELD: 3, RELEASING: 4, ABORTING: 5 } as const;

/** How much may be said and not be answered yet. A ping waits behind it, and its answer must come in time. */
const WINDOW = 1000;

/** A request of which the daemon has not said the last word. */
interface Live {
  request: Request;
  /** Whether something was said of it on this connection that was not answered yet. */
  awaited: boolean;
  stage: number;
  scope: WireScope;
  flags: number;
  nestedIn: number | null;
  info: string | null;
  /** The daemon's last word on it. */
  claim: Claim;
  /** Whether it is given up because its time was up. */
  timedOut: boolean;
}

interface Question {
  message: ToServer;
  awaited: boolean;
  resolve: (snapshot: Snapshot) => void;
  reject: (reason: unknown) => void;
}

export class Table {
  /** By number, which is to say in the order in which they were made. Numbers grow from session to session. */
  readonly #entries = new Map<number, Live | Question>();
  #last = 0;
  /** What was never said, from `#next` on, in its order. */
  #unsaid: number[] = [];
  #next = 0;
  /** How many are awaited. */
  #awaited = 0;

  constructor(
    private readonly listener: Listener,
    /** Says something to the daemon. `false` if there is none at the moment: then it is said when there is. */
    private readonly send: (message: ToServer) => boolean,
  ) {}

  get isEmpty(): boolean {
    return this.#entries.size === 0;
  }

  request(request: Request, flags: number, nestedIn: Request | undefined, info: string | undefined): void {
    const { names, shared } = request.scope();
    request.slot = this.#last += 1;
    this.#enter(request.slot, {
      request,
      awaited: false,
      stage: Stage.UNSAID,
      scope: names.map((name, i) => [toName(name), shared[i]!]),
      flags: flags >> 1,
      nestedIn: nestedIn?.slot ?? null,
      info: info ?? null,
      claim: [null],
      timedOut: false,
    });
  }

  giveUp(request: Request, timedOut = false): void {
    const live = this.#request(request.slot);
    if (live === undefined || live.stage > Stage.HELD) return;
    if (live.stage === Stage.UNSAID) {
      this.#entries.delete(request.slot);
      return queueMicrotask(() => this.listener.over(request, 'ended'));
    }
    live.stage = live.stage === Stage.HELD ? Stage.RELEASING : Stage.ABORTING;
    live.timedOut = timedOut;
    this.send(wordsFor(request.slot, live));
  }

  ask(question: (rid: number) => ToServer): Promise<Snapshot> {
    return new Promise((resolve, reject) => {
      const rid = (this.#last += 1);
      this.#enter(rid, { message: question(rid), awaited: false, resolve, reject });
    });
  }

  /** There is a connection: says again what was said before, and goes on. */
  connected(resumed: boolean): void {
    this.#awaited = 0;
    for (const [rid, entry] of this.#entries) {
      if ('request' in entry && entry.stage !== Stage.UNSAID) this.#say(rid, entry);
    }
    // All at once: in its grace, a daemon answers nobody before all are ready.
    if (resumed) this.send([Say.READY]);
    this.#goOn();
  }

  /** What the daemon says of one request or question. */
  hear(message: ToClient): void {
    const entry = this.#entries.get(message[1] as number);
    if (entry?.awaited) {
      entry.awaited = false;
      this.#awaited -= 1;
    }
    this.#understand(message);
    this.#goOn();
  }

  #understand(message: ToClient): void {
    switch (message[0]) {
      case Hear.GRANTED: {
        const [, rid, token, receipt] = message;
        const live = this.#request(rid as number);
        // It was reclaimed; or is given up, which the daemon will hear.
        if (live === undefined || live.stage >= Stage.HELD) return;
        live.stage = Stage.HELD;
        live.claim = [token, receipt];
        return this.listener.granted(live.request, token);
      }
      case Hear.QUEUED: {
        const live = this.#request(message[1] as number);
        if (live === undefined || live.stage >= Stage.HELD) return;
        live.stage = Stage.WAITING;
        live.claim = [message[2]];
        return;
      }
      case Hear.UNAVAILABLE:
        return this.#over(message[1] as number, 'unavailable');
      case Hear.RELEASED:
      case Hear.ABORTED:
        return this.#over(message[1] as number, 'ended');
      case Hear.BROKEN:
        return this.#over(message[1] as number, message[2] === 0 ? 'stolen' : 'lost');
      case Hear.REFUSED:
        return this.#over(message[1] as number, refusal(Number(message[2]), message[3]));
      case Hear.DEADLOCKED:
        return this.#over(message[1] as number, new DeadlockError(deadlockOf(message[2])));
      case Hear.SNAPSHOT: {
        const [, rid, entries, deadlocks] = message;
        return this.#over(rid as number, 'ended', {
          entries: entries.map(entryOf),
          deadlocks: deadlocks.map(deadlockOf),
        });
      }
    }
  }

  /** The connection is gone. Questions are not asked again: whether they were heard is not known. */
  disconnected(reason: Error): void {
    for (const [rid, entry] of this.#entries) if ('message' in entry && entry.awaited) this.#over(rid, reason);
  }

  /** The session is over, and what was said in it is lost. What was to be given up is. */
  lose(reason: Error): void {
    this.disconnected(reason);
    for (const [rid, entry] of this.#entries) {
      if ('message' in entry || entry.stage === Stage.UNSAID) continue;
      this.#over(rid, entry.stage > Stage.HELD ? 'ended' : 'lost');
    }
  }

  /** There will be no session for what was not said yet. */
  refuse(how: Error | 'lost', reason: Error): void {
    for (const [rid, entry] of this.#entries) {
      if ('message' in entry) this.#over(rid, reason);
      else if (entry.stage === Stage.UNSAID) this.#over(rid, how);
    }
  }

  #enter(rid: number, entry: Live | Question): void {
    this.#entries.set(rid, entry);
    this.#unsaid.push(rid);
    this.#goOn();
  }

  /** Says what was not said yet, as far as the window lets it. */
  #goOn(): void {
    while (this.#next < this.#unsaid.length && this.#awaited < WINDOW) {
      const rid = this.#unsaid[this.#next]!;
      const entry = this.#entries.get(rid);
      if (entry && !this.#say(rid, entry)) return;
      this.#next += 1;
    }
    if (this.#next < this.#unsaid.length) return;
    this.#unsaid = [];
    this.#next = 0;
  }

  #say(rid: number, entry: Live | Question): boolean {
    if (!this.send('message' in entry ? entry.message : wordsFor(rid, entry))) return false;
    if ('request' in entry) entry.stage ||= Stage.ASKED;
    entry.awaited = true;
    this.#awaited += 1;
    return true;
  }

  #request(rid: number): Live | undefined {
    const entry = this.#entries.get(rid);
    return entry && 'request' in entry ? entry : undefined;
  }

  #over(rid: number, how: Outcome, snapshot: Snapshot = { entries: [], deadlocks: [] }): void {
    const entry = this.#entries.get(rid);
    if (entry === undefined) return;
    this.#entries.delete(rid);
    if ('request' in entry) this.listener.over(entry.request, how);
    else if (how instanceof Error) entry.reject(how);
    else entry.resolve(snapshot);
  }
}

/** What there is to say of a request: for the first time, or again. */
function wordsFor(rid: number, { stage, scope, flags, nestedIn, info, claim, timedOut }: Live): ToServer {
  if (stage === Stage.RELEASING) return [Say.RELEASE, rid];
  if (stage === Stage.ABORTING) return [Say.ABORT, rid, timedOut];
  if (stage > Stage.ASKED) return [Say.RECLAIM, rid, scope, info, claim];
  return [Say.REQUEST, rid, scope, flags, nestedIn, info];
}

function entryOf(entry: WireEntry): Snapshot['entries'][0] {
  const [name, shared, clientId, ticket, token, info, since, nestedIn, stole] = entry;
  return {
    place: { name: fromName(name), mode: shared ? 'shared' : 'exclusive' },
    clientId,
    ticket: BigInt(ticket),
    ...(token !== null && { token: BigInt(token) }),
    ...(info !== null && { info }),
    since: Number(since),
    ...(nestedIn !== null && { nestedIn: BigInt(nestedIn) }),
    stole,
  };
}

function deadlockOf([message, steps]: WireDeadlock): Deadlock {
  const cycle = steps.map(([ticket, clientId, waitsFor]) => {
    const step = { request: BigInt(ticket), clientId };
    return waitsFor === null ? step : { ...step, waitsFor: fromName(waitsFor) };
  });
  return { message, cycle };
}
