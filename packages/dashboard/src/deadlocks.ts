/** Deadlocks, in red, each cycle as text. */

import { h } from './dom.js';
import type { Uint } from '../../lockkeeper/src/pack.js';
import { fromName } from '../../lockkeeper/src/wire.js';
import type { Model } from './model.js';
import { nameText, several, visible, who } from './text.js';

export class Deadlocks {
  readonly element = h('section', { class: 'deadlocks', role: 'alert', hidden: true });
  readonly #model: Model;
  readonly #onLock: (name: Uint8Array) => void;
  #shown = '';

  constructor(model: Model, onLock: (name: Uint8Array) => void) {
    this.#model = model;
    this.#onLock = onLock;
  }

  #person(arrival: Uint, clientId: string): (Node | string)[] {
    const request = this.#model.requests.get(arrival);
    const label = request?.info ? ` (${visible(request.info, 120)})` : '';
    return [h('b', {}, h('bdi', {}, who(request?.owner ?? null, clientId))), h('bdi', {}, label)];
  }

  update(): void {
    const { deadlocks, requests } = this.#model;
    const key = JSON.stringify(deadlocks, (_, value: unknown) => (typeof value === 'bigint' ? String(value) : value));
    if (key === this.#shown) return;
    this.#shown = key;
    this.element.hidden = deadlocks.length === 0;
    const cycles = deadlocks.filter(([, cycle]) => cycle.length > 0);
    const cut = deadlocks.filter(([, cycle]) => cycle.length === 0);
    this.element.replaceChildren(
      h('h2', {}, `${several(cycles.length, 'deadlock')}: these requests wait for each other and will wait for ever`),
      ...cycles.slice(0, 20).map(([, cycle]) => {
        // A request that waits for one nested in it is of the same program: what counts is who
        // waits for whose lock.
        const steps = cycle.flatMap(([arrival, clientId, waitsFor], i) => {
          if (waitsFor === null) return [];
          const [nextArrival, nextClient] = cycle[(i + 1) % cycle.length]!;
          const next = requests.get(nextArrival);
          const relation = next?.token === null ? ', for which ' : ', held by ';
          const link = h('button', { type: 'button', class: 'link', onclick: () => this.#onLock(waitsFor) }, h('bdi', {}, nameText(fromName(waitsFor), 120)));
          const end = next?.token === null ? ' stands in front' : '';
          return [h('li', {}, ...this.#person(arrival, clientId), ' waits for ', link, relation, ...this.#person(nextArrival, nextClient), end)];
        });
        return h('div', { class: 'cycle' }, h('ol', {}, ...steps), h('p', {}, 'Each waits for the next, the last for the first. End one of these sessions, or release one of these locks.'));
      }),
      ...cut.map(([words]) => h('p', {}, visible(words, 300))),
    );
  }
}
