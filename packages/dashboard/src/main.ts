/** The dashboard: connects its parts. The view follows the model; the model follows the daemon. */

import { Actions, bucketFor, claimsOf } from './actions.js';
import { Deadlocks } from './deadlocks.js';
import { Detail } from './detail.js';
import { byId, h, setText } from './dom.js';
import { Fleet } from './fleet.js';
import { Graph } from './graph.js';
import { Locks, type Order } from './locks.js';
import { Model, type Lock } from './model.js';
import { Plots } from './plots.js';
import { Session, type Status } from './session.js';
import { age, count, nameText, visible } from './text.js';
import { fromName } from '../../lockkeeper/src/wire.js';

/**
 * Where the token is while the tab is open: a reload at night should not ask for it again, another
 * tab should.
 */
const TOKEN = 'lockkeeper-token';

let model = new Model();
let session: Session | undefined;
let status: Status = { kind: 'connecting' };
/** When the state was last known to be true. */
let liveAt = 0;
const VIEWS = ['locks', 'graph', 'fleet'] as const;
let view: (typeof VIEWS)[number] = 'locks';
let frame = 0;
let searchAt = 0;
let toastTimer: ReturnType<typeof setTimeout> | undefined;

const actions = new Actions(showMessage);
const main = byId('main');
const [statusText, toast, search] = [byId('status'), byId('toast'), byId<HTMLInputElement>('search')];
const fleet = new Fleet();
byId('fleet').append(fleet.element);
let parts = build();

function build() {
  const detail = new Detail(model, actions, () => select(undefined));
  const locks = new Locks(model, (lock, entered) => select(lock, entered));
  const graph = new Graph(model, (lock) => {
    show('locks');
    locks.window.element.focus();
    select(lock, true);
    locks.window.select(lock.key);
  });
  const deadlocks = new Deadlocks(model, (bytes) => {
    const lock = [...model.locks.values()].find(({ bytes: other }) => String(other) === String(bytes));
    if (lock === undefined) return;
    show('locks');
    select(lock, true);
    locks.window.select(lock.key);
  });
  const plots = new Plots(model);
  byId('plots').replaceChildren(plots.element);
  byId('deadlocks').replaceChildren(deadlocks.element);
  byId('list').replaceChildren(locks.window.element);
  byId('detail').replaceChildren(detail.element);
  byId('graph').replaceChildren(graph.element);
  return { detail, locks, graph, deadlocks, plots };
}

const now = (): number => Date.now();

/** The bucket that the address names: it can be bookmarked. A token never stands there. */
function bucketOf(): string {
  const named = /^#bucket=(.+)$/.exec(location.hash)?.[1] ?? 'default';
  try {
    return decodeURIComponent(named);
  } catch {
    // The user has typed it.
    return named;
  }
}

function connect(): void {
  session?.close();
  model = new Model();
  parts = build();
  parts.locks.search = search.value;
  select(undefined);
  const token = sessionStorage.getItem(TOKEN);
  const { rights, buckets } = claimsOf(token);
  actions.rights = rights;
  byId('known-buckets').replaceChildren(...buckets.filter((name) => !name.endsWith('*')).map((value) => h('option', { value })));
  byId('logout').hidden = token === null;
  const bucket = bucketOf();
  byId<HTMLInputElement>('bucket').value = bucket;
  const url = `${location.protocol === 'https:' ? 'wss' : 'ws'}://${location.host}/dashboard`;
  const onLost = (name: Uint8Array, by: string | null) =>
    showMessage(`${nameText(fromName(name), 100)} is not held here any more${by === null ? '' : `: taken by ${visible(by, 100)}`}`);
  session = new Session({ url, bucket, token, model, onStatus, onChange: later, onLost });
  actions.session = session;
}

function onStatus(next: Status): void {
  const was = status.kind;
  status = next;
  document.body.dataset['status'] = next.kind;
  byId('login').hidden = next.kind !== 'login';
  main.hidden = next.kind === 'login';
  if (next.kind === 'login') {
    setText(byId('login-why'), sessionStorage.getItem(TOKEN) === null ? '' : `Refused: ${visible(next.why, 300)}`);
    sessionStorage.removeItem(TOKEN);
    byId('logout').hidden = true;
    byId<HTMLInputElement>('token').focus();
  }
  if (next.kind === 'live') {
    parts.plots.begin(now());
    if (was !== 'live') {
      parts.locks.update(performance.now(), true);
      void fleet.update(sessionStorage.getItem(TOKEN), now(), true);
    }
  }
  tick();
}

/** Something has changed: it is drawn with the next frame. */
function later(): void {
  if (frame === 0) frame = requestAnimationFrame(draw);
}

function draw(): void {
  frame = 0;
  const time = performance.now();
  // The daemon searches: not more than twice a second.
  if (time - searchAt > 500) {
    searchAt = time;
    session?.searchDeadlocks();
  }
  parts.deadlocks.update();
  if (view === 'graph') {
    if (!parts.graph.update(time)) later();
  }
  else if (view === 'locks') {
    const shown = parts.locks.update(time);
    if (shown >= 0) setText(byId('shown'), summary(shown));
    if (parts.locks.isStale) later();
    parts.detail.update();
  }
}

function summary(shown: number): string {
  const all = model.locks.size;
  const nothing = byId('nothing');
  nothing.hidden = all > 0;
  if (all === 0) setText(nothing, emptiness());
  if (search.value.trim() !== '') return `${count(shown)} of ${count(all)} locks match`;
  if (all === 0) return 'Nobody holds a lock, and nobody waits';
  return `${count(all)} locks: ${count(model.held)} requests hold, ${count(model.waiting)} wait`;
}

/** Explains an empty list. Without keys, clients of the port have separate buckets. */
function emptiness(): string {
  const there = `Nobody holds a lock in the bucket “${visible(bucketOf(), 100)}”, and nobody waits.`;
  if (sessionStorage.getItem(TOKEN) !== null) return there;
  return `${there} Clients of the daemon's Unix socket have other buckets, unless it runs with --share-buckets, --keys or --store.`;
}

/** Once a second: times pass, also if nothing changes. */
function tick(): void {
  const time = now();
  if (status.kind === 'live') liveAt = time;
  // Beside what a screen reader reads whenever it changes.
  setText(byId('age'), status.kind === 'live' || liveAt === 0 ? '' : `What you see is ${age(time - liveAt)} old.`);
  const words = {
    connecting: () => (liveAt === 0 ? 'Connecting…' : 'Connecting again.'),
    live: () => 'Live',
    lost: (why: string) => `Not connected: ${why}.`,
    login: () => 'Not logged in',
    refused: (why: string) => `Refused: ${why}`,
  };
  setText(statusText, visible(words[status.kind]('why' in status ? status.why : ''), 300));
  if (status.kind === 'live') {
    parts.plots.sample(time);
    if (view === 'fleet') void fleet.update(sessionStorage.getItem(TOKEN), time);
  }
  later();
}

function select(lock: Lock | undefined, entered = false): void {
  parts.detail.show(lock);
  if (lock === undefined) parts.locks.window.select(undefined, false);
  // Where the list fills the screen, what was entered takes its place; what arrow keys pass over
  // does not.
  document.body.classList.toggle('selected', lock !== undefined && entered);
  if (entered && lock !== undefined && matchMedia('(max-width: 60rem)').matches) parts.detail.focus();
}

function show(next: typeof view): void {
  view = next;
  for (const name of VIEWS) {
    byId(`tab-${name}`).setAttribute('aria-selected', String(name === next));
    byId(`tab-${name}`).tabIndex = name === next ? 0 : -1;
    byId(`view-${name}`).hidden = name !== next;
  }
  if (next === 'fleet') void fleet.update(sessionStorage.getItem(TOKEN), now(), true);
  later();
}

function showMessage(text: string): void {
  toast.textContent = text;
  toast.hidden = false;
  clearTimeout(toastTimer);
  toastTimer = setTimeout(() => (toast.hidden = true), 15_000);
}

function arrange(order: Order): void {
  parts.locks.order = order;
  for (const button of document.querySelectorAll<HTMLElement>('[data-order]')) {
    button.setAttribute('aria-pressed', String(button.dataset['order'] === order));
  }
  setText(byId('shown'), summary(parts.locks.update(performance.now(), true)));
}

byId('login').addEventListener('submit', (event) => {
  event.preventDefault();
  const field = byId<HTMLInputElement>('token');
  const token = field.value.trim();
  field.value = '';
  sessionStorage.setItem(TOKEN, token);
  const bucket = bucketFor(token, bucketOf());
  if (bucket === bucketOf()) connect();
  else location.hash = `bucket=${encodeURIComponent(bucket)}`;
});
byId('logout').addEventListener('click', () => {
  sessionStorage.removeItem(TOKEN);
  connect();
});
byId('buckets').addEventListener('submit', (event) => {
  event.preventDefault();
  location.hash = `bucket=${encodeURIComponent(byId<HTMLInputElement>('bucket').value || 'default')}`;
});
addEventListener('hashchange', connect);
search.addEventListener('input', () => {
  parts.locks.search = search.value;
  parts.locks.window.element.scrollTop = 0;
  setText(byId('shown'), summary(parts.locks.update(performance.now(), true)));
});
for (const name of VIEWS) byId(`tab-${name}`).addEventListener('click', () => show(name));
byId('tabs').addEventListener('keydown', (event) => {
  if (event.key !== 'ArrowLeft' && event.key !== 'ArrowRight') return;
  const tabs = VIEWS.filter((name) => !byId(`tab-${name}`).hidden);
  const step = event.key === 'ArrowRight' ? 1 : tabs.length - 1;
  show(tabs[(tabs.indexOf(view) + step) % tabs.length]!);
  byId(`tab-${view}`).focus();
});
for (const button of document.querySelectorAll<HTMLElement>('[data-order]')) {
  button.addEventListener('click', () => arrange(button.dataset['order'] as Order));
}
toast.addEventListener('click', () => (toast.hidden = true));
addEventListener('keydown', (event) => {
  // The dialog has its own keys, and Escape has closed it by now.
  if (event.target instanceof Element && event.target.closest('dialog') !== null) return;
  const typing = event.target instanceof HTMLInputElement;
  if (event.key === '/' && !typing && !event.ctrlKey && !event.metaKey) {
    event.preventDefault();
    show('locks');
    search.focus();
  } else if (event.key === 'Escape') {
    if (event.target === search && search.value !== '') {
      search.value = '';
      search.dispatchEvent(new Event('input'));
    } else {
      select(undefined);
      parts.locks.window.element.focus();
    }
  } else if (event.target === search && (event.key === 'ArrowDown' || event.key === 'Enter')) {
    event.preventDefault();
    parts.locks.window.element.focus();
  }
});

show('locks');
connect();
setInterval(tick, 1000);
