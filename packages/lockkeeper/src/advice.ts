/**
 * Warnings about options that `request()` ignores, as the draft requires, and its caller may not
 * expect: each once, in development. User code cannot observe the checks: no getter runs, and
 * proxies are skipped.
 */

import { builtin, process } from './host.js';
import { observer } from './observer.js';

const OPTIONS = ['mode', 'ifAvailable', 'steal', 'signal'];
const ACQUIRES = ['timeout', 'info', 'within', 'deadlock'];

const given = new Set<string>();

/** Has advice given from now on, unless this is production. */
export function giveAdvice(): void {
  if (builtin === undefined || isProduction()) return;
  const { isProxy } = builtin('node:util').types;
  observer.advise = (name, options) => {
    if (Array.isArray(name) && name.length !== 1 && !isProxy(name)) {
      warn('names', 'request(name, …) takes one name, and converted the array to one string. acquire(names) takes several');
    }
    if (typeof options === 'function' && !isProxy(options)) {
      warn('function', 'request(name, options, callback) was given a function as its options: it is never called. The last argument is');
    }
    if (typeof options !== 'object' || options === null || isProxy(options)) return;
    for (const key in options) {
      if (OPTIONS.includes(key)) continue;
      const instead = ACQUIRES.includes(key)
        ? `acquire(name, { ${key} }) supports it`
        : `its options are ${OPTIONS.join(', ')}`;
      warn(key, `request(name, options, callback) ignores the option ${JSON.stringify(key)}, as the specification requires: ${instead}`);
    }
  };
}

/** If the environment may not be read, there are no warnings. */
function isProduction(): boolean {
  try {
    return process?.env['NODE_ENV'] === 'production';
  } catch {
    return true;
  }
}

function warn(about: string, message: string): void {
  if (given.has(about) || given.size > 100) return;
  given.add(about);
  process!.emitWarning(message, { type: 'LockkeeperWarning', code: 'LOCKKEEPER_IGNORED' });
}
