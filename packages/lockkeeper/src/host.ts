/**
 * Modules of Node, Bun and Deno that browsers lack. They are looked up rather than imported, so
 * that a browser can load the modules that import this one.
 */

import { observer } from './observer.js';

export const { process } = globalThis as { process?: NodeJS.Process };

/** A module of the runtime. Only for what browsers do not load. */
export const builtin = process?.getBuiltinModule as NodeJS.Process['getBuiltinModule'];

const timers = process?.getBuiltinModule?.('node:timers');

/** Runs a function in a new task. */
export const task: <T>(run: (argument: T) => void, argument?: T) => void = timers?.setImmediate ?? taskByMessage();

/**
 * Runs a function later, unless the process has nothing else to live for. Returns how to prevent
 * it.
 */
export function later(run: () => void, milliseconds: number): () => void {
  if (timers === undefined) {
    const timer = setTimeout(run, milliseconds);
    return () => clearTimeout(timer);
  }
  const timer = timers.setTimeout(run, milliseconds).unref();
  return () => timers.clearTimeout(timer);
}

/**
 * By how many milliseconds one of two clocks may lag without having stood still: browsers round
 * them.
 */
const LAG = 200;

/**
 * A clock of two, in microseconds. One of them may stand still while the machine is suspended, the
 * other may be set: it goes by whichever advanced further since they last agreed, and never back.
 */
export function clockOf(...clocks: (() => number)[]): () => number {
  const offsets = clocks.map((read) => -read());
  let last = 0;
  return () => {
    const readings = clocks.map((read) => read());
    for (const [i, reading] of readings.entries()) last = Math.max(last, reading + offsets[i]!);
    for (const [i, reading] of readings.entries()) if (last - reading - offsets[i]! > LAG) offsets[i] = last - reading;
    return Math.floor(last * 1000);
  };
}

export const now = clockOf(
  () => performance.now(),
  () => Date.now(),
);

/**
 * Tells when a page is left, or the process `ends`; when a page is shown, perhaps out of the
 * back/forward cache; and of what its policy has blocked, in workers too. Returns how to stop that.
 */
export function watchPage(
  left: (ends: boolean) => void,
  shown: () => void,
  blocked: (event: Event) => void,
): () => void {
  const page = globalThis as Partial<EventTarget>;
  const listeners = Object.entries({ pagehide: () => left(false), pageshow: shown, securitypolicyviolation: blocked });
  for (const listener of listeners) page.addEventListener?.(...listener);
  const unwatch = observer.watchExit && !('document' in globalThis) ? observer.watchExit(() => left(true)) : undefined;
  return () => {
    for (const listener of listeners) page.removeEventListener?.(...listener);
    unwatch?.();
  };
}

/** In a browser, a message is the quickest task, and the one that no timer's throttle holds up. */
function taskByMessage(): typeof task {
  const { port1, port2 } = new MessageChannel();
  const tasks: (() => void)[] = [];
  // Messages come in their order.
  (port1 as unknown as { onmessage?: () => void }).onmessage = () => tasks.shift()!();
  return (run, argument) => {
    tasks.push(() => run(argument!));
    port2.postMessage(0);
  };
}
