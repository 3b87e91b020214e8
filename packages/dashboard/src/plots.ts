/**
 * Waits and holds over the last minutes. The page records them from when it is opened. The time
 * before is reconstructed from the start times of requests that are still held or waiting, and
 * drawn paler.
 */

import { h, setText, svg } from './dom.js';
import type { Model } from './model.js';
import { age, count } from './text.js';

/** Seconds that are shown. */
const SPAN = 600;

/** Samples over which the rate of grants is taken. */
const SMOOTH = 10;

const [WIDTH, HEIGHT] = [300, 56];

interface Sample {
  held: number;
  waiting: number;
  wait: number;
  rate: number;
}

type Measure = keyof Sample;

/** More grants a second than any daemon makes: tokens have skipped ahead. */
const TOO_FAST = 1e6;

export class Plots {
  readonly element: HTMLElement;
  readonly #model: Model;
  readonly #plots: Plot[];
  #samples: Sample[] = [];
  /** How many of them are from before the page was opened. */
  #guessed = 0;
  /** The greatest token at the last few samples. */
  #tokens: [at: number, token: bigint][] = [];
  #at = 0;

  constructor(model: Model) {
    this.#model = model;
    this.#plots = [
      new Plot('waiting', 'Waiting', (value) => count(value)),
      new Plot('wait', 'Longest wait', (value) => (value === 0 ? '–' : age(value))),
      new Plot('held', 'Held', (value) => count(value)),
      new Plot('rate', 'Grants/s', (value) => (value < 10 ? value.toFixed(1) : count(Math.round(value)))),
    ];
    this.element = h('section', { class: 'plots', 'aria-label': 'The last ten minutes' }, ...this.#plots.map(({ element }) => element));
  }

  /** A state has arrived: its start times give the time before, once. */
  begin(now: number): void {
    this.#tokens = [];
    if (this.#samples.length > 0) return;
    const samples = Array.from({ length: SPAN }, () => ({ held: 0, waiting: 0, wait: 0, rate: 0 }));
    const began = now - SPAN * 1000;
    for (const { since, token } of this.#model.requests.values()) {
      const first = Math.max(0, Math.ceil((since - began) / 1000));
      if (first < SPAN) samples[first]![token === null ? 'waiting' : 'held'] += 1;
    }
    let oldest = Infinity;
    for (const { since, token } of this.#model.requests.values()) if (token === null) oldest = Math.min(oldest, since);
    samples.reduce((before, sample, i) => {
      sample.held += before.held;
      sample.waiting += before.waiting;
      sample.wait = Math.max(0, began + i * 1000 - oldest);
      return sample;
    });
    this.#samples = samples;
    this.#guessed = SPAN;
  }

  /** A second has passed. */
  sample(now: number): void {
    const model = this.#model;
    let oldest = now;
    for (const { waiters } of model.locks.values()) if (waiters.length > 0) oldest = Math.min(oldest, waiters[0]!.since);
    // Each grant has the next token. Over some seconds: single grants would be nothing but spikes.
    this.#tokens.push([now, BigInt(model.lastToken)]);
    this.#tokens.splice(0, Math.max(0, this.#tokens.length - SMOOTH));
    const [[from, first], [, last]] = [this.#tokens[0]!, this.#tokens.at(-1)!];
    const rate = now === from ? 0 : Number(last - first) / ((now - from) / 1000);
    const before = this.#at;
    this.#at = now;
    const sample = { held: model.held, waiting: model.waiting, wait: now - oldest, rate: rate >= 0 && rate < TOO_FAST ? rate : 0 };
    // A background tab is woken rarely: missed seconds are drawn with the current values.
    const passed = before === 0 ? 1 : Math.min(SPAN, Math.max(1, Math.round((now - before) / 1000)));
    for (let i = 0; i < passed; i++) this.#samples.push(sample);
    const old = Math.max(0, this.#samples.length - SPAN);
    this.#samples.splice(0, old);
    this.#guessed = Math.max(0, this.#guessed - old);
    for (const plot of this.#plots) plot.draw(this.#samples, this.#guessed);
  }
}

class Plot {
  readonly element: HTMLElement;
  readonly #measure: Measure;
  readonly #write: (value: number) => string;
  readonly #now = h('strong');
  readonly #most = h('span', { class: 'most' });
  readonly #before = svg('path', { class: 'before' });
  readonly #since = svg('path', { class: 'since' });
  readonly #drawing: SVGSVGElement;

  constructor(measure: Measure, title: string, write: (value: number) => string) {
    this.#measure = measure;
    this.#write = write;
    this.#drawing = svg(
      'svg',
      { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', role: 'img', class: `plot ${measure}` },
      svg('line', { x1: '0', x2: String(WIDTH), y1: String(HEIGHT - 1), y2: String(HEIGHT - 1), class: 'axis' }),
      this.#before,
      this.#since,
    );
    const head = h('figcaption', {}, h('span', {}, title), this.#now);
    const axis = h('div', { class: 'axis' }, h('span', {}, '10 min ago'), this.#most, h('span', {}, 'now'));
    this.element = h('figure', { id: `plot-${measure}` }, head, this.#drawing, axis);
  }

  draw(samples: Sample[], guessed: number): void {
    const values = samples.map((sample) => sample[this.#measure]);
    const most = Math.max(...values, 0);
    const scale = (HEIGHT - 4) / Math.max(most, 1);
    const point = (value: number, i: number) => {
      const x = WIDTH - ((values.length - 1 - i) / SPAN) * WIDTH;
      return `${x.toFixed(1)} ${(HEIGHT - 1 - value * scale).toFixed(1)}`;
    };
    const points = values.map(point);
    const line = (from: number, to: number) => (to - from < 2 ? '' : `M${points.slice(from, to).join('L')}`);
    // The rate of the time before is not known.
    this.#before.setAttribute('d', this.#measure === 'rate' ? '' : line(0, guessed + 1));
    this.#since.setAttribute('d', line(guessed, points.length));
    const now = this.#write(values.at(-1) ?? 0);
    setText(this.#now, now);
    setText(this.#most, most === 0 ? '' : `at most ${this.#write(most)}`);
    this.#drawing.setAttribute('aria-label', `now ${now}, at most ${this.#write(most)} in ten minutes`);
  }
}
