/**
 * Serves a checkout of the Web Platform Tests as far as `web-locks` needs it: the pages that WPT's
 * own server makes of scripts, its substitutions, its dispatcher. The checkout is only read.
 */

import { existsSync, readdirSync, readFileSync } from 'node:fs';
import http from 'node:http';
import https from 'node:https';
import { extname, join, normalize } from 'node:path';

const HOST = 'web-platform.test';
const ALTERNATIVE = 'not-web-platform.test';
const TYPES = { '.html': 'text/html', '.js': 'text/javascript', '.json': 'application/json' };

/**
 * What each kind of global is called, in a script's META and in the names of the pages that are
 * made of it.
 */
const GLOBALS = {
  window: 'any.html',
  dedicatedworker: 'any.worker.html',
  sharedworker: 'any.sharedworker.html',
  serviceworker: 'any.serviceworker.html',
};
const WORKERS = ['worker', 'sharedworker', 'serviceworker'];

/** Reports to whoever drives the page. */
const REPORT = `
  setup({ timeout_multiplier: 2 });
  add_completion_callback((tests, { status, message }) => {
    const results = tests.map((test) => ({
      name: test.name,
      passed: test.status === 0,
      // What a browser may do and does not is no failure.
      optional: test.status === test.PRECONDITION_FAILED,
      message: test.message,
    }));
    window.completed = { tests: results, harness: status === 0 ? '' : String(message ?? 'the harness failed: ' + status) };
  });
`;

/** Starts it. `inWorkers` is put before the script of every worker. */
export async function serve(checkout, inWorkers) {
  const stash = new Map();
  const tls = ['key', 'cert'].map((name) => [name, readFileSync(new URL(`../fixtures/tls/${name}.pem`, import.meta.url))]);
  const ports = { http: [], https: [] };
  const answer = (request, response) => respond({ checkout, inWorkers, stash, ports, request, response });
  const servers = [];
  for (const protocol of ['https', 'https', 'http', 'http']) {
    const server = protocol === 'https' ? https.createServer(Object.fromEntries(tls), answer) : http.createServer(answer);
    await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
    ports[protocol].push(server.address().port);
    servers.push(server);
  }
  return {
    /** Where a test is: those that are not about insecure contexts have it in their name. */
    urlOf(path) {
      const protocol = path.includes('.https.') ? 'https' : 'http';
      return `${protocol}://${HOST}:${ports[protocol][0]}${path}`;
    },
    close() {
      for (const server of servers) {
        server.close();
        server.closeAllConnections();
      }
    },
  };
}

/** The paths of all tests, with a name for those that several are made of. */
export function listTests(checkout) {
  const found = [];
  const walk = (dir) => {
    for (const entry of readdirSync(join(checkout, dir), { withFileTypes: true })) {
      const path = `${dir}/${entry.name}`;
      if (entry.isDirectory()) {
        if (entry.name !== 'resources') walk(path);
      } else found.push(...testsOf(path, readFileSync(join(checkout, path), 'utf8')));
    }
  };
  walk('/web-locks');
  return found.sort((a, b) => (a.path < b.path ? -1 : 1));
}

function testsOf(path, text) {
  const file = path.replace('/web-locks/', '');
  const variants = meta(text, 'variant');
  const pages = (page, global) => (variants.length > 0 ? variants : ['']).map((variant) => ({ file, global, path: page + variant }));
  if (path.endsWith('.any.js')) {
    const globals = meta(text, 'global')[0]?.split(',') ?? ['window', 'dedicatedworker'];
    return globals.flatMap((global) => pages(path.replace('any.js', GLOBALS[global]), global));
  }
  if (path.endsWith('.window.js')) return pages(path.replace('.js', '.html'), 'window');
  if (!path.endsWith('.html')) return [];
  return path.includes('/crashtests/') || text.includes('testharness.js') ? pages(path, 'window') : [];
}

function meta(text, name) {
  return [...text.matchAll(new RegExp(`^// META: ${name}=(.*)$`, 'gm'))].map(([, value]) => value.trim());
}

function respond({ checkout, inWorkers, stash, ports, request, response }) {
  const { pathname, searchParams } = new URL(request.url, 'http://host/');
  if (pathname === '/common/dispatcher/dispatcher.py') return dispatch(stash, searchParams.get('uuid'), request, response);
  const made = pathname === '/resources/testharnessreport.js' ? REPORT : (pageOf(checkout, pathname) ?? fileOf(checkout, pathname));
  if (made === undefined) return response.writeHead(404).end();
  const substituted = pathname.includes('.sub.') ? substitute(made, ports) : made;
  const dest = request.headers['sec-fetch-dest'];
  const body = WORKERS.includes(dest) ? `${inWorkers};\n${substituted}` : substituted;
  const type = TYPES[extname(pathname)] ?? 'text/plain';
  const headers = { 'content-type': `${type}; charset=utf-8`, 'cache-control': 'no-cache', 'service-worker-allowed': '/' };
  response.writeHead(200, headers).end(body);
}

function fileOf(checkout, pathname) {
  // WPT's server knows this one by another name.
  const name = pathname === '/resources/WebIDLParser.js' ? '/resources/webidl2/lib/webidl2.js' : pathname;
  const file = join(checkout, normalize(name));
  return file.startsWith(checkout) && existsSync(file) ? readFileSync(file, 'utf8') : undefined;
}

/** What WPT's server makes of a script. */
function pageOf(checkout, pathname) {
  const [, base, kind] = /^(.*\.(?:any|window))(?:\.(\w+))?\.(?:html|js)$/.exec(pathname) ?? [];
  const source = base && fileOf(checkout, `${base}.js`);
  if (!source || (kind === undefined && pathname.endsWith('.js'))) return undefined;
  const scripts = meta(source, 'script');
  if (pathname.endsWith('.js')) {
    const imports = ['/resources/testharness.js', ...scripts].map((script) => `importScripts(${JSON.stringify(script)});`);
    return `${globalOf('worker')}\n${imports.join('\n')}\nimportScripts(${JSON.stringify(`${base}.js`)});\ndone();`;
  }
  const tags = ['/resources/testharness.js', '/resources/testharnessreport.js'];
  if (kind === undefined) tags.push(...scripts, `${base}.js`);
  const head = tags.map((src) => `<script src="${src}"></script>`).join('\n');
  const before = `<!doctype html>\n<meta charset="utf-8">\n<script>${globalOf('window')}</script>\n${head}\n<div id="log"></div>\n`;
  return kind === undefined ? before : `${before}<script>${runner(kind, `${base}.${kind}.js`)}</script>`;
}

function runner(kind, script) {
  const url = `new URL(${JSON.stringify(script)}, location)`;
  if (kind === 'worker') return `fetch_tests_from_worker(new Worker(${url}));`;
  if (kind === 'sharedworker') return `fetch_tests_from_worker(new SharedWorker(${url}));`;
  return `(async () => {
    const scope = 'does/not/exist';
    const before = await navigator.serviceWorker.getRegistration(scope);
    await before?.unregister();
    const registration = await navigator.serviceWorker.register(${url}, { scope });
    add_completion_callback(() => registration.unregister());
    await fetch_tests_from_worker(registration.installing);
  })();`;
}

function globalOf(global) {
  return `self.GLOBAL = { isWindow: () => ${global === 'window'}, isWorker: () => ${global === 'worker'}, isShadowRealm: () => false };`;
}

function substitute(text, ports) {
  return text.replaceAll(/\{\{(.*?)\}\}/g, (_, expression) => {
    const [, name, first, second] = /^(\w+)(?:\[(\w*)\])?(?:\[(\w*)\])?$/.exec(expression) ?? [];
    const below = (host, label) => (label ? `${label}.${host}` : host);
    if (name === 'host') return HOST;
    if (name === 'domains') return below(HOST, first);
    if (name === 'hosts') return below(first === 'alt' ? ALTERNATIVE : HOST, second);
    if (name === 'ports') return ports[first]?.[second] ?? 0;
    return '';
  });
}

/** A queue of messages for each id. */
function dispatch(stash, uuid, request, response) {
  const { origin = '*' } = request.headers;
  response.writeHead(200, {
    'access-control-allow-credentials': 'true',
    'access-control-allow-methods': 'OPTIONS, GET, POST',
    'access-control-allow-headers': 'Content-Type',
    'access-control-allow-origin': origin,
    'cache-control': 'no-cache, no-store, must-revalidate',
  });
  const queue = stash.get(uuid) ?? [];
  stash.set(uuid, queue);
  if (request.method === 'GET') return response.end(queue.shift() ?? 'not ready');
  const parts = [];
  request.on('data', (part) => parts.push(part));
  request.on('end', () => {
    if (request.method === 'POST') queue.push(Buffer.concat(parts));
    response.end('done');
  });
}
