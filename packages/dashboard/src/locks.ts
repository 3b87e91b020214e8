/** The list of locks: name, holder, hold time, label, and number of waiters. */

import { h, setText } from './dom.js';
import type { Lock, Model, Request } from './model.js';
import { age, count, nameText, visible, who } from './text.js';
import { Window } from './window.js';

export type Order = 'wait' | 'queue' | 'held' | 'name';

/** Names in the list are cut: the whole one is beside it. */
const SHORT = 200;

export class Locks {
  readonly #model: Model;
  readonly window: Window<Lock>;
  order: Order = 'wait';
  search = '';
  /** How long the last arrangement took, and of which version it was. */
  #took = 0;
  #at = 0;
  #version = -1;

  constructor(model: Model, onSelect: (lock: Lock, entered: boolean) => void) {
    this.#model = model;
    this.window = new Window<Lock>('locks', 'Locks', {
      make: makeRow,
      fill: (row, lock) => this.#fill(row, lock),
      key: (lock) => lock.key,
      select: onSelect,
    });
  }

  /** Whether what is shown is not what there is, because arranging it again has to wait. */
  get isStale(): boolean {
    return this.#version !== this.#model.version;
  }

  /**
   * Draws what there is. It is arranged anew only so often that this takes a tenth of the time.
   * Returns how many it has then.
   */
  update(now: number, force = false): number {
    const due = now - this.#at > this.#took * 10;
    if (force || (due && this.isStale)) {
      const began = performance.now();
      const shown = this.#arrange();
      this.window.show(shown);
      this.#took = performance.now() - began;
      this.#at = now;
      this.#version = this.#model.version;
      return shown.length;
    }
    this.window.draw();
    return -1;
  }

  #arrange(): Lock[] {
    const model = this.#model;
    const wanted = this.search.trim().toLowerCase();
    const all = [...model.locks.values()];
    const shown = wanted === '' ? all : all.filter((lock) => matches(lock, wanted));
    // Sorted by numbers that are looked up once: a comparison is then nothing but that.
    const waits = (lock: Lock) => lock.waiters[0]?.since ?? Infinity;
    const holds = (lock: Lock) => lock.holders[0]?.since ?? Infinity;
    const by: Record<Order, (a: Ranked, b: Ranked) => number> = {
      wait: (a, b) => b.red - a.red || less(a.waits, b.waits) || less(a.holds, b.holds) || less(a.lock.key, b.lock.key),
      queue: (a, b) => b.lock.waiters.length - a.lock.waiters.length || less(a.waits, b.waits) || less(a.lock.key, b.lock.key),
      held: (a, b) => less(a.holds, b.holds) || less(a.lock.key, b.lock.key),
      name: (a, b) => less(a.lock.key, b.lock.key),
    };
    const ranked = shown.map((lock) => ({ lock, waits: waits(lock), holds: holds(lock), red: Number(model.isDeadlocked(lock)) }));
    return ranked.sort(by[this.order]).map(({ lock }) => lock);
  }

  #fill(row: HTMLElement, listed: Lock): void {
    // The list may be older than the model. A lock that was free in between is another object.
    const lock = this.#model.locks.get(listed.key) ?? { ...listed, holders: [], waiters: [] };
    const now = Date.now();
    const [name, holder, label, held, waiting, wait] = row.children as unknown as HTMLElement[];
    const first = lock.holders[0];
    const more = lock.holders.length - 1;
    const red = this.#model.isDeadlocked(lock);
    row.classList.toggle('red', red);
    setText(name!.firstElementChild!, nameText(lock.name, SHORT));
    name!.title = nameText(lock.name, 1000);
    const nobody = lock.waiters.length === 0 ? 'released' : '—';
    setText(holder!.firstElementChild!, first === undefined ? nobody : who(first.owner, first.clientId));
    setText(holder!.lastElementChild!, more > 0 ? ` and ${count(more)} more` : '');
    const holders = holder!.textContent;
    holder!.title = holders;
    setText(label!, first?.info ? visible(first.info, SHORT) : '');
    setText(held!, first === undefined ? '' : age(now - first.since));
    setText(waiting!, lock.waiters.length === 0 ? '' : count(lock.waiters.length));
    setText(wait!, lock.waiters.length === 0 ? '' : age(now - lock.waiters[0]!.since));
    const queue = lock.waiters.length === 0 ? 'nobody waits' : `${wait!.textContent} longest of ${waiting!.textContent} waiting`;
    const state = first === undefined ? 'held by nobody' : `held for ${held!.textContent} by ${holders}`;
    row.setAttribute('aria-label', `${red ? 'Deadlock. ' : ''}${name!.textContent}, ${state}, ${queue}`);
  }
}

interface Ranked {
  readonly lock: Lock;
  readonly waits: number;
  readonly holds: number;
  readonly red: number;
}

const less = <T extends number | string>(a: T, b: T): number => (a < b ? -1 : a > b ? 1 : 0);

function makeRow(): HTMLElement {
  const cell = (name: string) => h('span', { class: name });
  return h('div', { class: 'row' }, h('span', { class: 'name' }, h('bdi')), h('span', { class: 'who' }, h('bdi'), h('span')), ...['label', 'held', 'waiting', 'wait'].map(cell));
}

function matches(lock: Lock, wanted: string): boolean {
  const has = (text: string | null) => text !== null && text.toLowerCase().includes(wanted);
  const of = ({ info, owner, clientId }: Request) => has(info) || has(owner) || has(clientId);
  return has(lock.name) || lock.holders.some(of) || lock.waiters.some(of);
}
