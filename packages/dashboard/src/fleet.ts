/** The daemons of a fleet: the leader, the lag of the others, and the state of etcd. */

import { byId, h, setText } from './dom.js';
import { age, count, several, visible } from './text.js';

interface Report {
  leader: { url: string; vacant: boolean; position: number; takeover: number } | null;
  daemons: { url: string; version: string; position: number; lag: number; seen: number }[];
  etcd: { member: string; version: string | null; leads: boolean; bytes: number; trouble: string[] }[];
  trouble: string[];
}

/** A daemon says every three seconds that it is there. */
const LATE = 15_000;

/** How often the daemon is queried while this view is visible. */
const PAUSE = 4_000;

export class Fleet {
  readonly element: HTMLElement;
  readonly #summary = h('p', { id: 'fleet-summary', role: 'status' });
  readonly #trouble = h('ul', { id: 'fleet-trouble', role: 'alert', hidden: true });
  readonly #daemons = h('tbody');
  readonly #members = h('tbody');
  #asked = 0;
  #shown = '';

  constructor() {
    const table = (caption: string, heads: string[], body: HTMLElement) =>
      h('table', {}, h('caption', {}, caption), h('thead', {}, h('tr', {}, ...heads.map((head) => h('th', { scope: 'col' }, head)))), body);
    this.element = h(
      'section',
      { class: 'fleet', 'aria-label': 'Fleet' },
      this.#summary,
      this.#trouble,
      table('Daemons', ['Daemon', 'Role', 'Entries behind', 'Version', 'Seen'], this.#daemons),
      table('etcd', ['Member', 'Role', 'Version', 'Size', 'Trouble'], this.#members),
    );
  }

  /** Asks, if the last answer is old. The tab is there only where there is a fleet. */
  async update(token: string | null, now: number, force = false): Promise<void> {
    if (!force && now - this.#asked < PAUSE) return;
    this.#asked = now;
    const headers: Record<string, string> = token === null ? {} : { authorization: `Bearer ${token}` };
    try {
      const response = await fetch('/fleet', { headers, cache: 'no-store' });
      if (!response.ok) throw new Error(await response.text());
      const report = (await response.json()) as Report | null;
      byId('tab-fleet').hidden = report === null;
      if (report !== null) this.#show(report);
    } catch (error) {
      setText(this.#summary, `Cannot show the state of the fleet: ${visible(error instanceof Error ? error.message.trim() : String(error), 300)}`);
    }
  }

  #show(report: Report): void {
    const { leader, daemons, etcd, trouble } = report;
    setText(this.#summary, summarise(report));
    // Times apart, it is drawn only if it has changed: a screen reader may be in it.
    const rows = daemons.map(({ url, version, lag, seen }) => {
      const leads = leader !== null && !leader.vacant && leader.url === url;
      const role = seen > LATE ? 'silent' : leads ? 'leads' : 'follows';
      return { cells: [url, role, count(lag), version, seen > LATE ? `${age(seen)} ago` : 'now'], red: seen > LATE };
    });
    const members = etcd.map(({ member, version, leads, bytes, trouble }) => {
      const role = version === null ? 'silent' : leads ? 'leads' : 'follows';
      return { cells: [member, role, version ?? '–', `${(bytes / 2 ** 20).toFixed(1)} MiB`, trouble.join('; ')], red: trouble.length > 0 };
    });
    const key = JSON.stringify([rows, members, trouble]);
    if (key === this.#shown) return;
    this.#shown = key;
    const fill = (body: HTMLElement, rows: { cells: string[]; red: boolean }[]) =>
      body.replaceChildren(...rows.map(({ cells, red }) => h('tr', red ? { class: 'red' } : {}, ...cells.map((cell) => h('td', {}, visible(cell, 300))))));
    fill(this.#daemons, rows);
    fill(this.#members, members);
    this.#trouble.hidden = trouble.length === 0;
    this.#trouble.replaceChildren(...trouble.map((text) => h('li', {}, visible(text, 1000))));
  }
}

function summarise({ leader, daemons, etcd }: Report): string {
  if (leader === null) return 'No daemon has led yet: the log is empty.';
  if (leader.vacant) return 'Nobody leads: the last leader has handed over.';
  const silent = daemons.filter(({ seen }) => seen > LATE).length;
  const troubled = etcd.filter(({ trouble }) => trouble.length > 0).length;
  const parts = [
    `${visible(leader.url, 200)} leads ${several(daemons.length, 'daemon')}.`,
    `The log has ${count(leader.position)} entries.`,
    silent > 0 ? `${several(silent, 'daemon')} silent.` : '',
    troubled > 0 ? `Something is wrong with ${several(troubled, 'member')} of etcd.` : '',
    `Another daemon takes over after ${age(leader.takeover)} without a sign of the leader.`,
  ];
  return parts.filter((part) => part !== '').join(' ');
}
