/** Starts a Firefox without a window, and speaks WebDriver BiDi with it. */

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

const HOSTS = ['web-platform.test', 'not-web-platform.test'].flatMap((host) => [host, `www.${host}`, `www1.${host}`, `www2.${host}`]);

const PREFERENCES = {
  'network.dns.localDomains': HOSTS.join(),
  // The page of a test opens windows, and waits behind them.
  'dom.disable_open_during_load': false,
  // The daemon is started anew for each test, and must be reached at once.
  'network.websocket.delay-failed-reconnects': false,
  'dom.min_background_timeout_value': 4,
  'dom.timeout.enable_budget_timer_throttling': false,
  'app.update.enabled': false,
  'browser.shell.checkDefaultBrowser': false,
  'datareporting.policy.dataSubmissionEnabled': false,
};

export async function launchFirefox() {
  const profile = mkdtempSync(join(tmpdir(), 'lockkeeper-firefox-'));
  const lines = Object.entries(PREFERENCES).map(([name, value]) => `user_pref(${JSON.stringify(name)}, ${JSON.stringify(value)});\n`);
  writeFileSync(join(profile, 'user.js'), lines.join(''));
  const args = ['--headless', '--no-remote', '--profile', profile, '--remote-debugging-port', '0'];
  const child = spawn('firefox-esr', args, { stdio: ['ignore', 'ignore', 'pipe'], env: { ...process.env, HOME: profile } });
  const exited = new Promise((resolve) => child.on('exit', resolve));
  const address = await new Promise((resolve, reject) => {
    let said = '';
    child.on('error', reject);
    child.stderr.on('data', (data) => {
      said += data;
      const [, found] = /WebDriver BiDi listening on (\S+)/.exec(said) ?? [];
      if (found) resolve(found);
    });
    void exited.then(() => reject(new Error(`Firefox has ended: ${said}`)));
  });
  const socket = new WebSocket(`${address}/session`);
  const waiting = new Map();
  socket.onmessage = ({ data }) => {
    const { id, result, error, message } = JSON.parse(data);
    const { resolve, reject } = waiting.get(id) ?? {};
    waiting.delete(id);
    if (error) reject?.(new Error(`${error}: ${message}`));
    else resolve?.(result);
  };
  await new Promise((resolve, reject) => Object.assign(socket, { onopen: resolve, onerror: reject }));
  let last = 0;
  const send = (method, params = {}) =>
    new Promise((resolve, reject) => {
      waiting.set((last += 1), { resolve, reject });
      socket.send(JSON.stringify({ id: last, method, params }));
    });
  const { capabilities } = await send('session.new', { capabilities: { alwaysMatch: { acceptInsecureCerts: true } } });
  return {
    version: `Firefox ${capabilities.browserVersion}`,
    /** Has every page run the script before all others. */
    inject: (source) => send('script.addPreloadScript', { functionDeclaration: `() => { ${source} }` }),
    /** A page in a profile of its own, which ends with all that it has opened. */
    async open() {
      const { userContext } = await send('browser.createUserContext');
      const { context } = await send('browsingContext.create', { type: 'tab', userContext });
      return {
        navigate: (url) => send('browsingContext.navigate', { context, url, wait: 'none' }),
        async evaluate(expression) {
          const text = `JSON.stringify(${expression})`;
          const { result } = await send('script.evaluate', { expression: text, target: { context }, awaitPromise: false });
          return result?.value === undefined ? undefined : JSON.parse(result.value);
        },
        close: () => send('browser.removeUserContext', { userContext }),
      };
    },
    async close() {
      child.kill('SIGKILL');
      await exited;
      rmSync(profile, { recursive: true, force: true, maxRetries: 5 });
    },
  };
}
