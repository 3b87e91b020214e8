/**
 * The protocol's codec: docs/protocol-vectors.txt in both directions, names, and bytes that are no
 * message.
 */

import { readFileSync } from 'node:fs';
import { pack, packAll, Malformed, unpack } from '../dist/pack.js';
import { decode, decodeAll, encode, fromName, toName } from '../dist/wire.js';
import { assert, test } from './harness.js';

/** Sent to subscribers alone, of which this client is none. */
const CHANGES = 16;

/** Its last element, whether by force, is for people, and may be missing. */
const BROKEN = 7;
const READ_OF_BROKEN = 5;

const file = new URL('../../../docs/protocol-vectors.txt', import.meta.url);
const vectors = readFileSync(file, 'utf8')
  .split('\n')
  .filter((line) => line !== '' && !line.startsWith('#'))
  .map((line) => {
    const [who, what, ...rest] = line.split(' | ');
    const hex = rest.pop();
    return { who, what, elements: parse(rest.join(' | ')), bytes: Uint8Array.from(Buffer.from(hex, 'hex')) };
  });

/**
 * Elements as the vectors write them: JSON, with nil, b"…" and b"n" * 256, and numbers beyond those
 * of JSON.
 */
function parse(text) {
  let at = 0;
  const take = (pattern) => {
    pattern.lastIndex = at;
    const found = pattern.exec(text);
    if (found) at = pattern.lastIndex;
    return found;
  };
  const value = () => {
    let found;
    if (take(/\[/y)) {
      const values = [];
      while (!take(/\]/y)) {
        values.push(value());
        take(/, /y);
      }
      return values;
    }
    if ((found = take(/b"((?:[^"\\]|\\.)*)"(?: \* (\d+))?/y))) {
      const bytes = unescape(found[1]);
      return Uint8Array.from(Array.from({ length: Number(found[2] ?? 1) }, () => bytes).flat());
    }
    if ((found = take(/"(?:[^"\\]|\\.)*"/y))) return JSON.parse(found[0]);
    if ((found = take(/nil|true|false/y))) return { nil: null, true: true, false: false }[found[0]];
    if ((found = take(/\d+/y))) return Number.isSafeInteger(Number(found[0])) ? Number(found[0]) : BigInt(found[0]);
    throw new Error(`what is ${text.slice(at)}?`);
  };
  const parsed = value();
  assert.equal(at, text.length, `all of ${text} is understood`);
  return parsed;
}

function unescape(text) {
  const named = { t: 9, n: 10, r: 13, '\\': 92, '"': 34, 0: 0 };
  const one = (part) => {
    if (part[1] === 'x') return Number.parseInt(part.slice(2), 16);
    return part[1] ? named[part[1]] : part.charCodeAt(0);
  };
  return (text.match(/\\x..|\\.|[^\\]/g) ?? []).map(one);
}

test('every vector: these elements are these bytes', () => {
  assert.ok(vectors.length > 50, `${vectors.length} vectors`);
  for (const { what, elements, bytes } of vectors) assert.deepEqual(pack(elements), bytes, what);
});

test('every vector: these bytes are these elements', () => {
  for (const { who, what, elements, bytes } of vectors) {
    const known = who === 'server' && elements[0] !== CHANGES;
    assert.deepEqual(known ? decode(bytes) : unpack(bytes), elements, what);
  }
  assert.deepEqual(new Set(vectors.map(({ who }) => who)), new Set(['client', 'server']));
});

const server = vectors.filter(({ who, elements }) => who === 'server' && elements[0] !== CHANGES);

test('a message that is cut off anywhere is malformed', () => {
  for (const { what, bytes } of server) {
    for (let length = 0; length < bytes.length; length++) {
      assert.throws(() => decode(bytes.subarray(0, length)), Malformed, `${what}, ${length} bytes of it`);
    }
  }
});

test('a message with something after it is malformed', () => {
  for (const { what, bytes } of server) assert.throws(() => decode(Uint8Array.of(...bytes, 0xc0)), Malformed, what);
});

test('a frame has messages one after the other', () => {
  const all = server.map(({ elements }) => elements);
  const [frame] = packAll(all, Infinity);
  assert.deepEqual(decodeAll(frame), all);
  assert.deepEqual(packAll(all, 1).map((bytes) => decode(bytes)), all);
  assert.throws(() => decodeAll(frame.subarray(0, -1)), Malformed);
  assert.throws(() => decodeAll(Uint8Array.of(...frame, 0xc0)), Malformed);
});

test('elements after those that are known are ignored', () => {
  const more = [7, 2n ** 60n, 'text', Uint8Array.of(1), true, null, [], [[7]]];
  for (const { what, elements } of server) {
    assert.deepEqual(decode(pack([...elements, ...more])).slice(0, elements.length), elements, what);
  }
});

test('an element of another type, or one too few, is malformed', () => {
  const others = [7, 'text', Uint8Array.of(1), true, null, [], [[]]];
  for (const { what, elements: all } of server) {
    const elements = all[0] === BROKEN ? all.slice(0, READ_OF_BROKEN) : all;
    assert.throws(() => decode(pack(elements.slice(0, -1))), Malformed, what);
    for (let i = 1; i < elements.length; i++) {
      const refused = others.filter((other) => {
        try {
          decode(pack(elements.with(i, other)));
          return false;
        } catch (error) {
          assert.ok(error instanceof Malformed, `${what}: ${String(error)}`);
          return true;
        }
      });
      // Its own type, and of a list the empty one, are all that may stand there; 7 is no cause.
      assert.ok(refused.length >= others.length - 2, `${what}, element ${i}: ${refused.length} refused`);
    }
  }
});

test('messages that there are not are malformed', () => {
  for (const none of [[], [16], [99], [2n ** 60n], ['0'], ['2'], [null], 9, 'x', null, true, [[2]]]) {
    assert.throws(() => decode(pack(none)), Malformed, String(none));
  }
  assert.throws(() => decode(pack([7, 1, 1, 2, null])), Malformed, 'there are two causes');
  const welcome = [0, 2, 0, 1, 'id', new Uint8Array(15), 1, false, 0];
  assert.throws(() => decode(pack(welcome)), Malformed, 'a secret has 16 bytes');
  assert.throws(() => decode(pack([1, [[1, 1, null, null]]])), Malformed, 'inner arrays are as long as they are');
});

test('lengths beyond the message, depths beyond all messages and other types are malformed, at no cost', () => {
  const hostile = {
    'bytes of 4 GiB': [0xc6, 0xff, 0xff, 0xff, 0xff],
    'text of 4 GiB': [0xdb, 0xff, 0xff, 0xff, 0xff],
    'an array of 4 G elements': [0xdd, 0xff, 0xff, 0xff, 0xff, 0xc0],
    'arrays without end': new Array(1_000_000).fill(0x91),
    'a map': [0x81, 0xc0, 0xc0],
    'an extension': [0xd4, 0x01, 0x00],
    'a float': [0xcb, 0, 0, 0, 0, 0, 0, 0, 0],
    'a negative number': [0xff],
    'what is never used': [0xc1],
    'text that is not UTF-8': [0xa1, 0xff],
    'text that is a lone surrogate': [0xa3, 0xed, 0xa0, 0x80],
  };
  for (const [what, bytes] of Object.entries(hostile)) {
    assert.throws(() => unpack(Uint8Array.from(bytes)), Malformed, what);
  }
});

test('random bytes are values or malformed, and nothing else', () => {
  let seed = 1;
  const random = () => (seed = (seed * 48271) % 0x7fffffff);
  let values = 0;
  for (let i = 0; i < 20_000; i++) {
    const { bytes } = server[random() % server.length];
    const changed = bytes.slice(0, 200);
    for (let n = 0; n < 1 + (random() % 3); n++) changed[random() % changed.length] = random() & 0xff;
    try {
      decode(changed);
      values += 1;
    } catch (error) {
      assert.ok(error instanceof Malformed, String(error?.stack));
    }
  }
  assert.ok(values > 100, 'some of them are messages still');
});

test('values may be longer than they need be', () => {
  const long = [0xdc, 0, 2, 0xcf, 0, 0, 0, 0, 0, 0, 0, 6, 0xce, 0, 0, 0, 7];
  assert.deepEqual(decode(Uint8Array.from(long)), [6, 7]);
  assert.deepEqual(unpack(Uint8Array.of(0xc6, 0, 0, 0, 1, 0x61)), Uint8Array.of(0x61));
  assert.equal(unpack(Uint8Array.of(0xdb, 0, 0, 0, 1, 0x61)), 'a');
});

test('numbers are BigInts where they must be, and only there', () => {
  for (const number of [0, 127, 128, 255, 256, 65535, 65536, 2 ** 32 - 1, 2 ** 32, Number.MAX_SAFE_INTEGER]) {
    assert.strictEqual(unpack(pack(number)), number);
    assert.strictEqual(unpack(pack(BigInt(number))), number);
  }
  for (const big of [2n ** 53n, 2n ** 53n + 1n, 2n ** 64n - 1n]) assert.strictEqual(unpack(pack(big)), big);
});

test('a long message is packed whole', () => {
  const name = new Uint8Array(65_536).fill(0x6e);
  const scope = Array.from({ length: 20 }, () => [name, false]);
  const message = [1, 1, 1, scope, 0, null, 'ü'.repeat(70_000)];
  assert.deepEqual(unpack(encode(message)), message);
});

const surrogates = ['\uD800', '\uD801', '\uDBFF', '\uDC00', '\uDC01', '\uDFFF', 'a', '\uFFFD', '\uD7FF', '\uE000'];

test('names: every string has bytes of its own, and comes back', () => {
  const seen = new Set();
  for (let unit = 0; unit <= 0xffff; unit++) {
    const name = String.fromCharCode(unit);
    const bytes = toName(name);
    assert.ok(fromName(bytes) === name, `U+${unit.toString(16)}`);
    seen.add(String(bytes));
  }
  for (const a of surrogates) {
    for (const b of surrogates) {
      for (const c of surrogates) {
        const name = a + b + c;
        assert.ok(fromName(toName(name)) === name, JSON.stringify(name));
        seen.add(String(toName(name)));
      }
    }
  }
  assert.equal(seen.size, 0x10000 + surrogates.length ** 3);
});

test('names: text is UTF-8, a lone surrogate three bytes, a pair one character', () => {
  const hex = (name) => Buffer.from(toName(name)).toString('hex');
  assert.equal(hex(''), '');
  assert.equal(hex('ü€𝄞'), 'c3bce282acf09d849e');
  assert.equal(hex('\uD83D'), 'eda0bd');
  assert.equal(hex('a\uDE00\uD83Db'), '61edb880eda0bd62');
  assert.equal(hex('\uD83D\uDE00'), 'f09f9880');
  assert.equal(hex('\uFEFFx'), 'efbbbf78');
});

test('names: bytes that no string spells are shown as replacement characters', () => {
  assert.equal(fromName(Uint8Array.of(0x61, 0xff, 0xed, 0xa0, 0x62)), 'a\uFFFD\uFFFD\uFFFDb');
  assert.equal(fromName(Uint8Array.of(0xed)), '\uFFFD');
});
