/** Daemons of a test's own, and connections to them. */

import { spawn } from 'node:child_process';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer, connect as dial } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connect } from 'lockkeeper';
import platform from '../dist/cjs/platform.cjs';
import { cleanUp, deferred, until } from './harness.js';

export const program = platform.platformFiles().daemon;

/**
 * A machine that no daemon runs on yet. With `network`, what starts there listens on a port too,
 * always the same, and shares its buckets.
 */
export function machine({ network = false, share = network, port = 0 } = {}) {
  const dir = mkdtempSync(join(tmpdir(), 'lockkeeper-test-'));
  const socket = join(dir, 'daemon.sock');
  const daemons = [];
  const self = { dir, url: `unix:${socket}` };
  let address = `127.0.0.1:${port}`;
  self.start = async (...more) => {
    const args = ['serve', '--socket', socket, '--state-dir', join(dir, 'state'), ...more];
    if (network) args.push('--listen', address);
    if (share) args.push('--share-buckets');
    const env = { ...process.env, NO_COLOR: '1' };
    const child = spawn(program, args, { env, stdio: ['ignore', 'ignore', 'pipe'] });
    const exited = new Promise((resolve) => child.on('exit', resolve));
    daemons.push({ child, exited });
    let said = '';
    await new Promise((resolve, reject) => {
      child.stderr.on('data', (data) => {
        said += data;
        address = /listening address=(\S+)/.exec(said)?.[1] ?? address;
        if (said.includes('serving') && (!network || said.includes('listening'))) resolve();
      });
      void exited.then(() => reject(new Error(`the daemon has ended: ${said}`)));
    });
    if (network) self.url = `ws://${address}/`;
    return { kill: (signal) => (child.kill(signal), exited) };
  };
  cleanUp(async () => {
    for (const { child } of daemons) child.kill('SIGKILL');
    await Promise.all(daemons.map(({ exited }) => exited));
    rmSync(dir, { recursive: true, force: true });
  });
  return self;
}

/** An etcd, until the test is over. Returns its address. */
export async function etcd() {
  const dir = mkdtempSync(join(tmpdir(), 'lockkeeper-etcd-'));
  const ports = await Promise.all([freePort(), freePort()]);
  const [client, peer] = ports.map((port) => `http://127.0.0.1:${port}`);
  const urls = ['listen-client', 'advertise-client'].map((name) => `--${name}-urls=${client}`);
  urls.push(...['listen-peer', 'initial-advertise-peer'].map((name) => `--${name}-urls=${peer}`));
  const child = spawn('etcd', [`--data-dir=${dir}`, `--initial-cluster=default=${peer}`, '--log-level=error', ...urls], { stdio: 'ignore' });
  const exited = new Promise((resolve) => child.on('exit', resolve));
  cleanUp(async () => {
    child.kill('SIGKILL');
    await exited;
    rmSync(dir, { recursive: true, force: true });
  });
  const isHealthy = () => fetch(`${client}/health`).then(({ ok }) => ok, () => false);
  await until(async () => (await isHealthy()) || child.exitCode !== null);
  if (child.exitCode !== null) throw new Error('etcd has ended');
  return client.replace('http://', '');
}

export async function freePort() {
  const server = createServer();
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** A network between here and a daemon, which can be cut, and mended. */
export async function network(url) {
  const { port: target } = new URL(url);
  const pairs = new Set();
  let whole = true;
  let silent = false;
  const server = createServer((near) => {
    if (!whole) return near.destroy();
    const far = dial(Number(target), '127.0.0.1');
    const pair = [near, far];
    pairs.add(pair);
    for (const [from, to] of [pair, [far, near]]) {
      from.on('data', (data) => silent || to.write(data));
      from.on('error', () => {});
      from.on('close', () => (pairs.delete(pair), to.destroy()));
    }
  });
  await new Promise((resolve) => server.listen(0, '127.0.0.1', resolve));
  const drop = () => pairs.forEach((pair) => pair.forEach((socket) => socket.destroy()));
  cleanUp(() => (drop(), new Promise((resolve) => server.close(resolve))));
  return {
    url: `ws://127.0.0.1:${server.address().port}/`,
    drop,
    cut: () => ((whole = false), drop()),
    mend: () => (whole = true),
    /** Nothing gets through, and nobody is told: what was sent is gone. */
    silence: (is = true) => (silent = is),
  };
}

/** Daemons that share the log of an etcd, until the test is over. The first one leads. */
export async function fleet(count, ...more) {
  const store = await etcd();
  const daemons = [];
  for (let i = 0; i < count; i++) {
    const port = await freePort();
    const there = machine({ network: true, share: false, port });
    const { kill } = await there.start('--store', `etcd://${store}/test`, '--advertise', `ws://127.0.0.1:${port}`, ...more);
    // Nobody else is there yet that could.
    if (i === 0) await until(() => leads(there.url));
    daemons.push({ url: there.url, socket: `unix:${join(there.dir, 'daemon.sock')}`, kill: () => kill('SIGKILL') });
  }
  return daemons;
}

/** Whether the daemon at a WebSocket leads its fleet. */
export async function leads(url) {
  const metrics = await fetch(new URL('/metrics', url.replace('ws:', 'http:')));
  return /^lockkeeper_fleet_leads 1$/m.test(await metrics.text());
}

/** Connects until the test is over. */
export async function connected(url, options) {
  const manager = await connect(url, options);
  cleanUp(() => manager.close());
  return manager;
}

/** Holds a lock until `release` is called. */
export async function hold(manager, name, options = {}) {
  const [granted, waiting] = [deferred(), deferred()];
  const released = manager.request(name, options, (lock) => (granted.resolve(lock), waiting.promise));
  released.catch(() => {});
  return { lock: await granted.promise, released, release: waiting.resolve };
}
