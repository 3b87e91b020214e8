/**
 * The transport within this process: an agent of this thread, with the table of its requests by
 * slot and its mailbox of notifications from other threads. The addon is loaded on first use, so
 * that `connect()` alone does not need it.
 */

import { DeadlockError, refused, type BrokenBy } from './errors.js';
import { queueMicrotask } from './intrinsics.js';
import { Liveness } from './liveness.js';
import { newCallBuffer, readNotifications } from './mailbox.js';
import { newManager, type LockManager } from './manager.js';
import { Answer, loadAddon, News, type NativeAgent } from './native.js';
import { watchForDeadlock } from './nesting.js';
import type { Status } from './remote.js';
import type { Request } from './request.js';
import * as State from './state.js';
import type { Deadlock, Inspection, Transport } from './transport.js';
import type { LockManagerSnapshot } from './webidl.js';

/** Says that the name is that of the last request: to hand over a string takes long. */
const SAME = 16;

/** The transport to the lock manager that all threads of this process share. */
export const local = newLocal(false);

/** The lock manager of this process. */
export const locks: LockManager = newManager(local);

/**
 * A separate lock manager, which shares its names with no other on this or other threads. It lives
 * as long as its thread, or until `close()`.
 */
export function createLocks(): LockManager {
  return newManager(newLocal(true));
}

function newLocal(ownManager: boolean): Transport {
  const buffer = newCallBuffer();
  let agent: NativeAgent | undefined;
  /** None before the first use, and after `close()`. */
  let native: ReturnType<NativeAgent['fast']> | undefined;
  let closed = false;

  let last: string | undefined;

  const table: (Request | undefined)[] = [];
  const free: number[] = [];

  /** Whether notifications are read in a separate task. */
  let alone = false;

  /** Counts the requests of this thread that wait. */
  const liveness = new Liveness();

  const events = new EventTarget();

  const transport = {
    events,

    get state(): Status {
      return closed ? 'closed' : 'connected';
    },

    // The ends caused by `close()` are reported after it.
    get clientId(): string {
      return (agent ?? start()).clientId;
    },

    submit(request: Request, flags: number): boolean {
      if (native === undefined) start();
      const { name } = request;
      const same = name === last;
      buffer[0] = take(request);
      buffer[1] = same ? flags | SAME : flags;
      try {
        native!.request(same ? undefined : name);
      } catch (error) {
        last = undefined;
        give(request);
        throw refused(error);
      }
      last = name;
      return answered(request);
    },

    submitScope(request: Request, flags: number, nestedIn?: Request, info?: string): boolean {
      const agent = started();
      const { names, shared } = request.scope();
      const slot = (buffer[0] = take(request));
      buffer[1] = flags;
      let deadlock: Deadlock | null;
      try {
        deadlock = agent.requestScope(names, shared, nestedIn?.slot, info);
      } catch (error) {
        give(request);
        throw refused(error);
      }
      if (deadlock) {
        give(request);
        throw new DeadlockError(deadlock);
      }
      const available = answered(request);
      if (nestedIn && request.state === State.WAITING) watchForDeadlock(request, () => agent.deadlock(slot));
      return available;
    },

    abort(request: Request): boolean {
      const answer = agent!.abort(request.slot);
      if (answer & Answer.MAIL) collect();
      if (!(answer & Answer.ABORTED)) return false;
      give(request);
      liveness.waits(-1);
      return true;
    },

    release(request: Request): boolean {
      buffer[0] = request.slot;
      native!.release();
      const answer = buffer[0]!;
      const token = buffer[1]!;
      // One of the notifications may say that the lock was broken.
      if (answer < 0) collect();
      if (request.state === State.ENDED) return false;
      give(request);
      if (answer > 0) grant(answer - 1, token);
      return true;
    },

    forceRelease(name: string): void {
      if (started().forceRelease(name) & Answer.MAIL) collect();
    },

    close(): void {
      if (!ownManager) {
        throw new TypeError('the locks of the process cannot be closed: close() is for managers from connect() and createLocks()');
      }
      if (closed) return;
      closed = true;
      native = undefined;
      agent?.close();
      for (const { slot } of table.filter((request) => request !== undefined)) breakLock(slot, 'closed');
      liveness.end();
      // Listeners are other people's code.
      queueMicrotask(() => events.dispatchEvent(new Event('statuschange')));
    },

    query: () => snapshot(started().query()),
    inspect: (): Inspection => started().inspect(),
  } satisfies Transport;

  return transport;

  function started(): NativeAgent {
    return native === undefined ? start() : agent!;
  }

  function start(): NativeAgent {
    if (closed) throw new DOMException('the lock manager is closed: createLocks() gives another', 'InvalidStateError');
    agent = new (loadAddon().Agent)(buffer, woken, ownManager);
    native = agent.fast();
    return agent;
  }

  /** The answer to a request that was just made. */
  function answered(request: Request): boolean {
    const answer = buffer[0]!;
    const token = buffer[1]!;
    const outcome = answer & ~Answer.MAIL;
    // Holders whose locks a steal broke learn of it before the thief is granted. The thief's own
    // lock may be stolen by then.
    if (answer & Answer.MAIL) collect();
    if (outcome === Answer.GRANTED) {
      if (request.state === State.NEW) request.granted(token);
    } else if (outcome === Answer.QUEUED) {
      liveness.waits(1);
      request.queued();
    } else {
      give(request);
      return false;
    }
    return true;
  }

  function collect(): void {
    readNotifications(buffer, nextNotifications, onNotification);
  }

  function nextNotifications(): void {
    native!.collect();
  }

  /** Runs in a task that does nothing else: a grant that comes alone is delivered in it. */
  function woken(): void {
    alone = true;
    collect();
    alone = false;
  }

  function onNotification(slot: number, news: number, token: number): void {
    if (news === News.GRANTED) grant(slot, token, alone && buffer[0] === 1);
    else breakLock(slot, news === News.STOLEN ? 'stolen' : 'lost');
  }

  function grant(slot: number, token: number, now?: boolean): void {
    liveness.waits(-1);
    table[slot]!.granted(token, now);
  }

  function breakLock(slot: number, cause: BrokenBy): void {
    const request = table[slot]!;
    if (request.state === State.WAITING) liveness.waits(-1);
    give(request);
    request.broke(cause);
  }

  function take(request: Request): number {
    const slot = free.length > 0 ? free.pop()! : table.length;
    table[slot] = request;
    request.slot = slot;
    return slot;
  }

  function give(request: Request): void {
    table[request.slot] = undefined;
    free.push(request.slot);
  }
}

/**
 * Unpacks a snapshot: plain objects, and in each entry the three members that the draft has, in the
 * order in which Web IDL has the members of a dictionary.
 */
function snapshot({ names, entries, held, clients }: ReturnType<NativeAgent['query']>): LockManagerSnapshot {
  const lists: LockManagerSnapshot = { held: [], pending: [] };
  let at = 0;
  let name = '';
  for (let i = 0; i < entries.length; i += 2) {
    const packed = entries[i]!;
    if (!(packed & 2)) name = names.slice(at, (at += packed >>> 2));
    const mode = packed & 1 ? 'shared' : 'exclusive';
    const list = i < 2 * held ? lists.held : lists.pending;
    list.push({ clientId: clients[entries[i + 1]!]!, mode, name });
  }
  return lists;
}
