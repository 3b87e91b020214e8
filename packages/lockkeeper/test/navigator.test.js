/**
 * The drop-in: `navigator.locks` of a daemon, in windows, frames and workers of each kind, and what
 * becomes of their locks.
 */

import { createHmac } from 'node:crypto';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { browser, website } from './chromium.js';
import { assert, test, until } from './harness.js';
import { connected, hold, machine, network } from './machine.js';

/** In whatever has `navigator.locks`: holds a lock. Tells when, and how that ended. */
const HOLD = `(name, tell) => {
  navigator.locks.request(name, (lock) => {
    tell('held');
    return new Promise((resolve) => lock.signal.addEventListener('abort', () => tell(lock.signal.reason.cause)));
  }).catch((error) => tell(error.name));
}`;

/** What the website has beside the package. */
const scripts = (url) => {
  const load = `self.lockkeeper = { url: '${url}' }; importScripts('/dist/navigator.min.js');`;
  const hold = `const hold = ${HOLD};`;
  return {
    '/worker.js': `${load} ${hold} onmessage = ({ data }) => hold(data, (told) => postMessage(told));`,
    '/shared.js': `${load} ${hold} onconnect = ({ ports: [port] }) => {
      port.onmessage = ({ data }) => hold(data, (told) => port.postMessage(told));
    };`,
    '/service.js': `${load} ${hold} onmessage = ({ data, source }) => hold(data, (told) => source.postMessage(told));
      onactivate = (event) => event.waitUntil(clients.claim());`,
  };
};

/**
 * A website whose pages have the drop-in, a daemon for them, which would wait long for who is lost,
 * and a browser.
 */
async function setting({ flags = [], head = '', headers = {}, ttl = '1h', through = (url) => url, chromium = [] } = {}) {
  const there = machine({ network: true });
  let url;
  const origin = await website((path) => {
    const script = scripts(url)[path];
    const body = script ?? `<!doctype html><script src="/dist/navigator.min.js" data-url="${url}"></script>${head}`;
    return { body, headers: { 'content-type': script ? 'text/javascript' : 'text/html', ...headers } };
  });
  await there.start('--allow-origin', origin, '--ttl', ttl, ...flags);
  url = await through(there.url);
  const started = await browser(...chromium);
  const open = (path = '/', given) => started.open(`${origin}${path}`, given);
  return { there, origin, open, chromium: started };
}

/** In a page: holds a lock. What is told is in `log`. */
function holdHere(HOLD, name) {
  globalThis.log = [];
  eval(HOLD)(name, (told) => log.push(told));
}

const holds = async (page, name) => {
  await page.evaluate(holdHere, HOLD, name);
  await logs(page, 'held');
};
const logs = (page, entry) => until(() => page.evaluate((entry) => globalThis.log?.includes(entry), entry));

test('it is there before the connection stands, with its interfaces, and requests wait', async () => {
  const head = `<script>
    globalThis.log = [navigator.locks.status, LockManager.name, Lock.name, navigator.locks instanceof LockManager];
    navigator.locks.addEventListener('statuschange', () => log.push(navigator.locks.status));
    navigator.locks.request('a', (lock) => log.push(lock instanceof Lock && lock.name));
  </script>`;
  const { open } = await setting({ head });
  const page = await open();
  await logs(page, 'a');
  const log = await page.evaluate(() => globalThis.log);
  assert.deepEqual(log, ['connecting', 'LockManager', 'Lock', true, 'connected', 'a']);
});

test('as a module, whose importer says where the daemon is', async () => {
  const there = machine({ network: true });
  const origin = await website(() => ({
    body: `<!doctype html><script type="module">
      import '/dist/navigator.min.mjs';
      globalThis.lockkeeper = { url: '${there.url}' };
      globalThis.log = [await navigator.locks.request('a', (lock) => lock.name)];
    </script>`,
  }));
  await there.start('--allow-origin', origin);
  await logs(await (await browser()).open(`${origin}/`), 'a');
});

test('dedicated, shared and service workers have it, and exclude each other', async () => {
  const { there, open } = await setting();
  const locks = await connected(there.url);
  const page = await open();
  await page.evaluate(async () => {
    globalThis.log = [];
    const tell = ({ data }) => log.push(data);
    const worker = new Worker('/worker.js');
    worker.onmessage = tell;
    const shared = new SharedWorker('/shared.js').port;
    shared.onmessage = tell;
    navigator.serviceWorker.onmessage = tell;
    const registration = await navigator.serviceWorker.register('/service.js');
    const service = registration.installing ?? registration.active;
    globalThis.workers = { worker, shared, service };
  });
  for (const kind of ['worker', 'shared', 'service']) {
    await page.evaluate((kind) => workers[kind].postMessage(kind), kind);
    await until(async () => (await locks.query()).held.some(({ name }) => name === kind));
  }
  await page.evaluate(() => workers.shared.postMessage('worker'));
  await until(async () => (await locks.query()).pending.length === 1);
  const { held, pending } = await locks.query();
  assert.equal(new Set(held.map(({ clientId }) => clientId)).size, 3);
  assert.equal(pending[0].name, 'worker');
  // Whoever is terminated gives its locks up at once.
  await page.evaluate(() => workers.worker.terminate());
  await until(async () => (await locks.query()).pending.length === 0);
});

test('a frame that is removed, and its worker, give up their locks at once', async () => {
  const { there, open } = await setting();
  const locks = await connected(there.url);
  const page = await open();
  await page.evaluate(async (HOLD) => {
    const frame = document.body.appendChild(document.createElement('iframe'));
    frame.src = '/frame';
    await new Promise((resolve) => (frame.onload = resolve));
    const inside = frame.contentWindow;
    const held = new Promise((resolve) => inside.eval(HOLD)('frame', resolve));
    const worker = new inside.Worker('/worker.js');
    worker.postMessage('worker');
    await Promise.all([held, new Promise((resolve) => (worker.onmessage = resolve))]);
    globalThis.frame = frame;
  }, HOLD);
  assert.deepEqual((await locks.query()).held.map(({ name }) => name).sort(), ['frame', 'worker']);
  const inactive = await page.evaluate(async () => {
    const { navigator } = frame.contentWindow;
    frame.remove();
    return [await navigator.locks.request('-', () => {}), await navigator.locks.query()].map(String);
  }).catch((error) => error.message);
  assert.match(inactive, /InvalidStateError: the document is not fully active/);
  for (const name of ['frame', 'worker']) assert.equal(await locks.request(name, () => 'free'), 'free');
});

test('an insecure context has none, and an opaque origin gets a SecurityError', async () => {
  const { origin, open, chromium } = await setting({ chromium: ['--host-resolver-rules=MAP insecure.test 127.0.0.1'] });
  const insecure = await chromium.open(`${origin.replace('127.0.0.1', 'insecure.test')}/`);
  assert.deepEqual(await insecure.evaluate(() => [isSecureContext, 'locks' in navigator]), [false, false]);
  const page = await open();
  const error = await page.evaluate(async (src) => {
    const frame = document.createElement('iframe');
    frame.sandbox = 'allow-scripts';
    frame.srcdoc = `<script src="${src}" data-url="ws://127.0.0.1:1/"></script>
      <script>navigator.locks.query().catch(({ name }) => parent.postMessage(name, '*'))</script>`;
    document.body.append(frame);
    return new Promise((resolve) => (onmessage = ({ data }) => resolve(data)));
  }, `${origin}/dist/navigator.min.js`);
  assert.equal(error, 'SecurityError');
});

test('a tab that crashes gives up its locks at once, and those of its workers', async () => {
  const { there, open } = await setting();
  const locks = await connected(there.url);
  const page = await open();
  await holds(page, 'a');
  await page.evaluate(async () => {
    globalThis.worker = new Worker('/worker.js');
    worker.postMessage('worker');
    await new Promise((resolve) => (worker.onmessage = resolve));
  });
  void page.command('Page.crash').catch(() => {});
  for (const name of ['a', 'worker']) assert.equal(await locks.request(name, () => 'free'), 'free');
});

test('a page that is frozen loses its lease, and learns of it when it goes on', async () => {
  const { there, open } = await setting({ ttl: '4s' });
  const locks = await connected(there.url);
  const page = await open();
  await holds(page, 'a');
  await page.command('Page.setWebLifecycleState', { state: 'frozen' });
  const { release } = await hold(locks, 'a');
  await page.command('Page.setWebLifecycleState', { state: 'active' });
  await logs(page, 'lost');
  release();
  await holds(page, 'a');
});

test('a page in the back/forward cache holds nothing, and has locks again when it is shown', async () => {
  const { there, origin, open } = await setting();
  const locks = await connected(there.url);
  const page = await open();
  await holds(page, 'a');
  await page.evaluate(() => addEventListener('pageshow', ({ persisted }) => log.push(persisted ? 'restored' : 'loaded')));
  const next = hold(locks, 'a');
  await page.go(`${origin}/elsewhere`);
  const { release } = await next;
  await page.back(`${origin}/`);
  await logs(page, 'restored');
  await logs(page, 'AbortError');
  release();
  await holds(page, 'a');
});

test('a page in the background keeps its lease, however much its timers are throttled', async () => {
  const chromium = ['--enable-features=IntensiveWakeUpThrottling:grace_period_seconds/1'];
  const { there, open } = await setting({ ttl: '12s', chromium });
  const locks = await connected(there.url);
  const page = await open();
  await holds(page, 'a');
  await open('/front');
  await until(() => page.evaluate(() => document.visibilityState === 'hidden'));
  const start = await page.evaluate(() => performance.now());
  // Longer than the lease lasts without a heartbeat, and throttled for nearly all of it.
  await until(() => page.evaluate((start) => performance.now() > start + 12_000, start));
  assert.deepEqual(await page.evaluate(() => log), ['held']);
  assert.equal((await locks.query()).held.length, 1);
});

test('a network that is cut is waited for: the lock stays, and so does the place in the queue', async () => {
  let line;
  const { there, open } = await setting({ through: async (url) => (line = await network(url)).url });
  const locks = await connected(there.url);
  const { release } = await hold(locks, 'b');
  const page = await open();
  await holds(page, 'a');
  await page.evaluate(() => {
    navigator.locks.addEventListener('statuschange', () => log.push(navigator.locks.status));
    void navigator.locks.request('b', () => log.push('b'));
  });
  await until(async () => (await locks.query()).pending.length === 1);
  line.cut();
  await logs(page, 'reconnecting');
  release();
  line.mend();
  await logs(page, 'b');
  assert.deepEqual(await page.evaluate(() => log), ['held', 'reconnecting', 'connected', 'b']);
  assert.equal((await locks.query()).held.length, 1);
});

test('a token is fetched for each connection from where the attribute says', async () => {
  const key = Buffer.alloc(32, 7);
  const encode = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const signed = `${encode({ alg: 'HS256' })}.${encode({ exp: 4e9, buckets: ['default'] })}`;
  const token = `${signed}.${createHmac('sha256', key).update(signed).digest('base64url')}`;
  const there = machine({ network: true });
  const file = join(there.dir, 'keys.json');
  writeFileSync(file, JSON.stringify({ keys: [{ kty: 'oct', k: key.toString('base64url') }] }));
  let fetched = 0;
  const origin = await website((path) => {
    if (path === '/token') fetched += 1;
    const attributes = `data-url="${there.url}" data-token-url="/token"`;
    return path === '/token'
      ? { body: token, headers: { 'content-type': 'text/plain', 'cache-control': 'no-store' } }
      : { body: `<!doctype html><script src="/dist/navigator.min.js" ${attributes}></script>` };
  });
  const daemon = await there.start('--allow-origin', origin, '--keys', file);
  const page = await (await browser()).open(`${origin}/`);
  await holds(page, 'a');
  assert.equal(fetched, 1);
  await daemon.kill('SIGKILL');
  await there.start('--allow-origin', origin, '--keys', file);
  await until(() => page.evaluate(() => navigator.locks.query().then(({ held }) => held.length === 1, () => false)));
  assert.ok(fetched > 1);
  assert.deepEqual(await page.evaluate(() => log), ['held']);
});

test('two profiles: one edits, the other waits until the tab of the first is closed', async () => {
  const { there, open, chromium } = await setting();
  const locks = await connected(there.url);
  const one = await open('/', await chromium.newProfile());
  const other = await open('/', await chromium.newProfile());
  await holds(one, 'document');
  await other.evaluate(holdHere, HOLD, 'document');
  await until(async () => (await locks.query()).pending.length === 1);
  await one.close();
  await logs(other, 'held');
});

test('the bucket of a page is its origin, and below it the site that embeds it', async () => {
  const flags = ['--bucket-per-origin', '--allow-origin', '*'];
  const rules = '--host-resolver-rules=MAP *.test 127.0.0.1';
  const insecure = (origin) => `--unsafely-treat-insecure-origin-as-secure=${origin}`;
  const there = machine({ network: true });
  let url;
  const origin = await website((path) => {
    const script = scripts(url)[path];
    const page = `<!doctype html><script src="/dist/navigator.min.js" data-url="${url}"></script>`;
    return { body: script ?? page, headers: { 'content-type': script ? 'text/javascript' : 'text/html' } };
  });
  await there.start(...flags);
  url = there.url;
  const [app, top] = ['app.test', 'top.test'].map((host) => origin.replace('127.0.0.1', host));
  const chromium = await browser(rules, insecure(`${app},${top}`));
  const program = await connected(url, { bucket: app });
  const page = await chromium.open(`${app}/`);
  await holds(page, 'a');
  assert.equal((await program.query()).held.length, 1, 'a program can name the bucket of a page');
  const embedder = await chromium.open(`${top}/`);
  await holds(embedder, 'a');
  const partition = await connected(url, { bucket: `${app} http://top.test` });
  await embedder.evaluate(async (src) => {
    const frame = document.createElement('iframe');
    frame.src = src;
    document.body.append(frame);
    await new Promise((resolve) => (frame.onload = resolve));
    globalThis.frame = frame;
  }, `${app}/frame`);
  // In another process: it is spoken to through its own target.
  const { targetInfos } = await chromium.send('Target.getTargets');
  const { targetId } = targetInfos.find(({ type }) => type === 'iframe');
  const { sessionId } = await chromium.send('Target.attachToTarget', { targetId, flatten: true });
  const expression = `(${holdHere})(${JSON.stringify(HOLD)}, 'a'); globalThis.worker = new Worker('/worker.js'); worker.postMessage('b');`;
  await chromium.send('Runtime.evaluate', { expression }, sessionId);
  await until(async () => (await partition.query()).held.length === 2);
  assert.equal((await program.query()).held.length, 1);
});

test('the examples, in two profiles: one edits and the other waits; one is primary and the other becomes it', async () => {
  const there = machine({ network: true });
  await there.start('--examples', '--ttl', '1h');
  const site = there.url.replace('ws:', 'http:');
  const chromium = await browser();
  const profiles = [await chromium.newProfile(), await chromium.newProfile()];
  const both = (path) => Promise.all(profiles.map((profile) => chromium.open(`${site}examples/${path}`, profile)));
  const titled = (page, title) => until(() => page.evaluate((title) => document.title === title, title));
  const sorted = async (path, ...titles) => {
    const pages = await both(path);
    const read = () => Promise.all(pages.map((page) => page.evaluate(() => document.title)));
    const order = await until(async () => {
      const found = await read();
      const order = titles.map((title) => found.indexOf(title));
      return !order.includes(-1) && order;
    });
    return order.map((place) => pages[place]);
  };

  const [editor, waiter] = await sorted('editor.html', 'edits', 'waits');
  await editor.evaluate(() => {
    document.getElementById('text').value = 'changed';
    document.getElementById('done').click();
  });
  await titled(editor, 'done');
  assert.equal(await editor.evaluate(() => localStorage.getItem('document')), 'changed');
  await titled(waiter, 'edits');
  await editor.evaluate(() => document.getElementById('take').click());
  await titled(editor, 'edits');
  await titled(waiter, 'stolen');

  const [primary, secondary] = await sorted('sync.html', 'primary', 'secondary');
  await primary.close();
  await titled(secondary, 'primary');
});

test('each reason why there is no session has its own message, at once', async () => {
  const policy = "connect-src 'self' ws://127.0.0.1:* wss://127.0.0.1:*";
  const { there, origin, open } = await setting({ headers: { 'content-security-policy': policy } });
  const page = await open();
  const failure = (url) =>
    page.evaluate(async (url) => {
      const { connect } = await import('/dist/browser/connect.js');
      const failed = (error) => `${error.name}: ${error.message}`;
      return connect(url).then(() => 'connected', failed);
    }, url);
  assert.equal(await failure(there.url), 'connected');
  const started = async (...flags) => {
    const other = machine({ network: true });
    return { other, daemon: await other.start(...flags) };
  };
  const refusing = await started('--allow-origin', 'https://example.com');
  assert.match(await failure(refusing.other.url), new RegExp(`^NotAllowedError: the origin ${origin} is not allowed`));

  const keys = { keys: [{ kty: 'oct', k: Buffer.alloc(32, 7).toString('base64url') }] };
  const file = join(there.dir, 'keys.json');
  writeFileSync(file, JSON.stringify(keys));
  const guarded = await started('--allow-origin', origin, '--keys', file);
  assert.match(await failure(guarded.other.url), /^NotAllowedError: a token is needed/);

  const blocked = await failure('ws://localhost:1/');
  assert.match(blocked, /^NetworkError: no session at .*: the page's Content-Security-Policy \(connect-src\) does not allow it/);

  const tls = fileURLToPath(new URL('fixtures/tls/', import.meta.url));
  const secure = await started('--allow-origin', origin, '--tls-cert', `${tls}cert.pem`, '--tls-key', `${tls}key.pem`);
  const untrusted = await failure(secure.other.url.replace('ws:', 'wss:'));
  assert.match(untrusted, /^NetworkError: no session at wss:.*with a certificate that is trusted here\?/);

  await guarded.daemon.kill('SIGKILL');
  assert.match(await failure(guarded.other.url), /^NetworkError: no session at ws:.*Does `lockkeeper serve --listen` run there\?/);
});
