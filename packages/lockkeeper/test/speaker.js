/**
 * A client that speaks the protocol's messages one by one: with any name, label and owner, and as
 * many requests as a test likes.
 */

import { cleanUp, deferred } from './harness.js';
import { pack, unpackAll } from '../dist/pack.js';
import { toName } from '../dist/wire.js';

const { WebSocket } = globalThis.WebSocket ? globalThis : await import('ws');
const [WELCOME, SYNCED, GRANTED, QUEUED, RELEASED, BROKEN, REFUSED, GOODBYE] = [0, 2, 3, 4, 6, 7, 9, 15];

/** Opens a session that lasts until the test is over. */
export async function speaker(url, { owner = null, bucket = 'default', token = null } = {}) {
  const socket = new WebSocket(url, 'lockkeeper.v2');
  socket.binaryType = 'arraybuffer';
  const [opened, ended] = [deferred(), deferred()];
  const answers = new Map();
  const broken = new Map();
  let [rid, id] = [0, ''];
  const send = (message) => socket.send(pack(message));
  socket.onopen = () => send([0, 2, 0, 1, bucket, null, 0, token, 600_000, owner]);
  socket.onerror = () => opened.reject(new Error('no connection'));
  socket.onclose = () => ended.resolve();
  socket.onmessage = ({ data }) => unpackAll(new Uint8Array(data)).forEach(onMessage);
  const onMessage = ([kind, ...rest]) => {
    if (kind === WELCOME) id = rest[3];
    if (kind === SYNCED) opened.resolve();
    if (kind === GOODBYE) (opened.reject(new Error(rest[1])), ended.resolve(rest[0]));
    if ([GRANTED, QUEUED, RELEASED, REFUSED].includes(kind)) answers.get(rest[0])?.(kind);
    if (kind === BROKEN) broken.get(rest[1])?.(rest[3]);
  };
  await opened.promise;
  cleanUp(() => socket.close());
  /** The first answer to a request: whether it is held. `broken` tells who took it. */
  const request = async (names, { info = null, shared = false, within = null } = {}) => {
    const number = (rid += 1);
    const bytes = (name) => (typeof name === 'string' ? toName(name) : name);
    const answer = new Promise((resolve) => answers.set(number, resolve));
    const lost = new Promise((resolve) => broken.set(number, resolve));
    const scope = [names].flat().map((name) => [bytes(name), shared]);
    send([1, 0, number, scope, 0, within === null ? null : [null, within], info]);
    return { rid: number, held: (await answer) === GRANTED, broken: lost };
  };
  const release = (number) => {
    const answer = new Promise((resolve) => answers.set(number, resolve));
    send([2, 0, number, 0]);
    return answer;
  };
  return { id, request, release, ended: ended.promise, close: () => socket.close() };
}
