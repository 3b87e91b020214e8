/**
 * Decides which tokens may be sent without TLS. For runtimes only: a page that was loaded over TLS
 * cannot open a connection without TLS, and a page that was loaded without it received its token in
 * clear text already.
 */

import { process } from './host.js';
import { observer } from './observer.js';

const LOOPBACK = /^(localhost|127(\.\d+){3}|\[::1\])$/;

/** Has a token sent in clear to this machine only, unless that is meant. */
export function keepTokensSecret(): void {
  observer.checkSecrecy = (url, { token, insecure }) => {
    if (token === undefined || insecure || !/^ws:/i.test(url)) return;
    const { hostname } = new URL(url);
    if (LOOPBACK.test(hostname) || isInsecureMeant()) return;
    throw new DOMException(
      `the token would be sent unencrypted to ${hostname}: use wss:, or { insecure: true } to allow that`,
      'SecurityError',
    );
  };
}

/** As for the command. If the environment may not be read, it is not set. */
function isInsecureMeant(): boolean {
  try {
    return /^(1|true)$/.test(process?.env['LOCKKEEPER_INSECURE'] ?? '');
  } catch {
    return false;
  }
}
