/**
 * Release, steal and the end of a session: each behind a confirmation that lists what it will
 * break.
 */

import { h } from './dom.js';
import type { Lock, Request } from './model.js';
import type { Session } from './session.js';
import { age, nameText, several, visible, who } from './text.js';

/** The rights of the token. */
export interface Rights {
  readonly steal: boolean;
  readonly force: boolean;
}

/** The claims of a token. The daemon checks them; here they only decide which buttons are shown. */
export function claimsOf(token: string | null): { rights: Rights; buckets: string[] } {
  if (token === null) return { rights: { steal: true, force: true }, buckets: [] };
  try {
    const [, payload = ''] = token.split('.');
    const bytes = Uint8Array.from(atob(payload.replace(/-/g, '+').replace(/_/g, '/')), (char) => char.charCodeAt(0));
    const claims = JSON.parse(new TextDecoder().decode(bytes)) as Record<string, unknown>;
    const buckets = Array.isArray(claims['buckets']) ? claims['buckets'].filter((name) => typeof name === 'string') : [];
    return { rights: { steal: claims['steal'] === true, force: claims['force_release'] === true }, buckets };
  } catch {
    return { rights: { steal: false, force: false }, buckets: [] };
  }
}

/**
 * The bucket to look at with a token: the one that is wanted, or one that the token names if it is
 * not for that.
 */
export function bucketFor(token: string, wanted: string): string {
  const { buckets } = claimsOf(token);
  const covers = (name: string) => (name.endsWith('*') ? wanted.startsWith(name.slice(0, -1)) : name === wanted);
  return buckets.some(covers) ? wanted : (buckets.find((name) => !name.endsWith('*')) ?? wanted);
}

interface Question {
  title: string;
  /** The effects, one each. */
  breaks: string[];
  then: string;
  verb: string;
}

export class Actions {
  session: Session | undefined;
  rights: Rights = { steal: true, force: true };
  readonly #showMessage: (text: string) => void;

  constructor(showMessage: (text: string) => void) {
    this.#showMessage = showMessage;
  }

  buttons(lock: Lock): HTMLElement[] {
    const button = (id: string, text: string, run: () => Promise<void>) =>
      h('button', { type: 'button', id, onclick: () => void run() }, text);
    return [
      button('release', 'Release…', () => this.release(lock)),
      button('steal', 'Steal…', () => this.steal(lock)),
      button('give-back', 'Give back', () => this.giveBack(lock)),
    ];
  }

  /** Updates the available actions. */
  refresh(buttons: HTMLElement, lock: Lock): void {
    const allow = (id: string, allowed: boolean, possible: boolean) => {
      const button = buttons.querySelector<HTMLButtonElement>(`#${id}`);
      if (button === null) return;
      button.disabled = !allowed || !possible;
      button.title = allowed ? '' : 'The token does not allow it';
    };
    const mine = this.#mine(lock) !== undefined;
    allow('release', this.rights.force, lock.holders.length > 0);
    allow('steal', this.rights.steal, !mine && !lock.name.startsWith('-'));
    const back = buttons.querySelector<HTMLButtonElement>('#give-back');
    if (back !== null) back.hidden = !mine;
  }

  allowEnd(button: HTMLButtonElement, request: Request): void {
    const mine = request.clientId === this.session?.clientId;
    button.disabled = !this.rights.force || mine;
    button.title = mine ? 'This page' : this.rights.force ? '' : 'The token does not allow it';
  }

  async release(lock: Lock): Promise<void> {
    const confirmed = await this.#confirm(lock, ({ holders, waiters }) => ({
      title: `Release ${nameText(lock.name, 200)}?`,
      breaks: holders.map(holderLine),
      then: waiters.length > 0 ? `Then the first in the queue gets it; ${several(waiters.length, 'request')} waiting.` : 'Nobody waits for it.',
      verb: 'Release',
    }));
    if (!confirmed) return;
    const answer = await this.session?.forceRelease(lock.bytes);
    this.#reportOutcome(answer, (count) => `Released ${nameText(lock.name, 100)}: ${several(count, 'lock')} broken`);
  }

  async steal(lock: Lock): Promise<void> {
    const confirmed = await this.#confirm(lock, ({ holders, waiters }) => ({
      title: `Steal ${nameText(lock.name, 200)}?`,
      breaks: holders.map(holderLine),
      then: `This page holds it until you give it back or close the page; ${several(waiters.length, 'request')} waiting for it will go on waiting.`,
      verb: 'Steal',
    }));
    if (!confirmed) return;
    const answer = await this.session?.steal(lock.bytes);
    this.#reportOutcome(answer, () => `Stole ${nameText(lock.name, 100)}. This page holds it`);
  }

  /**
   * Asks about a lock as it is now. If others hold it by the time of the answer, it was not about
   * them: asks again.
   */
  async #confirm(lock: Lock, question: (now: Pick<Lock, 'holders' | 'waiters'>) => Question): Promise<boolean> {
    const current = () => this.session?.lockOf(lock.key) ?? { holders: [], waiters: [] };
    const named = () => current().holders.map(({ arrival }) => String(arrival)).join();
    for (let changed = false; ; changed = true) {
      const before = named();
      const asked = question(current());
      if (!(await ask(changed ? { ...asked, title: `Its holders have changed. ${asked.title}` } : asked))) return false;
      if (named() === before) return true;
    }
  }

  async giveBack(lock: Lock): Promise<void> {
    const rid = this.#mine(lock);
    if (rid === undefined) return;
    this.#reportOutcome(await this.session?.release(rid), () => `Gave ${nameText(lock.name, 100)} back`);
  }

  async endSession(request: Request): Promise<void> {
    const theirs = this.session?.requestsOf(request.clientId) ?? [];
    const held = theirs.filter(({ token }) => token !== null);
    const names = held.flatMap(({ names }) => names.map(({ lock }) => nameText(lock.name, 100)));
    const shown = names.slice(0, 10);
    const breaks = shown.map((name) => `its lock on ${name}`);
    if (names.length > shown.length) breaks.push(`${several(names.length - shown.length, 'other lock')} of it`);
    if (theirs.length > held.length) breaks.push(`${several(theirs.length - held.length, 'request')} of it that wait`);
    const person = who(request.owner, request.clientId);
    const then = `Session ${visible(request.clientId)}, ${visible(request.owner ?? 'of an unknown owner', 300)}. Its program is notified that its locks are lost.`;
    if (!(await ask({ title: `End the session of ${person}?`, breaks, then, verb: 'End session' }))) return;
    const answer = await this.session?.endSession(request.clientId);
    this.#reportOutcome(answer, (count) => (count > 0 ? `Ended the session of ${person}` : `The session of ${person} had ended already`));
  }

  #mine(lock: Lock): number | undefined {
    const same = (bytes: Uint8Array) => bytes.length === lock.bytes.length && bytes.every((byte, i) => byte === lock.bytes[i]);
    return [...(this.session?.held ?? [])].find(([, bytes]) => same(bytes))?.[0];
  }

  #reportOutcome(answer: { ok: true; count: number } | { ok: false; why: string } | undefined, done: (count: number) => string): void {
    if (answer !== undefined) this.#showMessage(answer.ok ? done(answer.count) : `Not done: ${visible(answer.why, 500)}`);
  }
}

/** The line for a holder that loses a lock. */
function holderLine(request: Request): string {
  const label = request.info ? `, “${visible(request.info, 200)}”` : '';
  const owner = request.owner ? ` (${visible(request.owner, 200)})` : '';
  return `${who(request.owner, request.clientId)}${owner}${label}, held for ${age(Date.now() - request.since)}`;
}

/**
 * Asks for confirmation before something is broken. The default choice is to cancel. Each question
 * has a separate dialog.
 */
function ask({ title, breaks, then, verb }: Question): Promise<boolean> {
  const shown = breaks.slice(0, 20).map((line) => h('li', {}, line));
  if (breaks.length > 20) shown.push(h('li', {}, several(breaks.length - 20, 'other')));
  const cancel = h('button', { type: 'button', onclick: () => dialog.close() }, 'Cancel');
  const go = h('button', { type: 'button', class: 'danger', onclick: () => dialog.close('go') }, verb);
  const dialog = h(
    'dialog',
    { 'aria-labelledby': 'confirm-title' },
    h('h2', { id: 'confirm-title' }, title),
    h('p', {}, breaks.length === 0 ? 'Nobody holds it now.' : 'This breaks:'),
    h('ul', {}, ...shown),
    h('p', {}, then),
    h('div', { class: 'buttons' }, cancel, go),
  );
  document.body.append(dialog);
  dialog.showModal();
  cancel.focus();
  return new Promise((resolve) => {
    dialog.addEventListener('close', () => {
      dialog.remove();
      resolve(dialog.returnValue === 'go');
    });
  });
}
