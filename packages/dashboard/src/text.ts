/**
 * Formats names, labels, owners and times. Names and labels are untrusted input, and are inserted
 * as text only.
 */

/**
 * Control and format characters, which hide or turn text around; lone surrogates; separators that
 * break lines.
 */
const UNSEEN = /[\p{Cc}\p{Cf}\p{Co}\p{Cs}\p{Zl}\p{Zp}\uFFFD]/gu;

/** The most of a text that is shown at once, in characters. */
const LONGEST = 4096;

/** A text whose every character is seen: what would not be is written as `\u{202e}`. */
export function visible(text: string, longest = LONGEST): string {
  const cut = text.length > longest ? `${text.slice(0, longest)}…` : text;
  return cut.replace(UNSEEN, (char) => `\\u{${char.codePointAt(0)?.toString(16) ?? ''}}`);
}

/**
 * A name: as it is if that is plain, otherwise in quotes, so that blanks and emptiness are seen.
 */
export function nameText(name: string, longest = LONGEST): string {
  const shown = visible(name, longest);
  return shown === '' || /^\s|\s$|\s\s|"/u.test(shown) ? `"${shown}"` : shown;
}

/** So many milliseconds, as `lockkeeper top` writes them. */
export function age(milliseconds: number): string {
  const seconds = Math.max(0, milliseconds) / 1000;
  const two = (number: number) => String(Math.floor(number)).padStart(2, '0');
  if (seconds < 10) return `${(Math.floor(seconds * 10) / 10).toFixed(1)}s`;
  if (seconds < 60) return `${Math.floor(seconds)}s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)}m${two(seconds % 60)}s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)}h${two((seconds / 60) % 60)}m`;
  return `${Math.floor(seconds / 86400)}d${two((seconds / 3600) % 24)}h`;
}

export const count = (number: number): string => number.toLocaleString('en');

/** `1 request`, `2 requests`. */
export const several = (number: number, what: string): string => `${count(number)} ${what}${number === 1 ? '' : 's'}`;

/** The end of the owner of a session whose client may be alive or not: the daemon cannot tell. */
const UNVERIFIABLE = ' (unverifiable)';

export const isUnverifiable = (owner: string | null): boolean => owner?.endsWith(UNVERIFIABLE) ?? false;

/**
 * A short description of a client: `ann@build7, pid 4711`. The daemon puts the authenticated part
 * before the client's own.
 */
export function who(owner: string | null, clientId: string): string {
  if (isUnverifiable(owner)) return who(owner!.slice(0, -UNVERIFIABLE.length), clientId) + UNVERIFIABLE;
  if (owner === null || owner === '') return `client ${visible(clientId)}`;
  const user = owner.split(' ').find((word) => word.includes('@'));
  const pid = /^pid (\d+)/.exec(owner)?.[1] ?? /\[(\d+)\]$/.exec(owner)?.[1];
  if (user === undefined) return visible(owner, 100);
  return visible(pid === undefined ? user : `${user}, pid ${pid}`, 100);
}
