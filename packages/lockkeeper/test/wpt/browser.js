/**
 * Runs the tests of a checkout in a browser: with its own locks, or with the drop-in in every page
 * and worker.
 */

import { spawn } from 'node:child_process';
import { mkdirSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { launch } from '../chromium.js';
import { program } from '../machine.js';
import { launchFirefox } from './firefox.js';
import { listTests, serve } from './server.js';

/** How long a page may take, in milliseconds. The harness has given up before. */
const LIMIT = 200_000;
/** The same for a page that has no harness, and gives up never. */
const CRASH_LIMIT = 30_000;
const FLAGS = [
  '--host-resolver-rules=MAP *.test 127.0.0.1',
  '--ignore-certificate-errors',
  '--disable-popup-blocking',
  // The page of a test waits behind the windows that it opens.
  '--disable-background-timer-throttling',
  '--disable-renderer-backgrounding',
];

const LAUNCH = { chromium: launchChromium, firefox: launchFirefox };

/** Results by test. With `injected`, the drop-in takes the place of the browser's own locks. */
export async function runBrowser(name, checkout, filters, injected, tell) {
  const daemon = injected ? await startDaemon() : undefined;
  const script = daemon ? `if (!self.lockkeeper) { self.lockkeeper = { url: '${daemon.url}' };\n${dropIn()} }` : '';
  const server = await serve(checkout, script);
  const browser = await LAUNCH[name]();
  try {
    if (injected) await browser.inject(script);
    const results = [];
    for (const test of listTests(checkout).filter(({ path }) => filters.every((filter) => path.includes(filter)))) {
      const result = { ...test, ...(await runTest(browser, server.urlOf(test.path))) };
      results.push(result);
      tell(result);
      await daemon?.restart();
    }
    return { version: browser.version, results };
  } finally {
    await browser.close();
    server.close();
    await daemon?.stop();
  }
}

function dropIn() {
  return readFileSync(new URL('../../dist/navigator.min.js', import.meta.url), 'utf8');
}

async function launchChromium() {
  const chromium = await launch(FLAGS);
  const { send } = chromium;
  const { product } = await send('Browser.getVersion');
  return {
    version: product.replace('/', ' '),
    inject: (source) => inject(chromium, source),
    async open() {
      const { browserContextId } = await send('Target.createBrowserContext');
      const { targetId } = await send('Target.createTarget', { url: 'about:blank', browserContextId });
      const { sessionId } = await send('Target.attachToTarget', { targetId, flatten: true });
      return {
        navigate: (url) => send('Page.navigate', { url }, sessionId),
        async evaluate(expression) {
          const { result } = await send('Runtime.evaluate', { expression, returnByValue: true }, sessionId);
          return result.value;
        },
        close: () => send('Target.disposeBrowserContext', { browserContextId }),
      };
    },
    close: () => chromium.close(),
  };
}

/**
 * Has every page run the script before all others, the empty ones of new frames too. Workers have
 * it from the server.
 */
function inject({ send, on }, source) {
  const attach = { autoAttach: true, waitForDebuggerOnStart: true, flatten: true };
  on((method, params) => {
    if (method !== 'Target.attachedToTarget') return;
    const { sessionId, targetInfo } = params;
    // A window without an opener answers none of them before the last. Some are gone by then.
    const command = (method, given) => void send(method, given, sessionId).catch(() => {});
    if (['page', 'iframe'].includes(targetInfo.type)) {
      command('Page.enable');
      command('Page.addScriptToEvaluateOnNewDocument', { source, runImmediately: true });
      command('Target.setAutoAttach', attach);
    }
    command('Runtime.runIfWaitingForDebugger');
  });
  void send('Target.setAutoAttach', attach);
}

/** In a profile of its own, which ends with all that the test has opened. */
async function runTest(browser, url) {
  const page = await browser.open();
  try {
    await page.navigate(url);
    const crashtest = url.includes('/crashtests/');
    const limit = crashtest ? CRASH_LIMIT : LIMIT;
    const look = crashtest ? LOADED : 'window.completed';
    for (const end = Date.now() + limit; Date.now() < end; ) {
      const found = await page.evaluate(look).catch(() => undefined);
      if (found) return crashtest ? { tests: [{ name: 'does not crash', passed: true }], harness: '' } : found;
      await new Promise((resolve) => setTimeout(resolve, 50));
    }
    return { tests: crashtest ? [{ name: 'ends', passed: false, message: 'no result in time' }] : [], harness: crashtest ? '' : 'no result in time' };
  } finally {
    await page.close().catch(() => {});
  }
}

const LOADED = `location.href !== 'about:blank' && document.readyState === 'complete' &&
  !document.documentElement.classList.contains('test-wait')`;

/**
 * A daemon, which can be started anew: the profile of a test ends at once, without a word to it.
 */
async function startDaemon() {
  const dir = mkdtempSync(join(tmpdir(), 'lockkeeper-wpt-'));
  let address = '127.0.0.1:0';
  let child;
  let exited;
  const start = async () => {
    const where = ['--socket', join(dir, 'daemon.sock'), '--state-dir', join(dir, 'state'), '--listen', address];
    const args = ['serve', ...where, '--allow-origin', '*', '--bucket-per-origin', '--ttl', '1h'];
    child = spawn(program, args, { env: { ...process.env, NO_COLOR: '1' }, stdio: ['ignore', 'ignore', 'pipe'] });
    exited = new Promise((resolve) => child.on('exit', resolve));
    let said = '';
    address = await new Promise((resolve, reject) => {
      void exited.then(() => reject(new Error(`the daemon has ended: ${said}`)));
      child.stderr.on('data', (data) => {
        said += data;
        const [, found] = /listening address=(\S+)/.exec(said) ?? [];
        if (found) resolve(found);
      });
    });
  };
  const stop = async () => {
    child.kill('SIGKILL');
    await exited;
    rmSync(dir, { recursive: true, force: true });
  };
  await start();
  return {
    url: `ws://${address}/`,
    stop,
    /** Knows nothing of what was before. */
    async restart() {
      await stop();
      mkdirSync(dir);
      await start();
    },
  };
}
