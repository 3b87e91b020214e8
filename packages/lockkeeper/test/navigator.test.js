/**
 * The drop-in: `navigator.locks` of a daemon, in windows, frames and workers of each kind, and what
 * becomes of their locks.
 */

import { createHmac } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { browser, website } from './chromium.js';
import { assert, test, until } from './harness.js';
import { connected, fleet, freePort, hold, machine, network } from './machine.js';

/** In whatever has `navigator.locks`: holds a lock. Tells when, and how that ended. */
const HOLD = `(name, tell) => {
  navigator.locks.request(name, (lock) => {
    tell('held');
    return new Promise((resolve) => lock.signal.addEventListener('abort', () => tell(lock.signal.reason.cause)));
  }).catch((error) => tell(error.name));
}`;

/** A key of a daemon, and a token that it signs. */
const KEY = Buffer.alloc(32, 7);
const KEYS = { keys: [{ kty: 'oct', k: KEY.toString('base64url') }] };
const tokenFor = (bucket) => {
  const encode = (value) => Buffer.from(JSON.stringify(value)).toString('base64url');
  const signed = `${encode({ alg: 'HS256' })}.${encode({ exp: 4e9, buckets: [bucket] })}`;
  return `${signed}.${createHmac('sha256', KEY).update(signed).digest('base64url')}`;
};

/** What the website has beside the package. */
const scripts = (url) => {
  const load = `self.lockkeeper = { url: '${url}' }; importScripts('/dist/navigator.min.js');`;
  const hold = `const hold = ${HOLD};`;
  const workers = {
    '/worker.js': `${load} ${hold} onmessage = ({ data }) => hold(data, (told) => postMessage(told));`,
    '/shared.js': `${load} ${hold} onconnect = ({ ports: [port] }) => {
      port.onmessage = ({ data }) => hold(data, (told) => port.postMessage(told));
    };`,
    '/service.js': `${load} ${hold} onmessage = ({ data, source }) => hold(data, (told) => source.postMessage(told));
      onactivate = (event) => event.waitUntil(clients.claim());`,
  };
  const module = `import '/dist/navigator.min.mjs'; self.lockkeeper = { url: '${url}' };`;
  const modules = Object.entries(workers).map(([path, text]) => [path.replace('.js', '.mjs'), text.replace(load, module)]);
  return {
    ...workers,
    ...Object.fromEntries(modules),
    // Tells when it has looked for its partition, and there was none.
    '/early.js': `const { open } = IDBFactory.prototype;
      IDBFactory.prototype.open = function (...given) {
        const request = open.apply(this, given);
        request.addEventListener('error', () => postMessage('early'), { once: true });
        return request;
      };
      ${load} ${hold} hold('early', () => {});`,
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

test('its interfaces have the lengths that Web IDL gives them, minified as they are', async () => {
  const { open } = await setting();
  const lengths = await (await open()).evaluate(() =>
    [LockManager, Lock, LockManager.prototype.request, LockManager.prototype.query].map(({ length }) => length),
  );
  assert.deepEqual(lengths, [0, 0, 2, 0]);
});

test('of several URLs in data-url, the next one is used when one fails', async () => {
  const between = [];
  const through = async (url) => {
    between.push(await network(url), await network(url));
    between[0].cut();
    return between.map(({ url }) => url).join();
  };
  const { open, there } = await setting({ through });
  const page = await open();
  await holds(page, 'a');
  const witness = await connected(there.url);
  for (const [to, from] of [between, between.toReversed()]) {
    to.mend();
    from.cut();
    await page.evaluate(() => navigator.locks.query());
    assert.equal((await witness.query()).held.length, 1);
    assert.deepEqual(await page.evaluate(() => globalThis.log), ['held']);
  }
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

for (const [type, ending] of [['classic', 'js'], ['module', 'mjs']]) {
  test(`dedicated, shared and service workers have it as a ${type}, and exclude each other`, async () => {
    const { there, open } = await setting();
    const locks = await connected(there.url);
    const page = await open();
    await page.evaluate(async (type, ending) => {
      globalThis.log = [];
      const tell = ({ data }) => log.push(data);
      const worker = new Worker(`/worker.${ending}`, { type });
      worker.onmessage = tell;
      const shared = new SharedWorker(`/shared.${ending}`, { type }).port;
      shared.onmessage = tell;
      navigator.serviceWorker.onmessage = tell;
      const registration = await navigator.serviceWorker.register(`/service.${ending}`, { type });
      const service = registration.installing ?? registration.active;
      globalThis.workers = { worker, shared, service };
    }, type, ending);
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
}

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
  const start = await page.evaluate(() => {
    // A chain of timers of the page's own shows that they are throttled.
    globalThis.ticks = 0;
    const tick = () => setTimeout(tick, ((ticks += 1), 100));
    tick();
    return performance.now();
  });
  // Longer than the lease lasts without a heartbeat, and throttled for nearly all of it.
  await until(() => page.evaluate((start) => performance.now() > start + 12_000, start));
  const ticks = await page.evaluate(() => globalThis.ticks);
  assert.ok(ticks < 60, `the timers of the page were not throttled: ${ticks} ticks in twelve seconds`);
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

test('a network that falls silent, without a word to either end, is given up for another connection', async () => {
  let line;
  const { there, open } = await setting({ ttl: '30s', through: async (url) => (line = await network(url)).url });
  const locks = await connected(there.url);
  const page = await open();
  await holds(page, 'a');
  await page.evaluate(() => navigator.locks.addEventListener('statuschange', () => log.push(navigator.locks.status)));
  line.silence();
  await logs(page, 'reconnecting');
  line.silence(false);
  // A connection that is being made meanwhile is silent for ever.
  line.drop();
  await logs(page, 'connected');
  assert.deepEqual(await page.evaluate(() => log), ['held', 'reconnecting', 'connected']);
  assert.equal((await locks.query()).held.length, 1);
});

test('a window that is reloaded or closed gives up its locks at once, and those of its worker', async () => {
  const { there, open } = await setting();
  const locks = await connected(there.url);
  const page = await open();
  const takes = async () => {
    await holds(page, 'a');
    await page.evaluate(async () => {
      globalThis.worker = new Worker('/worker.js');
      worker.postMessage('worker');
      await new Promise((resolve) => (worker.onmessage = resolve));
    });
    assert.deepEqual((await locks.query()).held.map(({ name }) => name).sort(), ['a', 'worker']);
  };
  const free = async () => {
    // The ttl is an hour.
    for (const name of ['a', 'worker']) assert.equal(await locks.request(name, () => 'free'), 'free');
  };
  await takes();
  await page.command('Page.reload');
  await free();
  await until(() => page.evaluate(() => document.readyState === 'complete' && !('log' in globalThis)).catch(() => false));
  await takes();
  await page.close();
  await free();
});

test('through a daemon that does not lead: the bucket is the origin, and a page that is closed gives its locks up at once', async () => {
  let url;
  const origin = await website(() => ({ body: `<!doctype html><script src="/dist/navigator.min.js" data-url="${url}"></script>` }));
  const [leader, follower] = await fleet(2, '--allow-origin', origin, '--bucket-per-origin', '--ttl', '1h');
  ({ url } = follower);
  const page = await (await browser()).open(`${origin}/`);
  await holds(page, 'a');
  const program = await connected(leader.url, { bucket: origin });
  assert.deepEqual((await program.query()).held.map(({ name }) => name), ['a']);
  await page.close();
  assert.equal(await program.request('a', () => 'free'), 'free');
});

test('data-bucket and data-token are the bucket and the token; data-retry waits for a daemon', async () => {
  const there = machine({ network: true });
  const keys = join(there.dir, 'keys.json');
  writeFileSync(keys, JSON.stringify(KEYS));
  let attributes = '';
  const origin = await website(() => ({ body: `<!doctype html><script src="/dist/navigator.min.js" ${attributes}></script>`, headers: { 'cache-control': 'no-store' } }));
  const daemon = await there.start('--allow-origin', origin, '--keys', keys);
  const chromium = await browser();
  attributes = `data-url="${there.url}" data-bucket="mine" data-token="${tokenFor('mine')}"`;
  await holds(await chromium.open(`${origin}/`), 'a');
  const program = await connected(there.url, { bucket: 'mine', token: tokenFor('mine') });
  assert.equal((await program.query()).held.length, 1);
  attributes = `data-url="${there.url}" data-bucket="theirs" data-token="${tokenFor('mine')}"`;
  const refused = await chromium.open(`${origin}/`);
  assert.equal(await refused.evaluate(() => navigator.locks.query().catch(({ name }) => name)), 'NotAllowedError');
  await daemon.kill('SIGKILL');
  attributes = `data-url="${there.url}" data-bucket="mine" data-token="${tokenFor('mine')}"`;
  const impatient = await chromium.open(`${origin}/`);
  assert.equal(await impatient.evaluate(() => navigator.locks.query().catch(({ name }) => name)), 'NetworkError');
  attributes += ' data-retry';
  const patient = await chromium.open(`${origin}/`);
  await patient.evaluate(holdHere, HOLD, 'b');
  await there.start('--allow-origin', origin, '--keys', keys);
  await logs(patient, 'held');
});

test('a token is fetched for each connection from where the attribute says', async () => {
  const token = tokenFor('default');
  const there = machine({ network: true });
  const file = join(there.dir, 'keys.json');
  writeFileSync(file, JSON.stringify(KEYS));
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

test('the token of the global may be a function, which is called for each connection', async () => {
  const there = machine({ network: true });
  const file = join(there.dir, 'keys.json');
  writeFileSync(file, JSON.stringify(KEYS));
  const origin = await website(() => ({
    body: `<!doctype html><script>
      globalThis.asked = 0;
      globalThis.lockkeeper = { url: '${there.url}', token: async () => ((asked += 1), '${tokenFor('default')}') };
    </script><script src="/dist/navigator.min.js"></script>`,
  }));
  const daemon = await there.start('--allow-origin', origin, '--keys', file);
  const page = await (await browser()).open(`${origin}/`);
  await holds(page, 'a');
  assert.equal(await page.evaluate(() => asked), 1);
  await daemon.kill('SIGKILL');
  await there.start('--allow-origin', origin, '--keys', file);
  await until(() => page.evaluate(() => asked > 1 && navigator.locks.query().then(({ held }) => held.length === 1, () => false)));
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
    const tag = `<script src="/dist/navigator.min.js" data-url="${url}"></script>`;
    // Its worker looks for the partition before the window has left it.
    const late = `<script>
      new Worker('/early.js').onmessage = () => document.head.append(document.createRange().createContextualFragment(${JSON.stringify(tag).replace('</', '<\\/')}));
    </script>`;
    const page = `<!doctype html><head></head>${path === '/late' ? late : tag}`;
    return { body: script ?? page, headers: { 'content-type': script ? 'text/javascript' : 'text/html' } };
  });
  await there.start(...flags);
  url = there.url;
  const [app, top] = ['app.test', 'top.test'].map((host) => origin.replace('127.0.0.1', host));
  const chromium = await browser(rules, insecure(`${app},${top}`));
  const program = await connected(url, { bucket: app });
  const other = await chromium.open(`${top}/`);
  await other.evaluate(async (src) => {
    const frame = document.createElement('iframe');
    frame.src = src;
    document.body.append(frame);
    await new Promise((resolve) => (frame.onload = resolve));
  }, `${app}/late`);
  const partition = await connected(url, { bucket: `${app} http://top.test` });
  await until(async () => (await partition.query()).held.some(({ name }) => name === 'early'));
  await other.close();
  const page = await chromium.open(`${app}/`);
  await holds(page, 'a');
  assert.equal((await program.query()).held.length, 1, 'a program can name the bucket of a page');
  const embedder = await chromium.open(`${top}/`);
  await holds(embedder, 'a');
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
  // It has not kept the database open, in which it left the name for its worker.
  const awaited = `new Promise((resolve, reject) => {
    const request = indexedDB.deleteDatabase('lockkeeper');
    Object.assign(request, { onsuccess: () => resolve('deleted'), onblocked: () => resolve('blocked'), onerror: reject });
  })`;
  const { result } = await chromium.send('Runtime.evaluate', { expression: awaited, awaitPromise: true }, sessionId);
  assert.equal(result.value, 'deleted');
});

test('a frame that cannot see its ancestors stays in its partition when it navigates', async () => {
  const there = machine({ network: true });
  // As in Firefox, which has none: the frame's referrer is its own site then.
  const script = readFileSync(new URL('../dist/navigator.min.js', import.meta.url), 'utf8').replaceAll('ancestorOrigins', 'absent');
  const origin = await website((path) =>
    path === '/locks.js'
      ? { body: script, headers: { 'content-type': 'text/javascript' } }
      : { body: `<!doctype html><script src="/locks.js" data-url="${there.url}"></script>` },
  );
  await there.start('--bucket-per-origin', '--allow-origin', '*');
  const [app, top] = ['app.test', 'top.test'].map((host) => origin.replace('127.0.0.1', host));
  const secure = `--unsafely-treat-insecure-origin-as-secure=${app},${top}`;
  const chromium = await browser('--host-resolver-rules=MAP *.test 127.0.0.1', secure);
  const partition = await connected(there.url, { bucket: `${app} http://top.test` });
  const embedder = await chromium.open(`${top}/`);
  await embedder.evaluate(async (src) => {
    const frame = document.createElement('iframe');
    frame.src = src;
    document.body.append(frame);
    await new Promise((resolve) => (frame.onload = resolve));
  }, `${app}/first`);
  const { targetInfos } = await chromium.send('Target.getTargets');
  const { targetId } = targetInfos.find(({ type }) => type === 'iframe');
  const { sessionId } = await chromium.send('Target.attachToTarget', { targetId, flatten: true });
  const evaluate = async (expression) => (await chromium.send('Runtime.evaluate', { expression }, sessionId)).result.value;
  for (const name of ['first', 'second']) {
    await until(() => evaluate(`location.pathname === '/${name}' && document.readyState === 'complete'`).catch(() => false));
    await evaluate(`(${holdHere})(${JSON.stringify(HOLD)}, '${name}')`);
    await until(async () => (await partition.query()).held.some((lock) => lock.name === name));
    await evaluate("location.href = '/second'");
  }
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

test('the examples under the name of a host, over TLS, as other devices reach them', async () => {
  const there = machine();
  const tls = fileURLToPath(new URL('fixtures/tls/', import.meta.url));
  const port = await freePort();
  const origin = `https://locks.test:${port}`;
  await there.start('--listen', `127.0.0.1:${port}`, '--tls-cert', `${tls}cert.pem`, '--tls-key', `${tls}key.pem`, '--examples', '--allow-origin', origin, '--insecure');
  const chromium = await browser('--host-resolver-rules=MAP locks.test 127.0.0.1', '--ignore-certificate-errors');
  const page = await chromium.open(`${origin}/examples/editor.html`);
  await until(() => page.evaluate(() => document.title === 'edits'));
});

test('a policy that blocks the connection is told at once, by the drop-in in a page and in its worker', async () => {
  const { open } = await setting({ headers: { 'content-security-policy': "connect-src 'none'" } });
  const page = await open();
  const [failures, took] = await page.evaluate(async () => {
    const begun = performance.now();
    const { url } = document.querySelector('script').dataset;
    const query = 'navigator.locks.query().catch(({ message }) => postMessage(message))';
    const text = `self.lockkeeper = { url: '${url}' }; importScripts('${location.origin}/dist/navigator.min.js'); ${query}`;
    const worker = new Worker(URL.createObjectURL(new Blob([text])));
    const told = new Promise((resolve) => (worker.onmessage = ({ data }) => resolve(data)));
    const failures = [await navigator.locks.query().catch(({ message }) => message), await told];
    return [failures, performance.now() - begun];
  });
  for (const message of failures) assert.match(message, /^no session at ws:.*: the page's Content-Security-Policy \(connect-src\) does not allow it/);
  // Without the event of the policy, it is an attempt that times out after ten seconds.
  assert.ok(took < 8_000, `${took} ms`);
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

  const file = join(there.dir, 'keys.json');
  writeFileSync(file, JSON.stringify(KEYS));
  const guarded = await started('--allow-origin', origin, '--keys', file);
  assert.match(await failure(guarded.other.url), /^NotAllowedError: a token is needed/);

  const listening = () => page.evaluate(() => globalThis.listening);
  await page.evaluate(() => {
    globalThis.listening = 0;
    for (const [name, change] of [['addEventListener', 1], ['removeEventListener', -1]]) {
      const original = globalThis[name];
      globalThis[name] = function (type, ...rest) {
        if (type === 'securitypolicyviolation') listening += change;
        return original.call(this, type, ...rest);
      };
    }
  });
  const byPolicy = /^NetworkError: no session at .*: the page's Content-Security-Policy \(connect-src\) does not allow it/;
  assert.match(await failure('ws://localhost:1/'), byPolicy);
  assert.match(await failure(['ws://localhost:1', 'ws://localhost:2/a']), byPolicy, 'all of several');
  assert.match(await failure(['ws://localhost:1', 'ws://127.0.0.1:1/']), /^NetworkError.*Does `lockkeeper serve --listen` run there\?/, 'one of several');
  for (const url of ['ws://', ['ws://', there.url], 'http://127.0.0.1/']) assert.match(await failure(url), /^TypeError: ".*" is no ws: or wss: URL/);
  assert.equal(await listening(), 0, 'nothing is left behind');

  const tls = fileURLToPath(new URL('fixtures/tls/', import.meta.url));
  const secure = await started('--allow-origin', origin, '--tls-cert', `${tls}cert.pem`, '--tls-key', `${tls}key.pem`);
  const untrusted = await failure(secure.other.url.replace('ws:', 'wss:'));
  // A page is not told which of the two it is.
  assert.match(untrusted, /^NetworkError: no session at wss:.*Does `lockkeeper serve --listen` run there, with a certificate that is trusted here\?/);

  await guarded.daemon.kill('SIGKILL');
  assert.match(await failure(guarded.other.url), /^NetworkError: no session at ws:.*Does `lockkeeper serve --listen` run there\?/);
});
