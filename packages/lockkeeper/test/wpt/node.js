/**
 * Runs the tests of the Web Platform Tests' directory `web-locks` that need no page against this
 * package in Node, and prints the results as JSON:
 *
 *     node test/wpt/node.js CHECKOUT [part of a file's name]...
 *
 * Each file runs in a fresh process, once on its main thread, as a window would, and once on a
 * worker thread. The checkout is only read; the shims here are what a browser or WPT's server has
 * and Node has not.
 */

import { spawn } from 'node:child_process';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import vm from 'node:vm';
import { isMainThread, parentPort, Worker as Thread, workerData } from 'node:worker_threads';

/** Pages whose scripts need nothing of a page. */
const PAGES = ['workers.https.html'];
const LIMIT = 60_000;

if (!isMainThread) await inThread(workerData);
else if (process.argv[2] === '--file') await inProcess(...process.argv.slice(3));
else await runAll(...process.argv.slice(2));

async function runAll(checkout, ...filters) {
  if (!checkout || !existsSync(join(checkout, 'web-locks'))) {
    throw new Error('usage: node test/wpt/node.js CHECKOUT [FILTER]...');
  }
  const files = readdirSync(join(checkout, 'web-locks'))
    .filter((file) => file.endsWith('.any.js') || PAGES.includes(file))
    .filter((file) => filters.every((filter) => file.includes(filter)));
  const results = [];
  for (const file of files) {
    for (const global of file.endsWith('.html') ? ['window'] : ['window', 'worker']) {
      results.push({ file, global, ...(await runFile(checkout, file, global)) });
    }
  }
  console.log(JSON.stringify(results));
}

function runFile(checkout, file, global) {
  const args = [fileURLToPath(import.meta.url), '--file', checkout, file, global];
  const child = spawn(process.execPath, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let [stdout, stderr] = ['', ''];
  child.stdout.on('data', (data) => (stdout += data));
  child.stderr.on('data', (data) => (stderr += data));
  const timer = setTimeout(() => child.kill('SIGKILL'), LIMIT);
  return new Promise((resolve) => {
    child.on('close', (code, signal) => {
      clearTimeout(timer);
      try {
        resolve(JSON.parse(stdout));
      } catch {
        resolve({ tests: [], harness: `no result (${signal ?? code})\n${stdout}${stderr}` });
      }
    });
  });
}

/** In the process of one file. */
async function inProcess(checkout, file, global) {
  const finish = (results) => {
    console.log(JSON.stringify(results));
    process.exit();
  };
  if (global === 'window') {
    await runTests({ checkout, file, global }, finish);
  } else {
    const workerData = { checkout, file, global, tests: true };
    const thread = new Thread(new URL(import.meta.url), { workerData });
    thread.once('message', finish);
  }
}

/** In a worker thread: that of a test file, or that of `new Worker` in one. */
async function inThread({ checkout, script, ...rest }) {
  if (rest.tests) {
    await runTests({ checkout, ...rest }, (results) => parentPort.postMessage(results));
  } else {
    await import('lockkeeper/install');
    const scope = shim(checkout, script, 'worker');
    runScript(join(checkout, script));
    parentPort.on('message', (data) => scope.dispatchEvent(new MessageEvent('message', { data })));
  }
}

async function runTests({ checkout, file, global }, finish) {
  await import('lockkeeper/install');
  const path = join(checkout, 'web-locks', file);
  const text = readFileSync(path, 'utf8');
  // From here to the last script in one go: the harness takes the first microtask for the end of
  // loading.
  globalThis.self = globalThis;
  runScript(join(checkout, 'resources/testharness.js'));
  shim(checkout, `/web-locks/${file}`, global);
  const completed = (tests, { status, message }) => {
    const results = tests.map(({ name, status, message }) => ({ name, passed: status === 0, message }));
    finish({ tests: results, harness: status === 0 ? '' : String(message) });
  };
  globalThis.add_completion_callback(completed);
  for (const script of scriptsOf(text)) {
    // WPT's server knows this one by another name.
    const name = script === '/resources/WebIDLParser.js' ? '/resources/webidl2/lib/webidl2.js' : script;
    const from = name.startsWith('/') ? checkout : join(checkout, 'web-locks');
    if (existsSync(join(from, name))) runScript(join(from, name));
  }
  const inline = text.match(/<script>([^]*?)<\/script>/)?.[1];
  vm.runInThisContext(inline ?? text, { filename: path });
}

/** The scripts that a file asks for, the harness aside. */
function scriptsOf(text) {
  const meta = [...text.matchAll(/^\/\/ META: script=(.*)$/gm)];
  const tags = [...text.matchAll(/<script src="(.*?)"/g)];
  return [...meta, ...tags].map(([, script]) => script).filter((script) => !script.includes('testharness'));
}

function runScript(path) {
  vm.runInThisContext(readFileSync(path, 'utf8'), { filename: path });
}

/**
 * Makes the global object that of a window or a worker, as far as these tests look. Returns its
 * events.
 */
function shim(checkout, url, global) {
  const location = new URL(url, 'https://web-platform.test/');
  const scope = new EventTarget();
  scope.postMessage = (message) => parentPort.postMessage(message);
  const define = (properties) => {
    for (const [name, value] of Object.entries(properties)) {
      Object.defineProperty(globalThis, name, { value, writable: true, configurable: true });
    }
  };
  define({
    self: globalThis,
    location,
    isSecureContext: true,
    GLOBAL: {
      isWindow: () => global === 'window',
      isWorker: () => global === 'worker',
      isShadowRealm: () => false,
    },
    addEventListener: scope.addEventListener.bind(scope),
    removeEventListener: scope.removeEventListener.bind(scope),
    postMessage: scope.postMessage,
    importScripts(...urls) {
      for (const url of urls) runScript(join(checkout, new URL(url, location).pathname));
    },
    async fetch(url) {
      const { pathname } = new URL(url, location);
      return new Response(readFileSync(join(checkout, pathname)));
    },
    Worker: workerOf(checkout, location),
  });
  if (global === 'window') {
    define({ Window: class Window {} });
  } else {
    // Every global is an instance; which of Node's there are does not matter.
    class WorkerGlobalScope {
      static [Symbol.hasInstance] = (object) => object === globalThis;
    }
    define({ WorkerGlobalScope, DedicatedWorkerGlobalScope: class extends WorkerGlobalScope {} });
  }
  process.on('unhandledRejection', (reason) => {
    const event = new Event('unhandledrejection', { cancelable: true });
    scope.dispatchEvent(Object.assign(event, { reason }));
  });
  process.on('uncaughtException', (error) => {
    const event = new Event('error', { cancelable: true });
    scope.dispatchEvent(Object.assign(event, { error, message: error?.message }));
  });
  return scope;
}

/** The class Worker of the web, on a thread of Node's. */
function workerOf(checkout, location) {
  return class Worker extends EventTarget {
    #thread;
    constructor(url) {
      super();
      const { pathname: script } = new URL(url, location);
      this.#thread = new Thread(new URL(import.meta.url), { workerData: { checkout, script } });
      this.#thread.on('message', (data) => this.dispatchEvent(new MessageEvent('message', { data })));
    }
    postMessage(message) {
      this.#thread.postMessage(message);
    }
    terminate() {
      void this.#thread.terminate();
    }
  };
}
