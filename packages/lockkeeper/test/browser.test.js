/** `connect()` in a browser: pages of one origin, over WebSocket. */

import { readFileSync } from 'node:fs';
import { browser, website } from './chromium.js';
import { assert, test, until } from './harness.js';
import { connected, hold, machine } from './machine.js';

/** In a page: connects, and leaves the manager and what happens where the next call finds it. */
async function begin(url) {
  const { connect, LockManager } = await import('/dist/browser/connect.js');
  globalThis.log = [];
  globalThis.manager = await connect(url);
  addEventListener('pageshow', ({ persisted }) => log.push(persisted ? 'restored' : 'shown'));
  return manager instanceof LockManager;
}

/** In a page: asks for a lock, which it holds until told otherwise. */
function ask(name) {
  const held = new Promise((resolve) => (globalThis.release = resolve));
  manager
    .request(name, (lock) => {
      log.push('held');
      lock.signal.addEventListener('abort', () => log.push(lock.signal.reason.cause));
      return held;
    })
    .then(
      (value) => log.push(value),
      (error) => log.push(error.name),
    );
}

const log = (page) => page.evaluate(() => globalThis.log);
const logs = (page, entry) => until(async () => (await log(page))?.includes(entry));

/** A page that holds the lock "a" of a daemon that would wait long for it. */
async function holder() {
  const [origin, chromium] = [await website(), await browser()];
  const there = machine({ network: true });
  await there.start('--allow-origin', origin, '--ttl', '1h');
  const page = await chromium.open(`${origin}/`);
  await page.evaluate(begin, there.url);
  await page.evaluate(ask, 'a');
  await logs(page, 'held');
  return { origin, there, page };
}

test('two pages exclude each other, in order, and so do they and this process', async () => {
  const [origin, chromium] = [await website(), await browser()];
  const there = machine({ network: true });
  await there.start('--allow-origin', origin);
  const [one, two] = [await chromium.open(`${origin}/`), await chromium.open(`${origin}/`)];
  assert.deepEqual([await one.evaluate(begin, there.url), await two.evaluate(begin, there.url)], [true, true]);
  const locks = await connected(there.url);
  await one.evaluate(ask, 'a\uD83D');
  await logs(one, 'held');
  await two.evaluate(ask, 'a\uD83D');
  await until(async () => (await locks.query()).pending.length === 1);
  const here = locks.request('a\uD83D', () => 'here');
  await until(async () => (await locks.query()).pending.length === 2);
  assert.deepEqual(await log(two), []);
  const { held, pending } = await one.evaluate(() => manager.query());
  assert.equal(new Set([...held, ...pending].map(({ clientId }) => clientId)).size, 3);
  await one.evaluate(() => release('released'));
  await logs(one, 'released');
  await logs(two, 'held');
  await two.evaluate(() => release('released'));
  assert.equal(await here, 'here');
});

test('a page that is closed lets go of its locks at once', async () => {
  const { there, page } = await holder();
  await page.close();
  const locks = await connected(there.url);
  assert.equal(await locks.request('a', () => 'mine'), 'mine');
});

test('a page in the back/forward cache holds nothing, and comes back with a new session', async () => {
  const { origin, there, page } = await holder();
  const locks = await connected(there.url);
  const next = hold(locks, 'a');
  await page.go(`${origin}/elsewhere`);
  const { release } = await next;
  await page.back(`${origin}/`);
  await logs(page, 'restored');
  await logs(page, 'AbortError');
  assert.deepEqual((await log(page)).sort(), ['AbortError', 'held', 'lost', 'restored']);
  await page.evaluate(ask, 'a');
  await until(async () => (await locks.query()).pending.length === 1);
  release();
  await until(async () => (await log(page)).filter((entry) => entry === 'held').length === 2);
});

test('a page of another origin is not let in', async () => {
  const [origin, chromium] = [await website(), await browser()];
  const there = machine({ network: true });
  await there.start('--allow-origin', 'https://example.com');
  const page = await chromium.open(`${origin}/`);
  await assert.rejects(page.evaluate(begin, there.url), /NotAllowedError: the origin http:.* is not allowed: --allow-origin/);
});

test('the shapes before the draft are there, for a manager of connect(), without the addon', async () => {
  const { there, page } = await holder();
  const found = await page.evaluate(async () => {
    const { Lock, proposals } = await import('/dist/browser/proposals-of.js');
    const { requestExplicitLock, requestLock, requestScopedLock } = proposals(manager);
    const lock = await requestExplicitLock(['b', 'c']);
    const refused = [await requestLock('a', { ifAvailable: true }), await requestLock('b', { ifAvailable: true })];
    const released = lock.release();
    return [lock instanceof Lock, ...refused, released, await requestScopedLock('b', ({ scope }) => scope)];
  });
  assert.deepEqual(found, [true, null, null, true, ['b']]);
  const manager = await connected(there.url);
  await manager.forceRelease('a');
  await logs(page, 'AbortError');
});

test('two tabs with the page of the README: one edits, the other waits until it is closed', async () => {
  const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
  const [, html] = /```html\n(.*?)```/s.exec(readme);
  const there = machine({ network: true });
  const origin = await website(() => ({ body: `<!doctype html>${html.replace('ws://127.0.0.1:7420/', there.url)}` }));
  await there.start('--allow-origin', origin);
  const chromium = await browser();
  const title = (page) => page.evaluate(() => document.title);
  const one = await chromium.open(`${origin}/`);
  await until(async () => (await title(one)) === 'edits');
  const two = await chromium.open(`${origin}/`);
  const locks = await connected(there.url);
  await until(async () => (await locks.query()).pending.length === 1);
  assert.equal(await title(two), 'waits');
  await one.close();
  await until(async () => (await title(two)) === 'edits');
});

test('the tag of the README puts the locks of a daemon at navigator.locks', async () => {
  const readme = readFileSync(new URL('../README.md', import.meta.url), 'utf8');
  const [, tag] = /```text\n(<script .*?)```/s.exec(readme);
  const there = machine({ network: true });
  let fetched = 0;
  const origin = await website((path) => {
    if (path === '/lock-token') fetched += 1;
    return path === '/lock-token' ? { body: 'a token' } : { body: `<!doctype html>${tag.replace('wss://locks.example/', there.url)}` };
  });
  await there.start('--allow-origin', origin);
  const page = await (await browser()).open(`${origin}/`);
  const locks = await connected(there.url);
  assert.equal(await page.evaluate(() => navigator.locks.request('a', (lock) => lock.name)), 'a');
  await page.evaluate(() => new Promise((held) => void navigator.locks.request('b', () => (held(), new Promise(() => {})))));
  assert.equal((await locks.query()).held[0].name, 'b');
  assert.equal(fetched, 1);
});
