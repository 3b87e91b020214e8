/**
 * A list of any length of which only the visible rows are elements: 100,000 rows cost as much as
 * 30. Rows have one height. The list has one tab stop; arrow keys move the selection, and each row
 * has its position for screen readers.
 */

import { h } from './dom.js';

export interface Rows<T> {
  /** Makes an empty row. Rows are used again for other items. */
  make(): HTMLElement;
  /** Has a row show an item. */
  fill(row: HTMLElement, item: T, index: number): void;
  key(item: T): unknown;
  /** Is called when another row is selected, and when the selected one is entered. */
  select?(item: T, entered: boolean): void;
}

/** Rows beyond those in sight, on either side. */
const MORE = 6;

export class Window<T> {
  readonly element: HTMLElement;
  readonly #canvas: HTMLElement;
  readonly #rows: Rows<T>;
  readonly #id: string;
  readonly #options: boolean;
  #items: readonly T[] = [];
  #pool: HTMLElement[] = [];
  #selected: unknown = undefined;
  #index = -1;
  #height = 0;
  #frame = 0;

  /**
   * Options can be selected and have nothing else to act upon; items of a plain list may have
   * buttons.
   */
  constructor(id: string, label: string, rows: Rows<T>, role: 'listbox' | 'list' = 'listbox') {
    this.#id = id;
    this.#rows = rows;
    this.#options = role === 'listbox';
    this.#canvas = h('div', { class: 'canvas', role: 'presentation' });
    this.element = h('div', { class: 'window', role, tabindex: '0', 'aria-label': label, id }, this.#canvas);
    this.element.addEventListener('scroll', () => this.#later(), { passive: true });
    this.element.addEventListener('keydown', (event) => this.#press(event));
    this.element.addEventListener('click', (event) => this.#click(event));
    new ResizeObserver(() => {
      this.#height = 0;
      this.#later();
    }).observe(this.element);
  }

  get selected(): T | undefined {
    return this.#items[this.#index];
  }

  /** Shows these. Whatever was selected stays so, if it is among them. */
  show(items: readonly T[]): void {
    this.#items = items;
    this.#find();
    this.draw();
  }

  /** Selects an item, and brings it into sight. */
  select(key: unknown, into = true): void {
    this.#selected = key;
    this.#find();
    if (into) this.#bring();
    this.draw();
  }

  /** Draws the rows in sight anew: times pass. */
  draw(): void {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const height = this.#rowHeight();
    const total = this.#items.length;
    const { scrollTop, clientHeight } = this.element;
    this.#canvas.style.height = `${total * height}px`;
    const first = Math.max(0, Math.floor(scrollTop / height) - MORE);
    const last = Math.min(total, Math.ceil((scrollTop + clientHeight) / height) + MORE);
    while (this.#pool.length < last - first) {
      const row = this.#rows.make();
      row.setAttribute('role', this.#options ? 'option' : 'listitem');
      this.#pool.push(row);
      this.#canvas.append(row);
    }
    while (this.#pool.length > Math.max(last - first, 0)) this.#pool.pop()!.remove();
    this.element.removeAttribute('aria-activedescendant');
    this.#pool.forEach((row, i) => {
      const index = first + i;
      row.style.transform = `translateY(${index * height}px)`;
      row.dataset['index'] = String(index);
      row.setAttribute('aria-posinset', String(index + 1));
      row.setAttribute('aria-setsize', String(total));
      row.id = `${this.#id}-${i}`;
      row.classList.toggle('selected', index === this.#index);
      if (this.#options) {
        row.setAttribute('aria-selected', String(index === this.#index));
        if (index === this.#index) this.element.setAttribute('aria-activedescendant', row.id);
      }
      this.#rows.fill(row, this.#items[index]!, index);
    });
  }

  #later(): void {
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => this.draw());
  }

  #rowHeight(): number {
    if (this.#height === 0) this.#height = Number.parseFloat(getComputedStyle(this.element).getPropertyValue('--row')) || 36;
    return this.#height;
  }

  #find(): void {
    const { key } = this.#rows;
    if (this.#selected === undefined) this.#index = -1;
    else if (this.#index < 0 || this.#index >= this.#items.length || key(this.#items[this.#index]!) !== this.#selected) {
      this.#index = this.#items.findIndex((item) => key(item) === this.#selected);
    }
  }

  #bring(): void {
    if (this.#index < 0) return;
    const height = this.#rowHeight();
    const [top, bottom] = [this.#index * height, (this.#index + 1) * height];
    if (top < this.element.scrollTop) this.element.scrollTop = top;
    else if (bottom > this.element.scrollTop + this.element.clientHeight) this.element.scrollTop = bottom - this.element.clientHeight;
  }

  #go(index: number, entered = false): void {
    const item = this.#items[Math.max(0, Math.min(index, this.#items.length - 1))];
    if (item === undefined) return;
    this.select(this.#rows.key(item));
    this.#rows.select?.(item, entered);
  }

  #press(event: KeyboardEvent): void {
    if (event.target !== this.element || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.#rowHeight()) - 1);
    const to: Record<string, number> = {
      ArrowDown: this.#index + 1,
      ArrowUp: Math.max(0, this.#index - 1),
      PageDown: this.#index + page,
      PageUp: this.#index - page,
      Home: 0,
      End: this.#items.length - 1,
    };
    const index = to[event.key];
    if (index !== undefined) this.#go(index);
    else if (event.key === 'Enter' || event.key === ' ') this.#go(Math.max(0, this.#index), true);
    else return;
    event.preventDefault();
  }

  #click(event: MouseEvent): void {
    const target = event.target as Element;
    const row = target.closest<HTMLElement>('[data-index]');
    if (row !== null && target.closest('button') === null) this.#go(Number(row.dataset['index']), true);
  }
}
