/**
 * The wait-for graph: sessions point at the locks they wait for, locks at the sessions that hold
 * them. Deadlocks are red. Only locks with waiters are drawn, deadlocks first, and only the
 * beginning of a long queue.
 */

import { h, setText, svg } from './dom.js';
import { layers, type Edge, type Node } from './layout.js';
import type { Lock, Model, Request } from './model.js';
import { age, count, nameText, several, who } from './text.js';

/** How many locks are drawn, and how many waiting requests of each. */
const LOCKS = 24;
const WAITERS = 4;

const [BOX, ROW, COLUMN] = [{ width: 186, height: 44 }, 72, 240];

export class Graph {
  readonly element: HTMLElement;
  readonly #model: Model;
  readonly #drawing = svg('svg', { class: 'graph', role: 'group', 'aria-labelledby': 'graph-summary' });
  readonly #summary = h('p', { id: 'graph-summary' });
  readonly #onLock: (lock: Lock) => void;
  /** The drawn elements, by node. */
  #boxes = new Map<string, SVGElement>();
  #version = -1;
  /** How long the last drawing took, and when it was. */
  #took = 0;
  #at = 0;

  constructor(model: Model, onLock: (lock: Lock) => void) {
    this.#model = model;
    this.#onLock = onLock;
    const legend = h('p', { class: 'legend' }, 'A session points at the lock it waits for; a lock points at the session that holds it.');
    this.element = h('section', { class: 'graph-view', 'aria-label': 'Wait-for graph' }, this.#summary, h('div', { class: 'scroll', tabindex: '0' }, this.#drawing), legend);
  }

  /**
   * Draws what there is, only so often that this takes a tenth of the time. Returns whether that is
   * what is drawn now.
   */
  update(now: number): boolean {
    if (this.#version === this.#model.version) return true;
    if (now - this.#at <= this.#took * 10) return false;
    this.#version = this.#model.version;
    const began = performance.now();
    this.#arrange();
    this.#took = performance.now() - began;
    this.#at = now;
    return true;
  }

  #arrange(): void {
    const model = this.#model;
    const waited = [...model.locks.values()].filter(({ waiters }) => waiters.length > 0);
    const rank = (lock: Lock) => (model.isDeadlocked(lock) ? 0 : 1);
    waited.sort((a, b) => rank(a) - rank(b) || a.waiters[0]!.since - b.waiters[0]!.since);
    const chosen = waited.slice(0, LOCKS);
    const left = waited.length - chosen.length;
    const summary = [
      waited.length === 0 ? 'Nobody waits.' : `${several(waited.length, 'lock')} with waiters, ${several(model.waiting, 'request')} in all.`,
      model.deadlocks.length > 0 ? ` ${several(model.deadlocks.length, 'deadlock')}, in red.` : '',
      left > 0 ? ` Shown: the ${count(chosen.length)} with the longest waits; ${count(left)} are left out.` : '',
    ];
    setText(this.#summary, summary.join(''));
    this.#draw(chosen);
  }

  #draw(locks: Lock[]): void {
    const nodes = new Map<string, Node & { label: string; sub: string; kind: string; red: boolean; lock?: Lock }>();
    const edges: (Edge & { red: boolean })[] = [];
    const cyclic = (request: Request) => this.#model.inCycle.has(request.arrival);
    // A session is red only with one of its requests.
    const session = (request: Request) => {
      const id = `s${request.clientId}`;
      const sub = request.info ? nameText(request.info, 28) : `client ${request.clientId.slice(0, 8)}`;
      const known = nodes.get(id);
      if (known === undefined) nodes.set(id, { id, kind: 'session', label: who(request.owner, request.clientId), sub, red: cyclic(request) });
      else known.red ||= cyclic(request);
      return id;
    };
    for (const lock of locks) {
      const red = this.#model.isDeadlocked(lock);
      const id = `l${lock.key}`;
      const first = lock.holders[0];
      const sub = first === undefined ? 'held by nobody' : `held for ${age(Date.now() - first.since)}`;
      nodes.set(id, { id, kind: 'lock', label: nameText(lock.name, 60), sub, red, lock });
      for (const holder of lock.holders.slice(0, WAITERS)) edges.push({ from: id, to: session(holder), red: red && this.#isInCycle(holder) });
      // One box for a session, however many of its requests wait.
      const sessions = new Set<string>();
      let more = 0;
      for (const waiter of lock.waiters) {
        if (sessions.has(waiter.clientId)) continue;
        if (sessions.size >= WAITERS && !cyclic(waiter)) more += 1;
        else {
          sessions.add(waiter.clientId);
          edges.push({ from: session(waiter), to: id, red: cyclic(waiter) });
        }
      }
      if (more > 0) {
        nodes.set(`m${lock.key}`, { id: `m${lock.key}`, kind: 'more', label: `${count(more)} more`, sub: 'requests of others', red: false });
        edges.push({ from: `m${lock.key}`, to: id, red: false });
      }
    }
    const places = layers([...nodes.values()], edges);
    const columns = Math.max(0, ...[...places.values()].map(({ column }) => column)) + 1;
    const rows = Math.max(0, ...[...places.values()].map(({ row }) => row)) + 1;
    const [width, height] = [columns * COLUMN - (COLUMN - BOX.width) + 40, rows * ROW + 30];
    const at = (id: string) => {
      const { column, row } = places.get(id)!;
      return { x: (columns - 1 - column) * COLUMN + 20, y: row * ROW + 10 };
    };
    this.#drawing.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.#drawing.setAttribute('width', String(width));
    this.#drawing.setAttribute('height', String(height));
    const lines = edges.map(({ from, to, red }) => svg('path', { d: curve(at(from), at(to)), class: `edge${red ? ' red' : ''}`, 'marker-end': `url(#arrow${red ? '-red' : ''})` }));
    const focused = [...this.#boxes].find(([, box]) => box === document.activeElement)?.[0];
    this.#boxes.clear();
    for (const node of nodes.values()) {
      const { x, y } = at(node.id);
      const { lock } = node;
      const box = svg(
        'g',
        { class: `node ${node.kind}${node.red ? ' red' : ''}`, transform: `translate(${x} ${y})` },
        svg('rect', { width: String(BOX.width), height: String(BOX.height), rx: node.kind === 'lock' ? '3' : '22' }),
        svg('text', { x: '14', y: '19', class: 'label' }, cut(node.label)),
        svg('text', { x: '14', y: '35', class: 'sub' }, cut(node.sub)),
        svg('title', {}, `${node.label}, ${node.sub}`),
      );
      if (lock !== undefined) {
        const label = `${node.red ? 'Deadlock. ' : ''}${node.label}, ${node.sub}, ${several(lock.waiters.length, 'request')} waiting`;
        for (const [name, value] of [['tabindex', '0'], ['role', 'button'], ['aria-label', label]]) box.setAttribute(name!, value!);
        box.addEventListener('click', () => this.#onLock(lock));
        box.addEventListener('keydown', (event) => {
          if (event.key !== 'Enter' && event.key !== ' ') return;
          event.preventDefault();
          this.#onLock(lock);
        });
      }
      this.#boxes.set(node.id, box);
    }
    this.#drawing.replaceChildren(marker('arrow'), marker('arrow-red'), ...lines, ...this.#boxes.values());
    // The box that had the focus was replaced.
    if (focused !== undefined) this.#boxes.get(focused)?.focus({ preventScroll: true });
  }

  /** Whether a holder is in a cycle by another of its requests: those nested in this one. */
  #isInCycle(holder: Request): boolean {
    return this.#model.inCycle.has(holder.arrival);
  }
}

const cut = (text: string): string => (text.length > 25 ? `${text.slice(0, 24)}…` : text);

function marker(id: string): SVGElement {
  const arrow = svg('path', { d: 'M0 0L8 4L0 8z' });
  return svg('defs', {}, svg('marker', { id, viewBox: '0 0 8 8', refX: '8', refY: '4', markerWidth: '9', markerHeight: '9', markerUnits: 'userSpaceOnUse', orient: 'auto' }, arrow));
}

/** From the right side of one box to the left side of another; one that goes back passes below. */
function curve(from: { x: number; y: number }, to: { x: number; y: number }): string {
  const middle = BOX.height / 2;
  if (to.x <= from.x) {
    const [x1, x2, y1, y2] = [from.x + BOX.width / 2, to.x + BOX.width / 2, from.y + BOX.height, to.y + BOX.height];
    const below = Math.max(y1, y2) + (ROW - BOX.height) / 2;
    return `M${x1} ${y1}C${x1} ${below} ${x1} ${below} ${x1 - 20} ${below}L${x2 + 20} ${below}C${x2} ${below} ${x2} ${below} ${x2} ${y2}`;
  }
  const [x1, y1, x2, y2] = [from.x + BOX.width, from.y + middle, to.x, to.y + middle];
  const bend = Math.max(20, (x2 - x1) / 2);
  return `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}`;
}
