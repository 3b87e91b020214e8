/**
 * Parts of the dashboard that need no browser: its messages, its model, the layout of its graph,
 * and how it writes names.
 */

import { build } from 'esbuild';
import { readFileSync } from 'node:fs';
import { fileURLToPath } from 'node:url';
import { pack } from '../dist/pack.js';
import { toName } from '../dist/wire.js';
import { assert, test } from './harness.js';

const source = fileURLToPath(new URL('../../dashboard/src/', import.meta.url));
const contents = ['messages', 'model', 'layout', 'text'].map((name) => `export * from './${name}.ts';`).join('\n');
const stdin = { contents, resolveDir: source, loader: 'ts' };
const { outputFiles } = await build({ stdin, bundle: true, format: 'esm', target: 'es2022', platform: 'neutral', write: false });
const { age, decodeAll, layers, Model, nameText, visible, who } = await import(`data:text/javascript,${encodeURIComponent(outputFiles[0].text)}`);

const decode = (bytes) => {
  const [message, ...more] = decodeAll(bytes);
  assert.ok(message && more.length === 0, 'one message');
  return message;
};

test('every message that a server sends is understood; one that is cut off, or has other elements, is malformed', () => {
  const vectors = readFileSync(new URL('../../../docs/protocol-vectors.txt', import.meta.url), 'utf8')
    .split('\n')
    .filter((line) => line.startsWith('server | '))
    .map((line) => Uint8Array.from(Buffer.from(line.slice(line.lastIndexOf(' ') + 1), 'hex')));
  const changes = vectors.map((bytes) => decode(bytes)).filter(([kind]) => kind === 16);
  assert.equal(changes.length, 2);
  for (const bytes of vectors) {
    for (let length = 0; length < bytes.length; length++) assert.throws(() => decode(bytes.subarray(0, length)));
  }
  const [, whole] = changes;
  for (let i = 1; i < whole.length; i++) assert.throws(() => decode(pack(whole.with(i, 'text'))));
  assert.throws(() => decode(pack([16, 1, [], ['x'], 0, false])));
  assert.deepEqual(decodeAll(Uint8Array.of(...pack(whole), ...pack([2]))), [whole, [2]], 'a frame has several');
  assert.deepEqual(decode(pack([16, 1, [], [], 0, false, 'later'])).slice(0, 6), [16, 1, [], [], 0, false]);
});

const entry = (name, arrival, token, nestedIn = null) => [toName(name), false, `c${arrival}`, arrival, token, null, 0, nestedIn, false, null];

test('the model is what the changes add up to', () => {
  let seed = 7;
  const pick = (below) => ((seed = (seed * 48271) % 0x7fffffff), seed % below);
  const model = new Model();
  model.replace([], 0, 0);
  const truth = new Map();
  for (let step = 0; step < 3000; step++) {
    const arrival = pick(3) === 0 && truth.size > 0 ? [...truth.keys()][pick(truth.size)] : step;
    if (pick(3) === 0) {
      truth.delete(arrival);
      model.change([], [arrival], step, 0);
    } else {
      const names = [...new Set(Array.from({ length: 1 + pick(3) }, () => `n${pick(12)}`))];
      const token = pick(2) === 0 ? step : null;
      const nested = pick(4) === 0 ? 0 : null;
      truth.set(arrival, { names, token, nested });
      model.change(names.map((name) => entry(name, arrival, token, nested)), [], step, 0);
    }
  }
  const all = [...truth.values()];
  assert.deepEqual([model.requests.size, model.held, model.waiting], [all.length, all.filter(({ token }) => token !== null).length, all.filter(({ token }) => token === null).length]);
  assert.equal(model.nested, all.filter(({ token, nested }) => token === null && nested !== null).length);
  assert.deepEqual(new Set([...model.locks.values()].map(({ name }) => name)), new Set(all.flatMap(({ names }) => names)));
  for (const { name, holders, waiters } of model.locks.values()) {
    const of = (held) => [...truth].filter(([, request]) => request.names.includes(name) && (request.token !== null) === held).map(([arrival]) => arrival).sort((a, b) => a - b);
    assert.deepEqual([holders, waiters].map((queue) => queue.map(({ arrival }) => arrival)), [of(true), of(false)]);
  }
});

test('two names that no string spells are two locks', () => {
  const model = new Model();
  const of = (...bytes) => [Uint8Array.of(...bytes), ...entry('', bytes[0], 1).slice(1)];
  model.replace([of(0xff), of(0xfe)], 0, 0);
  assert.equal(model.locks.size, 2);
});

test('the graph: edges go one way but in a cycle, no two nodes share a place, and a long chain is no problem', () => {
  const nodes = (count) => Array.from({ length: count }, (_, i) => ({ id: String(i) }));
  const chain = Array.from({ length: 20_000 }, (_, i) => ({ from: String(i), to: String(i + 1) }));
  const long = layers(nodes(20_001), chain);
  assert.deepEqual([long.get('0').column, long.get('20000').column], [20_000, 0]);
  const cycle = layers(nodes(4), [0, 1, 2, 3].map((i) => ({ from: String(i), to: String((i + 1) % 4) })));
  assert.deepEqual([...cycle.values()].map(({ column }) => column).sort(), [0, 1, 2, 3]);
  const star = layers(nodes(9), Array.from({ length: 8 }, (_, i) => ({ from: String(i + 1), to: '0' })));
  assert.equal(new Set([...star.values()].map(({ column, row }) => `${column} ${row}`)).size, 9);
});

test('names, times and people are written so that nothing hides', () => {
  assert.equal(visible('a\u202Eb\u0000\u200D\uFEFF'), 'a\\u{202e}b\\u{0}\\u{200d}\\u{feff}');
  assert.equal(visible('müller/水/👍'), 'müller/水/👍');
  assert.deepEqual(['', ' a', 'a  b', 'a b'].map((name) => nameText(name)), ['""', '" a"', '"a  b"', 'a b']);
  assert.deepEqual([0, 1599, 59_999, 192_000, 18_120_000, 273_600_000].map(age), ['0.0s', '1.5s', '59s', '3m12s', '5h02m', '3d04h']);
  assert.equal(who('pid 71 ann@build7 lockkeeper[71]', 'c'), 'ann@build7, pid 71');
  assert.equal(who('10.0.0.1 ann@build7 my job[71]', 'c'), 'ann@build7, pid 71');
  assert.equal(who(null, 'c0'), 'client c0');
  assert.equal(who('pid 71 ann@build7 make[71] (unverifiable)', 'c'), 'ann@build7, pid 71 (unverifiable)');
});
