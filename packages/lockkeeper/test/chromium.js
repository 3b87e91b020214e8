/** A Chromium without a window, driven by its own DevTools protocol, and pages for it. */

import { spawn } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { cleanUp, until } from './harness.js';

const dist = new URL('../dist/', import.meta.url);
// Node 20 has none.
const { WebSocket } = globalThis.WebSocket ? globalThis : await import('ws');

/**
 * Serves the built package and pages, which are empty by default; `page` gives others, and scripts,
 * with their headers.
 */
export async function website(page = () => ({})) {
  const server = createServer(({ url }, response) => {
    const file = /^(?:\/node_modules\/lockkeeper)?\/dist\/((?:browser\/)?[\w-]+(?:\.min)?\.m?js)$/.exec(url)?.[1];
    const { body = '<!doctype html><title>page</title>', headers } = file ? script(file) : page(url);
    response.writeHead(200, { 'content-type': 'text/html', 'cache-control': 'max-age=60', ...headers });
    response.end(body);
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  cleanUp(() => {
    server.closeAllConnections();
    return new Promise((resolve) => server.close(resolve));
  });
  return `http://127.0.0.1:${server.address().port}`;
}

/** A file of the package. */
function script(file) {
  return { body: readFileSync(new URL(file, dist)), headers: { 'content-type': 'text/javascript' } };
}

/**
 * Starts Chromium. `open(url)` gives a page of its own; in another `profile`, it shares nothing
 * with the others. It ends with the test.
 */
export async function browser(...more) {
  const { child, send, on, close } = await launch(more);
  cleanUp(close);
  const open = async (url, { profile } = {}) => {
    const { targetId } = await send('Target.createTarget', { url, ...profile });
    const { sessionId } = await send('Target.attachToTarget', { targetId, flatten: true });
    return page(send, targetId, sessionId, url);
  };
  return {
    pid: child.pid,
    send,
    on,
    open,
    newProfile: async () => ({ profile: await send('Target.createBrowserContext') }),
  };
}

async function page(send, targetId, sessionId, url) {
  const command = (method, params) => send(method, params, sessionId);
  /** Runs a function in the page, to its end. */
  const evaluate = async (run, ...given) => {
    const expression = `(${run})(...${JSON.stringify(given)})`;
    const params = { expression, awaitPromise: true, returnByValue: true };
    const { result, exceptionDetails } = await command('Runtime.evaluate', params);
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  };
  const loaded = (url) => document.readyState === 'complete' && location.href === url;
  const at = (url) => until(() => evaluate(loaded, url).catch(() => false));
  await at(url);
  return {
    evaluate,
    command,
    async go(url) {
      await command('Page.navigate', { url });
      await at(url);
    },
    async back(url) {
      const { currentIndex, entries } = await command('Page.getNavigationHistory');
      await command('Page.navigateToHistoryEntry', { entryId: entries[currentIndex - 1].id });
      await at(url);
    },
    close: () => send('Target.closeTarget', { targetId }),
  };
}

/** Starts Chromium and speaks with it: `send` a command, `on` an event. */
export async function launch(more = []) {
  const dir = mkdtempSync(join(tmpdir(), 'lockkeeper-browser-'));
  const args = ['--headless', '--no-sandbox', '--disable-gpu', '--remote-debugging-port=0', `--user-data-dir=${dir}`];
  const child = spawn('chromium', [...args, ...more, 'about:blank'], { stdio: ['ignore', 'ignore', 'pipe'] });
  const exited = new Promise((resolve) => child.on('exit', resolve));
  let socket;
  const close = async () => {
    socket?.close();
    child.kill('SIGKILL');
    await exited;
    rmSync(dir, { recursive: true, force: true, maxRetries: 20, retryDelay: 100 });
  };
  try {
    socket = new WebSocket(await addressOf(child, exited));
    await new Promise((resolve, reject) => Object.assign(socket, { onopen: resolve, onerror: reject }));
  } catch (error) {
    await close();
    throw error;
  }
  const answers = new Map();
  const listeners = [];
  let asked = 0;
  socket.onmessage = ({ data }) => {
    const { id, result, error, method, params, sessionId } = JSON.parse(data);
    if (id === undefined) for (const listener of listeners) listener(method, params, sessionId);
    answers.get(id)?.(error ? Promise.reject(new Error(error.message)) : result);
    answers.delete(id);
  };
  const send = (method, params = {}, sessionId = undefined) =>
    new Promise((resolve) => {
      answers.set((asked += 1), resolve);
      socket.send(JSON.stringify({ id: asked, method, params, sessionId }));
    });
  return { child, send, on: (listener) => listeners.push(listener), close };
}

/** Where its DevTools protocol is spoken, which it says once it is ready. */
function addressOf(child, exited) {
  let said = '';
  return new Promise((resolve, reject) => {
    child.on('error', reject);
    void exited.then(() => reject(new Error(`chromium has ended: ${said}`)));
    child.stderr.on('data', (data) => {
      said += data;
      const [, found] = /DevTools listening on (\S+)/.exec(said) ?? [];
      if (found) resolve(found);
    });
  });
}
