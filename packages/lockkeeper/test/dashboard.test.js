/**
 * The dashboard, in a real browser: what it shows, live; what it breaks, and only when that is
 * confirmed; hostile names.
 */

import { createHmac } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { browser } from './chromium.js';
import { assert, test, until } from './harness.js';
import { etcd, freePort, machine, network } from './machine.js';
import { speaker } from './speaker.js';

/**
 * A daemon, a browser, and the dashboard in it, once that is `state`. `fleet` stands in for what a
 * store would tell; `store` is the address of one. With `cuttable`, the page has a `net` of its
 * own.
 */
async function setting({ flags = [], state = 'live', fleet, cuttable = false, store } = {}) {
  const port = store ? await freePort() : 0;
  const there = machine({ network: true, share: !store, port });
  if (store) flags = ['--store', `etcd://${store}/test`, '--advertise', `ws://127.0.0.1:${port}`];
  const daemon = await there.start(...flags);
  const net = cuttable ? await network(there.url) : undefined;
  const address = (net ?? there).url.replace('ws:', 'http:');
  const chromium = await browser();
  const page = await chromium.open('about:blank');
  const seen = { urls: [], complaints: [] };
  chromium.on((method, params) => {
    if (method === 'Network.requestWillBeSent') seen.urls.push(params.request.url);
    if (method === 'Network.webSocketCreated') seen.urls.push(params.url);
    if (method === 'Log.entryAdded') seen.complaints.push(params.entry.text);
    if (method === 'Runtime.exceptionThrown') seen.complaints.push(params.exceptionDetails.exception?.description);
  });
  await page.command('Emulation.setDeviceMetricsOverride', { width: 1280, height: 800, deviceScaleFactor: 1, mobile: false });
  for (const domain of ['Network', 'Log', 'Runtime']) await page.command(`${domain}.enable`);
  if (fleet !== undefined) {
    chromium.on((method, { requestId }, sessionId) => {
      if (method !== 'Fetch.requestPaused') return;
      const body = Buffer.from(JSON.stringify(fleet)).toString('base64');
      void chromium.send('Fetch.fulfillRequest', { requestId, responseCode: 200, body }, sessionId);
    });
    await page.command('Fetch.enable', { patterns: [{ urlPattern: '*/fleet' }] });
  }
  await page.go(address);
  const is = (state) => until(() => page.evaluate((state) => document.body?.dataset.status === state, state).catch(() => false));
  await is(state);
  const client = (owner, more = {}) => speaker(there.url, { owner, ...more });
  return { there, daemon, address, net, page, seen, client, is };
}

/** Waits until an expression, a function in the page, gives something. */
const shows = (page, check, ...given) => until(() => page.evaluate(check, ...given));

/** The rows of the list, each as its cells. */
const rows = (page) =>
  page.evaluate(() => [...document.querySelectorAll('#locks .row')].map((row) => [...row.children].map(({ textContent }) => textContent)));
const hasRow = (page, name) => until(async () => (await rows(page)).find(([shown]) => shown === name));
const noRow = (page, name) => until(async () => !(await rows(page)).some(([shown]) => shown === name));

/** Selects a lock. */
async function choose(page, name) {
  await hasRow(page, name);
  await page.evaluate((name) => {
    const row = [...document.querySelectorAll('#locks .row')].find(({ firstElementChild }) => firstElementChild.textContent === name);
    row.click();
  }, name);
  await shows(page, (name) => document.querySelector('.detail h2').textContent === name, name);
}

const queue = (page) =>
  page.evaluate(() => [...document.querySelectorAll('#queue .row')].map((row) => [...row.children].slice(0, 2).map(({ textContent }) => textContent)));
const click = (page, selector) => page.evaluate((selector) => document.querySelector(selector).click(), selector);
const press = async (page, key, text) => {
  await page.command('Input.dispatchKeyEvent', { type: text ? 'keyDown' : 'rawKeyDown', key, text, windowsVirtualKeyCode: KEYS[key] ?? key.charCodeAt(0) });
  await page.command('Input.dispatchKeyEvent', { type: 'keyUp', key });
};
const KEYS = { ArrowLeft: 37, ArrowRight: 39, ArrowDown: 40, ArrowUp: 38, End: 35, Escape: 27, Enter: 13 };

test('what is held, by whom, under which label, and who waits in order, as it changes', async () => {
  const { page, client } = await setting();
  await shows(page, () => document.querySelector('#shown').textContent.startsWith('Nobody holds'));
  const ann = await client('ann@build7 make[4711]');
  const held = await ann.request('nightly', { info: 'the nightly build' });
  const [, person, label, since, waiting] = await hasRow(page, 'nightly');
  assert.deepEqual([person, label, waiting], ['ann@build7, pid 4711', 'the nightly build', '']);
  assert.match(since, /^\d+\.\ds$/);
  const [bob, eve] = [await client('bob@db-2 backup[812]'), await client('eve@web-1')];
  await bob.request('nightly', { info: 'backup' });
  const last = await eve.request('nightly', { shared: true });
  await choose(page, 'nightly');
  await until(async () => (await queue(page)).length === 3);
  assert.deepEqual((await queue(page)).map(([place]) => place), ['holds', '1.', '2.']);
  assert.match((await queue(page))[1][1], /^bob@db-2, pid 812.*backup/);
  assert.match((await queue(page))[2][1], /^eve@web-1.*shared/);
  await ann.release(held.rid);
  await until(async () => (await queue(page))[0]?.[1].startsWith('bob@db-2'));
  bob.close();
  await eve.release(last.rid);
  assert.equal(last.held, false);
});

test('how many more hold a lock is shown, however long the name of the first is', async () => {
  const { page, client } = await setting();
  for (const user of ['ann'.repeat(20), 'bob']) await (await client(`${user}@build7 make[4711]`)).request('nightly', { shared: true });
  await until(async () => (await hasRow(page, 'nightly'))[1].endsWith('7, pid 4711 and 1 more'));
  const [cell, more] = await page.evaluate(() => {
    const cell = document.querySelector('#locks .row .who');
    return [cell, cell.lastElementChild].map((element) => element.getBoundingClientRect().right);
  });
  assert.ok(more <= cell, `it ends at ${more}, its cell at ${cell}`);
});

test('a deadlock is red, its cycle spelt out, and drawn', async () => {
  const { page, client } = await setting();
  const [ann, bob] = [await client('ann@build7 make[1]'), await client('bob@db-2 backup[2]')];
  const [a, b] = [await ann.request('a', { info: 'first' }), await bob.request('b', { info: 'second' })];
  await ann.request('b', { within: a.rid });
  const closing = await bob.request('a', { within: b.rid });
  await shows(page, () => document.querySelector('.deadlocks')?.hidden === false);
  const told = await page.evaluate(() => document.querySelector('.deadlocks').innerText);
  assert.match(told, /^1 deadlock/);
  assert.match(told, /ann@build7, pid 1 waits for b, held by bob@db-2, pid 2 \(second\)/);
  assert.match(told, /bob@db-2, pid 2 waits for a, held by ann@build7, pid 1 \(first\)/);
  await shows(page, () => document.querySelectorAll('#locks .row.red').length === 2);
  await click(page, '#tab-graph');
  await shows(page, () => document.querySelectorAll('.graph .node.red').length === 4 && document.querySelectorAll('.graph .edge.red').length === 4);
  const red = await page.evaluate(() => getComputedStyle(document.querySelector('.graph .edge.red')).stroke);
  assert.match(red, /^rgb\((1[5-9]\d|2\d\d), /, 'more red than anything');
  // It is over when one of them gives up.
  await bob.release(closing.rid);
  await shows(page, () => document.querySelector('.deadlocks').hidden && document.querySelectorAll('.graph .red').length === 0);
});

test('names and labels are text, whatever they are', async () => {
  const { page, seen, client } = await setting();
  const hostile = await client('<svg onload=pwned=1>@host <script>pwned=1</script>');
  const names = {
    '<img src=x onerror=pwned=1>': '<img src=x onerror=pwned=1>',
    '\u202Eevil\u2066': '\\u{202e}evil\\u{2066}',
    'line\nbreak\u0000\u001b[31m': 'line\\u{a}break\\u{0}\\u{1b}[31m',
    '': '""',
    ' blank ': '" blank "',
    '\uD83D': '\\u{d83d}',
    [`long${'g'.repeat(1020)}`]: `long${'g'.repeat(196)}…`,
    __proto__name: '__proto__name',
    constructor: 'constructor',
  };
  for (const name of Object.keys(names)) await hostile.request(name, { info: '</span><img src=/label onerror=pwned=1>\u202E' });
  await hostile.request(Uint8Array.of(0x61, 0xff));
  for (const shown of [...Object.values(names), 'a\\u{fffd}']) await hasRow(page, shown);
  await choose(page, '<img src=x onerror=pwned=1>');
  await click(page, '#release');
  const dialog = await page.evaluate(() => document.querySelector('dialog').innerText);
  assert.ok(dialog.includes('Release <img src=x onerror=pwned=1>?') && dialog.includes('\\u{202e}'), dialog);
  const made = await page.evaluate(() => [typeof pwned, document.images.length, document.querySelectorAll('script').length]);
  assert.deepEqual(made, ['undefined', 0, 1]);
  assert.deepEqual(seen.urls.filter((url) => url.endsWith('/x') || url.endsWith('/label')), []);
});

test('a release is confirmed, and says before what it breaks', async () => {
  const { page, client } = await setting();
  const [ann, bob] = [await client('ann@build7 make[4711]'), await client('bob@db-2')];
  const held = await ann.request('nightly', { info: 'the nightly build' });
  await bob.request('nightly');
  await choose(page, 'nightly');
  await shows(page, () => document.querySelectorAll('#queue .row').length === 2);
  await click(page, '#release');
  const asked = await page.evaluate(() => [document.querySelector('dialog').open, document.querySelector('dialog').innerText, document.activeElement.textContent]);
  assert.deepEqual([asked[0], asked[2]], [true, 'Cancel']);
  for (const part of ['ann@build7, pid 4711', 'the nightly build', 'held for', '1 request waiting']) assert.ok(asked[1].includes(part), asked[1]);
  await press(page, 'Escape');
  await shows(page, () => document.querySelector('dialog') === null);
  assert.match((await queue(page))[0][1], /^ann@build7/, 'nothing was broken');
  await click(page, '#release');
  await click(page, 'dialog .danger');
  assert.match(await held.broken, /dashboard/);
  await until(async () => (await queue(page))[0]?.[1].startsWith('bob@db-2'));
  await shows(page, () => document.querySelector('#toast').textContent.includes('1 lock broken'));
});

test('if others hold the lock by the time of the answer, it is asked again', async () => {
  const { page, client } = await setting();
  const [ann, bob] = [await client('ann@build7'), await client('bob@db-2')];
  const first = await ann.request('a');
  const second = await bob.request('a');
  await choose(page, 'a');
  await until(async () => (await queue(page)).length === 2);
  await click(page, '#release');
  await ann.release(first.rid);
  await until(async () => (await queue(page)).length === 1);
  await click(page, 'dialog .danger');
  await shows(page, () => document.querySelector('dialog h2')?.textContent === 'Its holders have changed. Release a?');
  assert.match(await page.evaluate(() => document.querySelector('dialog').innerText), /bob@db-2/);
  await click(page, 'dialog .danger');
  await second.broken;
});

test('a stolen lock is held by the page, until it is given back', async () => {
  const { page, client } = await setting();
  const [ann, bob] = [await client('ann@build7'), await client('bob@db-2')];
  const held = await ann.request('a');
  await bob.request('a');
  await choose(page, 'a');
  await until(async () => (await queue(page)).length === 2);
  await click(page, '#steal');
  const asked = await page.evaluate(() => document.querySelector('dialog').innerText);
  for (const part of ['Steal a?', 'This breaks:', 'ann@build7', 'held for', 'until you give it back', '1 request waiting']) assert.ok(asked.includes(part), asked);
  await click(page, 'dialog .danger');
  await held.broken;
  await until(async () => (await queue(page))[0]?.[1].includes('stolen from the dashboard'));
  await shows(page, () => !document.querySelector('#give-back').hidden);
  await click(page, '#give-back');
  await until(async () => (await queue(page))[0]?.[1].startsWith('bob@db-2'));
  await shows(page, () => document.querySelector('#give-back').hidden);
});

test('a stolen lock outlives its connection, and is held here until the daemon has it back', async () => {
  const { page, seen, net, client, is } = await setting({ cuttable: true });
  const [ann, bob] = [await client('ann@build7'), await client('bob@db-2')];
  const held = await ann.request('a');
  await bob.request('a');
  await choose(page, 'a');
  await click(page, '#steal');
  await click(page, 'dialog .danger');
  await held.broken;
  await shows(page, () => !document.querySelector('#give-back').hidden);
  net.drop();
  await until(() => seen.urls.filter((url) => url.startsWith('ws:')).length > 1);
  await is('live');
  await until(async () => (await queue(page))[0]?.[1].includes('stolen from the dashboard'));
  net.cut();
  await shows(page, () => document.body.dataset.status !== 'live');
  await click(page, '#give-back');
  await click(page, '#tab-locks');
  await page.evaluate(() => new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(() => drawn(true)))));
  assert.equal(await page.evaluate(() => document.querySelector('#give-back').hidden), false);
  net.mend();
  await shows(page, () => document.querySelector('#toast').textContent === 'Gave a back');
  await until(async () => (await queue(page))[0]?.[1].startsWith('bob@db-2'));
  await shows(page, () => document.querySelector('#give-back').hidden);
});

test('what was confirmed and got lost on the way is not asked again', async () => {
  const { page, net, client, is } = await setting({ cuttable: true });
  const ann = await client('ann@build7');
  const held = await ann.request('a');
  let broken = false;
  void held.broken.then(() => (broken = true));
  await choose(page, 'a');
  for (const action of ['#release', '#steal', '#queue button']) {
    net.silence();
    await click(page, action);
    await click(page, 'dialog .danger');
    await shows(page, () => document.querySelector('dialog') === null);
    net.drop();
    net.silence(false);
    await shows(page, () => document.querySelector('#toast').textContent.endsWith('the outcome is unknown'));
    await page.evaluate(() => (document.querySelector('#toast').textContent = ''));
    await is('live');
    await ann.request(`after ${action}`);
    assert.equal(broken, false, action);
  }
});

test('ending a session names all that ends with it', async () => {
  const { page, client } = await setting();
  const ann = await client('ann@build7 make[4711]');
  for (const name of ['a', 'b']) await ann.request(name);
  await hasRow(page, 'b');
  await choose(page, 'a');
  await shows(page, () => document.querySelector('#queue button') !== null);
  await click(page, '#queue button');
  const asked = await page.evaluate(() => document.querySelector('dialog').innerText);
  for (const part of ['End the session of ann@build7, pid 4711?', 'lock on a', 'lock on b', ann.id]) assert.ok(asked.includes(part), asked);
  await click(page, 'dialog .danger');
  assert.equal(await ann.ended, 22);
  await noRow(page, 'b');
});

test('with keys, a token is asked for; it stands in no address, and decides what is offered', async () => {
  const key = Buffer.alloc(32, 7);
  const token = (claims) => {
    const encode = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
    const signed = `${encode({ alg: 'HS256' })}.${encode({ exp: 4e9, buckets: ['default'], ...claims })}`;
    return `${signed}.${createHmac('sha256', key).update(signed).digest('base64url')}`;
  };
  const keys = machine();
  const file = join(keys.dir, 'keys.json');
  writeFileSync(file, JSON.stringify({ keys: [{ kty: 'oct', k: key.toString('base64url') }] }));
  const { page, seen, client, is } = await setting({ flags: ['--keys', file], state: 'login' });
  const login = (token) =>
    page.evaluate((token) => {
      document.querySelector('#token').value = token;
      document.querySelector('#login').requestSubmit();
    }, token);
  const holder = await client('ann@build7', { token: token({}) });
  const held = await holder.request('a');
  assert.equal(await page.evaluate(() => document.querySelector('#main').hidden), true);
  await login('not.a.token');
  await shows(page, () => document.querySelector('#login-why').textContent.startsWith('Refused'));
  await login(token({}));
  await is('refused');
  await shows(page, () => document.querySelector('#status').textContent.includes('inspect'));
  await click(page, '#logout');
  await is('login');
  await login(token({ inspect: true }));
  await is('live');
  await choose(page, 'a');
  const offered = () => page.evaluate(() => ['#release', '#steal', '#queue button'].map((button) => !document.querySelector(button).disabled));
  assert.deepEqual(await offered(), [false, false, false]);
  await click(page, '#logout');
  await is('login');
  await login(token({ inspect: true, force_release: true }));
  await is('live');
  await choose(page, 'a');
  assert.deepEqual(await offered(), [true, false, true]);
  await click(page, '#release');
  await click(page, 'dialog .danger');
  await held.broken;
  const stealer = token({ inspect: true, steal: true });
  await click(page, '#logout');
  await is('login');
  await login(stealer);
  await is('live');
  await holder.request('b');
  await choose(page, 'b');
  assert.deepEqual(await offered(), [false, true, false]);
  await click(page, '#steal');
  await click(page, 'dialog .danger');
  await until(async () => (await queue(page))[0]?.[1].includes('stolen from the dashboard'));
  // One for another bucket looks at that.
  await click(page, '#logout');
  await is('login');
  await login(token({ inspect: true, buckets: ['jobs'] }));
  await is('live');
  assert.equal(await page.evaluate(() => document.querySelector('#bucket').value), 'jobs');
  // A reload keeps it, and nothing else has it.
  await page.command('Page.reload');
  await is('live');
  assert.ok(seen.urls.every((url) => !url.includes('.eyJ')), 'no address has a token');
  assert.equal(await page.evaluate(() => localStorage.length + document.cookie.length), 0);
});

test('100,000 locks: only those in sight are elements, and the page answers', async () => {
  const { page, client } = await setting();
  await page.evaluate(() => {
    globalThis.longest = 0;
    const take = (list) => list.getEntries().forEach(({ duration }) => (longest = Math.max(longest, duration)));
    new PerformanceObserver(take).observe({ type: 'longtask' });
  });
  const crowd = await client('ci@runner');
  await Promise.all(Array.from({ length: 100_000 }, (_, i) => crowd.request(`lock/${String(i).padStart(6, '0')}`, { info: `job ${i}` })));
  await shows(page, () => document.querySelector('#shown').textContent.startsWith('100,000 locks'));
  await click(page, '[data-order=name]');
  await hasRow(page, 'lock/000000');
  const elements = () => page.evaluate(() => document.querySelectorAll('*').length);
  assert.ok((await elements()) < 1000, `${await elements()} elements`);
  await page.evaluate(() => document.querySelector('#locks').focus());
  await press(page, 'End');
  await hasRow(page, 'lock/099999');
  await shows(page, () => document.querySelector('.detail h2').textContent === 'lock/099999');
  await press(page, '/', '/');
  await page.command('Input.insertText', { text: 'JOB 42042' });
  await shows(page, () => document.querySelector('#shown').textContent === '1 of 100,000 locks match');
  assert.deepEqual((await rows(page)).map(([name]) => name), ['lock/042042']);
  // One more: it is told alone, and shown among them.
  await press(page, 'Escape');
  const late = await client('late@host');
  await late.request('lock/000000', { info: 'patience' });
  await click(page, '[data-order=queue]');
  await until(async () => (await rows(page))[0]?.[4] === '1');
  assert.ok((await elements()) < 1000);
  const longest = await page.evaluate(() => longest);
  assert.ok(longest < 3_000, `the page did not answer for ${longest} ms`);
});

test('a queue of 20,000 is shown in part, and moves on', async () => {
  const { page, client } = await setting();
  const [ann, crowd] = [await client('ann@build7'), await client('ci@runner')];
  const held = await ann.request('hot');
  await Promise.all(Array.from({ length: 20_000 }, (_, i) => crowd.request('hot', { info: `job ${i}` })));
  await choose(page, 'hot');
  await shows(page, () => document.querySelector('.detail h3').textContent === '1 holder, 20,000 in the queue');
  assert.ok((await queue(page)).length < 100);
  await ann.release(held.rid);
  await shows(page, () => document.querySelector('.detail h3').textContent === '1 holder, 19,999 in the queue');
});

test('keys: / searches, arrows select, Escape goes back', async () => {
  const { page, client } = await setting();
  const ann = await client('ann@build7');
  for (const name of ['a', 'b', 'c']) await ann.request(name);
  await hasRow(page, 'c');
  await click(page, '[data-order=name]');
  await press(page, '/', '/');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'search');
  await press(page, 'ArrowDown');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'locks');
  await press(page, 'ArrowDown');
  await press(page, 'ArrowDown');
  await shows(page, () => document.querySelector('.detail h2').textContent === 'b');
  const told = await page.evaluate(() => {
    const list = document.querySelector('#locks');
    const row = document.getElementById(list.getAttribute('aria-activedescendant'));
    return [list.getAttribute('role'), row.getAttribute('role'), row.getAttribute('aria-selected'), row.getAttribute('aria-posinset'), row.getAttribute('aria-setsize'), row.getAttribute('aria-label')];
  });
  assert.deepEqual(told.slice(0, 5), ['listbox', 'option', 'true', '2', '3']);
  assert.match(told[5], /^b, held for \d+\.\ds by ann@build7, nobody waits$/);
  await press(page, 'Escape');
  await shows(page, () => document.querySelector('.detail .body').hidden);
});

test('a daemon that is gone is told, and its successor shown', async () => {
  const { there, daemon, page, client, is } = await setting();
  await (await client('ann@build7')).request('before');
  await hasRow(page, 'before');
  await daemon.kill('SIGKILL');
  await shows(page, () => document.querySelector('#age').textContent.includes('What you see is'));
  await there.start();
  await is('live');
  await hasRow(page, 'before');
  await (await client('bob@db-2')).request('after');
  await hasRow(page, 'after');
});

test('a bucket is chosen, and can be bookmarked', async () => {
  const { page, client, is } = await setting();
  await (await client('ann@build7', { bucket: 'jobs of today' })).request('elsewhere');
  await page.evaluate(() => {
    document.querySelector('#bucket').value = 'jobs of today';
    document.querySelector('#buckets').requestSubmit();
  });
  await hasRow(page, 'elsewhere');
  assert.equal(await page.evaluate(() => location.hash), '#bucket=jobs%20of%20today');
  await page.command('Page.reload');
  await is('live');
  await hasRow(page, 'elsewhere');
});

test('nothing is asked of anybody else, and the policy is not broken', async () => {
  const { page, seen, client, address } = await setting();
  const ann = await client('ann@build7');
  await ann.request('a');
  await choose(page, 'a');
  await click(page, '#tab-graph');
  await shows(page, () => document.querySelector('#graph-summary').textContent === 'Nobody waits.');
  await click(page, '#tab-locks');
  await click(page, '#release');
  await press(page, 'Escape');
  const own = [address, address.replace('http:', 'ws:'), 'data:'];
  assert.deepEqual(seen.urls.filter((url) => !own.some((start) => url.startsWith(start))), []);
  assert.ok(seen.urls.length >= 4, 'the document, script, style and WebSocket were seen');
  assert.deepEqual(seen.complaints, []);
});

test('a narrow screen shows one thing at a time, and nothing is wider than it', async () => {
  const { page, client } = await setting({ fleet: FLEET });
  await shows(page, () => !document.querySelector('#tab-fleet').hidden);
  await page.command('Emulation.setDeviceMetricsOverride', { width: 360, height: 640, deviceScaleFactor: 1, mobile: true });
  await (await client('ann@build7 make[1]')).request(`a/${'very/long/name/'.repeat(20)}`, { info: 'label '.repeat(50) });
  await until(async () => (await rows(page)).length === 1);
  const visible = () => page.evaluate(() => ['.left', '#detail'].map((part) => document.querySelector(part).getClientRects().length > 0));
  assert.deepEqual(await visible(), [true, false]);
  await click(page, '#locks .row');
  assert.deepEqual(await visible(), [false, true]);
  const top = await page.evaluate(() => document.querySelector('#detail').getBoundingClientRect().top);
  assert.ok(top < 200, `it begins at ${top}, of 640`);
  for (const tab of ['#tab-locks', '#tab-graph', '#tab-fleet']) {
    await click(page, tab);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= 360), tab);
  }
});

const daemonAt = (url, lag, seen) => ({ url, version: '0.1.0', leads: false, position: 7, lag, seen });
const FLEET = {
  leader: { url: 'wss://a.example', vacant: false, position: 1234, snapshot: null, takeover: 1500 },
  daemons: [daemonAt('wss://a.example', 0, 900), daemonAt('wss://b.example/<img src=x onerror=pwned=1>', 3, 1200), daemonAt('wss://c.example', 40, 60_000)],
  etcd: [{ member: 'e:2379', version: '3.5.21', leads: true, bytes: 2 ** 21, trouble: ['its alarm is on'] }],
  trouble: ['wss://b.example: two daemons have this URL <img src=x onerror=pwned=1>'],
};

test('the daemons of a fleet: who leads, who is behind, who is silent; without a fleet, no such view', async () => {
  const alone = await setting();
  assert.equal(await alone.page.evaluate(() => document.querySelector('#tab-fleet').hidden), true);
  const { page } = await setting({ fleet: FLEET });
  await shows(page, () => !document.querySelector('#tab-fleet').hidden);
  await click(page, '#tab-fleet');
  await shows(page, () => document.querySelectorAll('.fleet tbody tr').length === 4);
  const cells = await page.evaluate(() => [...document.querySelectorAll('.fleet tbody tr')].map((row) => [...row.children].map(({ textContent }) => textContent)));
  assert.deepEqual(cells.map(([, role, behind]) => [role, behind]).slice(0, 3), [['leads', '0'], ['follows', '3'], ['silent', '40']]);
  assert.deepEqual(cells[3], ['e:2379', 'leads', '3.5.21', '2.0 MiB', 'its alarm is on']);
  assert.equal(await page.evaluate(() => document.querySelectorAll('.fleet tr.red').length), 2);
  const summary = await page.evaluate(() => document.querySelector('#fleet-summary').textContent);
  assert.match(summary, /^wss:\/\/a\.example leads 3 daemons\. The log has 1,234 entries\. 1 daemon silent\./);
  assert.equal(await page.evaluate(() => document.querySelector('#fleet-trouble').innerText), 'wss://b.example: two daemons have this URL <img src=x onerror=pwned=1>');
  assert.equal(await page.evaluate(() => typeof pwned + document.images.length), 'undefined0');
});

test('a real fleet is told in the form that the page reads', async () => {
  const store = await etcd();
  const { page, address } = await setting({ store });
  await shows(page, () => !document.querySelector('#tab-fleet').hidden);
  await click(page, '#tab-fleet');
  const cells = () => page.evaluate(() => [...document.querySelectorAll('.fleet tbody tr')].map((row) => [...row.children].map(({ textContent }) => textContent)));
  const [own, member] = await until(async () => {
    const found = await cells();
    return found.length === 2 && found[0][1] === 'leads' && found;
  });
  assert.deepEqual([own[0], own[4]], [address.replace('http:', 'ws:').replace(/\/$/, ''), 'now']);
  assert.match(own[2], /^\d+$/);
  assert.match(own[3], /^\d+\.\d+\.\d+$/);
  assert.deepEqual([member[0], member[1], member[4]], [store, 'leads', '']);
  assert.match(member[2], /^3\./);
  assert.match(member[3], /^\d+\.\d MiB$/);
  const summary = await page.evaluate(() => document.querySelector('#fleet-summary').textContent);
  assert.match(summary, /^ws:\S+ leads 1 daemon\. The log has [\d,]+ entries\. Another daemon takes over after \d/);
  assert.equal(await page.evaluate(() => document.querySelector('#fleet-trouble').hidden), true);
});

test('a lock in the graph is reached and opened by keys, and keeps the focus when it is drawn anew', async () => {
  const { page, client } = await setting();
  const [ann, bob] = [await client('ann@build7'), await client('bob@db-2')];
  await ann.request('a');
  await bob.request('a');
  await hasRow(page, 'a');
  await click(page, '#tab-graph');
  await shows(page, () => document.querySelector('.graph .node.lock') !== null);
  await page.evaluate(() => {
    globalThis.before = document.querySelector('.graph .node.lock');
    before.focus();
  });
  await (await client('eve@web-1')).request('a');
  await shows(page, () => document.activeElement !== before && document.activeElement.matches('.node.lock'));
  const [role, label] = await page.evaluate(() => ['role', 'aria-label'].map((name) => document.activeElement.getAttribute(name)));
  assert.equal(role, 'button');
  assert.match(label, /^a, held for .*s, 2 requests waiting$/);
  await press(page, 'Enter');
  await shows(page, () => document.querySelector('.detail h2').textContent === 'a');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'locks');
});

test('a name that was free in between is never shown as held by nobody', async () => {
  const { page, client } = await setting();
  const [ann, bob] = [await client('ann@build7'), await client('bob@db-2')];
  await page.evaluate(() => {
    // The list takes long to arrange, so it is drawn several times in between.
    let time = performance.now();
    performance.now = () => (time += 100);
    globalThis.holders = new Set();
    const look = () => document.querySelectorAll('#locks .row .who').forEach(({ textContent }) => holders.add(textContent));
    new MutationObserver(look).observe(document.querySelector('#list'), { childList: true, subtree: true, characterData: true });
  });
  for (let i = 0; i < 3; i++) {
    const held = await ann.request('a');
    await hasRow(page, 'a');
    await ann.release(held.rid);
    await until(async () => !(await rows(page)).some(([name, holder]) => name === 'a' && holder !== 'released'));
    const again = await bob.request('a');
    await until(async () => (await hasRow(page, 'a'))[1] === 'bob@db-2');
    await bob.release(again.rid);
  }
  await noRow(page, 'a');
  assert.deepEqual((await page.evaluate(() => [...holders])).sort(), ['ann@build7', 'bob@db-2', 'released']);
});

test('the plots draw what is held and what waits', async () => {
  const { page, client } = await setting();
  const [ann, bob] = [await client('ann@build7'), await client('bob@db-2')];
  await ann.request('a');
  await bob.request('a');
  // The last point of a line, above the axis.
  const drawn = (page, id) =>
    shows(page, (id) => Number(/ ([\d.]+)$/.exec(document.querySelector(`#${id} .since`).getAttribute('d'))?.[1] ?? 55) < 50, id);
  for (const id of ['plot-held', 'plot-waiting', 'plot-wait', 'plot-rate']) await drawn(page, id);
  const told = await page.evaluate(() => [...document.querySelectorAll('.plots svg')].map((plot) => plot.getAttribute('aria-label')));
  assert.match(told[0], /^now 1, at most 1 in ten minutes$/);
  assert.match(told[2], /^now 1, at most 1 in ten minutes$/);
});

test('light or dark, every text can be read', async () => {
  const { page, client } = await setting();
  const [ann, bob] = [await client('ann@build7 make[1]'), await client('bob@db-2 backup[2]')];
  const [a, b] = [await ann.request('a', { info: 'first' }), await bob.request('b', { info: 'second' })];
  await ann.request('b', { within: a.rid });
  await bob.request('a', { within: b.rid });
  await ann.request('c', { info: 'third' });
  await shows(page, () => document.querySelectorAll('#locks .row.red').length === 2);
  await choose(page, 'c');
  const contrasts = () =>
    page.evaluate(() => {
      const parse = (color) => color.match(/[\d.]+/g).map(Number);
      const luminance = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map((part) => part / 255).map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
      };
      const behind = (element) => {
        const [r, g, b, alpha = 1] = parse(getComputedStyle(element).backgroundColor);
        return alpha > 0 ? [r, g, b] : behind(element.parentElement);
      };
      const texts = [...document.body.querySelectorAll('*')].filter(
        (element) => !element.closest('svg') && !element.disabled && element.checkVisibility() && [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim() !== ''),
      );
      return texts.map((element) => {
        const [text, ground] = [parse(getComputedStyle(element).color), behind(element)].map(luminance);
        return [element.textContent, (Math.max(text, ground) + 0.05) / (Math.min(text, ground) + 0.05)];
      });
    });
  const grounds = [];
  for (const value of ['light', 'dark']) {
    await page.command('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value }] });
    const found = await contrasts();
    assert.ok(found.length > 30, `${found.length} texts`);
    assert.deepEqual(found.filter(([, contrast]) => contrast < 4.5), [], value);
    grounds.push(await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
  }
  assert.notEqual(...grounds);
});

test('arrow keys go from tab to tab, round', async () => {
  const { page } = await setting();
  await page.evaluate(() => document.querySelector('#tab-locks').focus());
  const chosen = () => page.evaluate(() => [document.activeElement.id, ...[...document.querySelectorAll('[role=tab][aria-selected=true]')].map(({ id }) => id)]);
  for (const [key, tab] of [['ArrowRight', 'tab-graph'], ['ArrowRight', 'tab-locks'], ['ArrowLeft', 'tab-graph']]) {
    await press(page, key);
    assert.deepEqual(await chosen(), [tab, tab]);
  }
  assert.equal(await page.evaluate(() => document.querySelector('#view-locks').hidden && !document.querySelector('#view-graph').hidden), true);
});
