/**
 * Resource names: §2.1 and §3.2.1 step 5. A name is a JavaScript string: any code units, compared
 * as such.
 *
 * WPT: resource-names (all of it).
 */

import { assert, test } from './harness.js';
import { available, hold, locks, modes, rejectsDOM, unique } from './helpers.js';

const never = () => assert.fail('the callback ran');

/** Names that are easily taken for one another, or cut, or changed on the way. */
const peculiar = {
  'the empty name': '',
  'a space': ' ',
  'an embedded NUL': 'abc\0def',
  'a closing NUL': 'abc\0',
  'what comes before a NUL': 'abc',
  'a lone high surrogate': '\uD800',
  'another lone high surrogate': '\uD801',
  'a lone low surrogate': '\uDC00',
  'a swapped pair': '\uDC00\uD800',
  'a pair': '\uD800\uDC00',
  'a high surrogate before a pair': '\uD800\uD800\uDC00',
  'a surrogate within text': 'a\uDFFFb',
  'the replacement character': '\uFFFD',
  'a non-character': '\uFFFF',
  'a byte order mark': '\uFEFF',
  composed: '\u00E9',
  decomposed: 'e\u0301',
  'upper case': 'A',
  'lower case': 'a',
  'Latin-1': 'ÿ',
  'beyond Latin-1': 'Ā',
  'the name of the prototype': '__proto__',
  'a line': 'a\nb\r\n',
};

for (const [what, name] of Object.entries(peculiar)) {
  test(`§2.1: a name may be ${what}: lock.name, query() and inspect() give it back`, async () => {
    const { lock } = await hold(name);
    assert.equal(lock.name, name);
    const { held } = await locks.query();
    assert.deepEqual(held.map((info) => info.name), [name]);
    const [info] = (await locks.inspect()).held;
    assert.deepEqual(info.scope, [{ name, mode: 'exclusive' }]);
    const acquired = locks.acquire([name, 'other'], { ifAvailable: true });
    assert.equal(await acquired, null, 'acquire() means the same name by it');
  });
}

test('§2.1: all of these are distinct names', async () => {
  const names = Object.values(peculiar);
  assert.equal(new Set(names).size, names.length);
  for (const name of names) await hold(name);
  const { held, pending } = await locks.query();
  assert.deepEqual(held.map(({ name }) => name), names);
  assert.deepEqual(pending, []);
  for (const name of names) assert.equal(await available(name), false);
});

test('§2.1: a name that is not valid UTF-16 does not block what it would be mangled to', async () => {
  await locks.request('\uD800', async () => {
    assert.equal(await locks.request('\uFFFD', (lock) => lock.name), '\uFFFD');
  });
});

test('§2.1: lone surrogates survive in the scope of an acquired lock', async () => {
  const lock = await locks.acquire(['\uDC00', '\uD800', '\uFFFD']);
  assert.deepEqual(lock.scope, ['\uD800', '\uDC00', '\uFFFD']);
  const { held } = await locks.query();
  assert.deepEqual(held.map(({ name }) => name).sort(), ['\uD800', '\uDC00', '\uFFFD']);
  await lock.release();
});

test('§3.2.1 step 5: a name that starts with U+002D is refused with NotSupportedError', async () => {
  for (const name of ['-', '-foo', '--', '-\uD800', { toString: () => '-made' }]) {
    await rejectsDOM(locks.request(name, never), 'NotSupportedError');
    await rejectsDOM(locks.request(name, { mode: 'shared' }, never), 'NotSupportedError');
  }
});

test('§3.2.1 step 5: a U+002D elsewhere, or a character that looks like it, is allowed', async () => {
  for (const name of ['x-anything', 'trailing-', ' -', '\u2010', '\u2212', '\uFF0D', '\0-']) {
    assert.equal(await locks.request(name, (lock) => lock.name), name);
  }
});

// A short name is read into a buffer on the stack, and one of ASCII is not converted: lengths about
// that.
for (const length of [1, 23, 24, 25, 126, 127, 128, 129, 255, 256, 4096, 20_000]) {
  test(`§2.1: names of ${length} code units keep all of them`, async () => {
    for (const unit of ['a', 'ÿ', '漢', '\uD83D']) {
      const name = unit.repeat(length);
      const { lock, release, released } = await hold(name);
      assert.equal(lock.name, name);
      const { held } = await locks.query();
      assert.ok(held.length === 1 && held[0].name === name, `${unit} × ${length} in query()`);
      assert.equal((await locks.inspect()).held[0].scope[0].name, name);
      assert.equal(await available(`${unit.repeat(length - 1)}b`), true, 'the last unit counts');
      assert.equal(await available(name), false);
      release();
      await released;
    }
  });
}

test('§2.1: a name of more than 65,536 bytes is refused with QuotaExceededError', async () => {
  const longest = 'a'.repeat(65_536);
  assert.equal(await locks.request(longest, (lock) => lock.name === longest), true);
  await rejectsDOM(locks.request(`${longest}a`, never), 'QuotaExceededError');
  await rejectsDOM(locks.acquire(`${longest}a`), 'QuotaExceededError');
  await rejectsDOM(locks.acquire(['b', `${longest}a`]), 'QuotaExceededError');
  assert.deepEqual(await locks.query(), { held: [], pending: [] });
});

test('§2.1: a refused name leaves the manager in order', async () => {
  const name = unique();
  await rejectsDOM(locks.request('a'.repeat(100_000), never), 'QuotaExceededError');
  const { lock } = await hold(name);
  assert.equal(lock.name, name);
  assert.deepEqual(await modes(name), [['exclusive'], []]);
});
