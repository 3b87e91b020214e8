/**
 * Takes the pictures of the dashboard: those of the README into docs/, and others to look at, of
 * several sizes and both colour schemes, into target/screenshots. The daemon is one of its own, on
 * which some minutes pass.
 *
 *     node scripts/screenshots.js [--seconds 200]
 */

import { mkdirSync, writeFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { launch } from '../../lockkeeper/test/chromium.js';
import { test } from '../../lockkeeper/test/harness.js';
import { machine } from '../../lockkeeper/test/machine.js';
import { speaker } from '../../lockkeeper/test/speaker.js';

const { seconds } = parseArgs({ options: { seconds: { type: 'string', default: '200' } } }).values;
const docs = new URL('../../../docs/', import.meta.url);
const more = new URL('../../../target/screenshots/', import.meta.url);

const SHOTS = [
  { file: new URL('dashboard.png', docs), width: 1180, height: 720 },
  { file: new URL('dashboard-graph.png', docs), width: 1180, height: 720, tab: 'graph' },
  { file: new URL('wide-dark.png', more), width: 1680, height: 1050, scheme: 'dark' },
  { file: new URL('graph-dark.png', more), width: 1180, height: 720, scheme: 'dark', tab: 'graph' },
  { file: new URL('tablet.png', more), width: 820, height: 1180 },
  { file: new URL('phone.png', more), width: 390, height: 844 },
  { file: new URL('phone-dark.png', more), width: 390, height: 844, scheme: 'dark' },
];

const pause = (time) => new Promise((resolve) => setTimeout(resolve, time));

/** Jobs that come and go, leaders, then a queue, and near the end a deadlock. */
async function scene(url, time) {
  const client = (owner) => speaker(url, { owner });
  const [ops, mailer, eve, etl] = await Promise.all(['ops@bastion ops[3301]', 'mail@web-2 mailer[612]', 'eve@web-1 npm[99]', 'etl@worker-3 etl[5150]'].map(client));
  await ops.request('leader/mailer', { info: 'primary' });
  await mailer.request('leader/mailer', { info: 'standby' });
  await ops.request('leader/scheduler', { info: 'primary' });
  for (const reader of [eve, mailer]) await reader.request('sessions/gc', { info: 'reads', shared: true });
  const end = Date.now() + time;
  const jobs = (async () => {
    for (let i = 0; Date.now() < end; i++) {
      const job = await etl.request(`tenant/${String(i % 40).padStart(3, '0')}/import`, { info: 'import' });
      void pause(3000 + ((i * 7919) % 9000)).then(() => etl.release(job.rid));
      await pause(700 + ((i * 104_729) % 900));
    }
  })();
  await pause(time * 0.6);
  await eve.request('cache/target', { info: 'npm ci' });
  for (const [owner, info] of [['ci@runner-15 ci[20077]', 'cargo test, shard 1'], ['ci@runner-14 ci[20031]', 'cargo build --release'], ['ci@runner-16 ci[20102]', 'cargo doc']]) {
    await (await client(owner)).request('cache/target', { info });
    await pause(2000);
  }
  const [ann, bob] = [await client('ann@build7 make[4711]'), await client('bob@db-2 backup[812]')];
  const settlement = await ann.request('orders/eu/settlement', { info: 'nightly settlement' });
  const orders = await bob.request('db/orders', { info: 'backup of orders' });
  await ann.request('db/orders', { info: 'settlement: writes', within: settlement.rid });
  await bob.request('orders/eu/settlement', { info: 'backup: waits for settlement', within: orders.rid });
  await jobs;
}

test('pictures', async () => {
  mkdirSync(more, { recursive: true });
  const there = machine({ network: true });
  await there.start();
  const { send, close } = await launch();
  try {
    const { targetId } = await send('Target.createTarget', { url: there.url.replace('ws:', 'http:') });
    const { sessionId } = await send('Target.attachToTarget', { targetId, flatten: true });
    const command = (method, params) => send(method, params, sessionId);
    const evaluate = (expression) => command('Runtime.evaluate', { expression });
    await scene(there.url, Number(seconds) * 1000);
    for (const { file, width, height, scheme = 'light', tab = 'locks' } of SHOTS) {
      await command('Emulation.setDeviceMetricsOverride', { width, height, deviceScaleFactor: 1, mobile: width < 500 });
      await command('Emulation.setEmulatedMedia', { features: [{ name: 'prefers-color-scheme', value: scheme }] });
      await evaluate(`document.querySelector('#tab-${tab}').click()`);
      await evaluate("[...document.querySelectorAll('#locks .row')].find((row) => row.textContent.includes('cache/target'))?.click()");
      // On a narrow screen, the list rather than what was selected.
      await evaluate("document.body.classList.remove('selected')");
      await pause(1500);
      const { data } = await command('Page.captureScreenshot', { format: 'png' });
      writeFileSync(file, Buffer.from(data, 'base64'));
      console.log(file.pathname);
    }
  } finally {
    await close();
  }
});
