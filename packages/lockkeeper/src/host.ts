/**
 * What Node, Bun and Deno have and browsers have not. Their modules are asked for rather than imported, so that a
 * browser can load all that imports this.
 */

export const { process } = globalThis as { process?: NodeJS.Process };

const timers = process?.getBuiltinModule?.('node:timers');

/** Runs a function in a task of its own. */
export const task: <T>(run: (argument: T) => void, argument?: T) => void = timers?.setImmediate ?? taskByMessage();

/** Runs a function later, unless the process has nothing else to live for. Returns how to prevent it. */
export function later(run: () => void, milliseconds: number): () => void {
  if (timers === undefined) {
    const timer = setTimeout(run, milliseconds);
    return () => clearTimeout(timer);
  }
  const timer = timers.setTimeout(run, milliseconds).unref();
  return () => timers.clearTimeout(timer);
}

/** By how many milliseconds one of two clocks may lag without having stood still: browsers round them. */
const LAG = 200;

/**
 * A clock of two, in microseconds. One of them may stand still while the machine is suspended, the other may be set: it
 * goes by whichever advanced further since they last agreed, and never back.
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

let unreferencing = false;

/**
 * Has no process of Node's live for a WebSocket of this protocol alone. A WebSocket cannot be told so, but diagnostics
 * show its socket.
 */
export function unrefWebSockets(protocol: string): void {
  if (unreferencing) return;
  unreferencing = true;
  const diagnostics = process?.getBuiltinModule?.('node:diagnostics_channel');
  diagnostics?.subscribe('undici:client:sendHeaders', (message) => {
    const { headers, socket } = message as { headers: string; socket: { unref(): void } };
    if (headers.includes(`\r\nsec-websocket-protocol: ${protocol}\r\n`)) socket.unref();
  });
}

const leaving = new Set<(ends: boolean) => void>();

/**
 * Tells when a page is left, or the process `ends`, and when a page is shown, perhaps out of the back/forward cache.
 * Returns how to stop that.
 */
export function watchPage(left: (ends: boolean) => void, shown: () => void): () => void {
  if ('document' in globalThis) {
    const page = globalThis as unknown as EventTarget;
    const hidden = (): void => left(false);
    page.addEventListener('pagehide', hidden);
    page.addEventListener('pageshow', shown);
    return () => {
      page.removeEventListener('pagehide', hidden);
      page.removeEventListener('pageshow', shown);
    };
  }
  if (leaving.size === 0) process?.on('exit', leave);
  leaving.add(left);
  return () => {
    leaving.delete(left);
    if (leaving.size === 0) process?.off('exit', leave);
  };
}

function leave(): void {
  for (const left of leaving) left(true);
}

/** Keeps the event loop alive, at no cost, while somebody waits. */
export class Liveness {
  waiting = 0;
  private timer: ReturnType<NonNullable<typeof timers>['setInterval']> | undefined;

  waits(more: 1 | -1): void {
    this.waiting += more;
    if (this.waiting === 0) this.timer?.unref();
    else if (this.waiting === more) (this.timer ??= timers?.setInterval(() => {}, 2 ** 31 - 1))?.ref();
  }

  async during<T>(promise: Promise<T>): Promise<T> {
    this.waits(1);
    try {
      return await promise;
    } finally {
      this.waits(-1);
    }
  }

  /** Nobody need wait any more, or not for now. */
  end(): void {
    timers?.clearInterval(this.timer);
    this.timer = undefined;
  }
}

/** In a browser, a message is the quickest task, and the one that no timer's throttle holds up. */
function taskByMessage(): typeof task {
  const { port1, port2 } = new MessageChannel();
  const tasks = new Map<number, () => void>();
  let last = 0;
  (port1 as { onmessage?: (event: { data: number }) => void }).onmessage = ({ data }) => {
    const run = tasks.get(data)!;
    tasks.delete(data);
    run();
  };
  return (run, argument) => {
    tasks.set((last += 1), () => run(argument!));
    port2.postMessage(last);
  };
}
