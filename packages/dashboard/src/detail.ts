/** One lock: its holders, its queue in order, and the actions on it. */

import type { Actions } from './actions.js';
import { h, setText } from './dom.js';
import type { Lock, Model, Request } from './model.js';
import { age, count, isUnverifiable, nameText, several, visible, who } from './text.js';
import { Window } from './window.js';

export class Detail {
  readonly element: HTMLElement;
  readonly #model: Model;
  readonly #actions: Actions;
  readonly #title = h('h2', { tabindex: '-1', id: 'detail-title' });
  readonly #facts = h('p', { class: 'facts' });
  readonly #buttons = h('div', { class: 'buttons' });
  readonly #queueTitle = h('h3');
  readonly #queue: Window<Request>;
  readonly #empty = h('p', { class: 'empty' }, 'Select a lock to see who holds it and who waits.');
  readonly #body = h('div', { class: 'body', hidden: true });
  #key: string | undefined;

  constructor(model: Model, actions: Actions, onClose: () => void) {
    this.#model = model;
    this.#actions = actions;
    const rows = {
      make: () => makeRow((arrival) => this.#end(arrival)),
      fill: (row: HTMLElement, request: Request, index: number) => this.#fill(row, request, index),
      key: (request: Request) => request.arrival,
    };
    this.#queue = new Window<Request>('queue', 'Holders, then the queue in order', rows, 'list');
    const close = h('button', { class: 'close', type: 'button', 'aria-label': 'Close', onclick: onClose }, '×');
    this.#body.append(h('header', {}, this.#title, close), this.#facts, this.#buttons, this.#queueTitle, this.#queue.element);
    this.element = h('section', { class: 'detail', 'aria-labelledby': 'detail-title' }, this.#empty, this.#body);
  }

  get lock(): Lock | undefined {
    return this.#key === undefined ? undefined : this.#model.locks.get(this.#key);
  }

  show(lock: Lock | undefined): void {
    this.#key = lock?.key;
    this.#body.hidden = lock === undefined;
    this.#empty.hidden = lock !== undefined;
    if (lock !== undefined) {
      setText(this.#title, nameText(lock.name));
      this.#buttons.replaceChildren(...this.#actions.buttons(lock));
    }
    this.update();
  }

  focus(): void {
    this.#title.focus();
  }

  update(): void {
    if (this.#key === undefined) return;
    const lock = this.lock;
    if (lock === undefined) {
      setText(this.#facts, 'Nobody holds it, and nobody waits.');
      this.#queue.show([]);
      setText(this.#queueTitle, '');
      for (const button of this.#buttons.querySelectorAll('button')) button.disabled = true;
      return;
    }
    const now = Date.now();
    const { holders, waiters } = lock;
    const first = holders[0];
    const red = this.#model.isDeadlocked(lock);
    this.element.classList.toggle('red', red);
    const held = first === undefined ? 'Held by nobody: those in front wait for other names' : `Held for ${age(now - first.since)}`;
    setText(this.#facts, `${red ? 'Part of a deadlock. ' : ''}${held}, ${several(waiters.length, 'request')} waiting`);
    this.#actions.refresh(this.#buttons, lock);
    setText(this.#queueTitle, `${several(holders.length, 'holder')}, ${count(waiters.length)} in the queue`);
    this.#queue.show(waiters.length === 0 ? holders : [...holders, ...waiters]);
  }

  #fill(row: HTMLElement, request: Request, index: number): void {
    const lock = this.lock;
    const [place, main, since, button] = row.children as unknown as HTMLElement[];
    const holds = request.token !== null;
    row.dataset['arrival'] = String(request.arrival);
    row.classList.toggle('holds', holds);
    row.classList.toggle('red', this.#model.inCycle.has(request.arrival));
    const order = index - (lock?.holders.length ?? 0) + 1;
    setText(place!, holds ? 'holds' : `${count(order)}.`);
    const [person, label] = main!.children as unknown as HTMLElement[];
    setText(person!, who(request.owner, request.clientId));
    person!.title = visible(`${request.owner ?? ''} client ${request.clientId}`, 1000);
    setText(label!, describe(request, lock));
    label!.title = label!.textContent;
    setText(since!, age(Date.now() - request.since));
    this.#actions.allowEnd(button as HTMLButtonElement, request);
    const state = holds ? `holds for ${since!.textContent}` : `place ${count(order)}, waits for ${since!.textContent}`;
    row.setAttribute('aria-label', `${person!.textContent}, ${state}. ${label!.textContent}`);
  }

  #end(arrival: string): void {
    const requests = [...(this.lock?.holders ?? []), ...(this.lock?.waiters ?? [])];
    const request = requests.find((request) => String(request.arrival) === arrival);
    if (request !== undefined) void this.#actions.endSession(request);
  }
}

function describe(request: Request, lock: Lock | undefined): string {
  const here = request.names.find((name) => name.lock === lock);
  const others = request.names.filter((name) => name.lock !== lock);
  const parts = [
    request.info ? visible(request.info, 300) : null,
    here?.shared ? 'shared' : null,
    others.length > 0 ? `with ${others.slice(0, 3).map(({ lock }) => nameText(lock.name, 60)).join(', ')}${others.length > 3 ? ` and ${count(others.length - 3)} more` : ''}` : null,
    request.nestedIn === null ? null : `within request ${request.nestedIn}`,
    request.stole ? 'stole it' : null,
    request.token === null ? null : `token ${request.token}`,
    isUnverifiable(request.owner) ? 'end the session if its process is gone' : null,
  ];
  return parts.filter((part) => part !== null).join(' · ');
}

function makeRow(onEnd: (arrival: string) => void): HTMLElement {
  const button = h('button', { type: 'button', class: 'quiet', 'aria-label': 'End the session' }, 'End…');
  const row = h(
    'div',
    { class: 'row request' },
    h('span', { class: 'place' }),
    h('span', { class: 'main' }, h('bdi', { class: 'who' }), h('bdi', { class: 'label' })),
    h('span', { class: 'since' }),
    button,
  );
  button.addEventListener('click', () => onEnd(row.dataset['arrival'] ?? ''));
  return row;
}
