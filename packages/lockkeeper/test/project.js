/**
 * Fresh projects, which have installed the packages as npm packs them. Tools are those of this
 * repository.
 */

import { execFile } from 'node:child_process';
import { cpSync, mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import platform from '../dist/cjs/platform.cjs';
import { assert, cleanUp } from './harness.js';

const root = fileURLToPath(new URL('..', import.meta.url));
export const modules = join(root, '../../node_modules');

const template = mkdtempSync(join(tmpdir(), 'lockkeeper-packed-'));
process.on('exit', () => rmSync(template, { recursive: true, force: true }));
let tarball;
let installing;

/** Runs a program to its end, for a minute at most. */
export function execute(program, args, options = {}) {
  return new Promise((resolve) => {
    const env = { ...process.env, NO_COLOR: '1', CI: '1', ...options.env };
    execFile(program, args, { timeout: 60_000, maxBuffer: 2 ** 26, ...options, env }, (error, stdout, stderr) =>
      resolve({ code: error ? (error.code ?? error.signal) : 0, stdout, stderr }),
    );
  });
}

/** Packs the packages and installs them, with no network: once for all projects. */
function install() {
  return (installing ??= (async () => {
    const npm = async (...args) => {
      const done = await execute('npm', [...args, '--no-audit', '--no-fund', '--offline'], { cwd: template });
      assert.equal(done.code, 0, done.stderr);
      return done.stdout;
    };
    const folders = [root, join(root, 'npm', platform.targetOf())];
    const packed = JSON.parse(await npm('pack', '--json', '--ignore-scripts', ...folders));
    const files = Object.values(packed).map(({ filename }) => join(template, filename));
    tarball = files.find((file) => /lockkeeper-\d/.test(file));
    writeFileSync(join(template, 'package.json'), '{ "private": true }');
    await npm('install', ...files);
  })());
}

/** What `npm pack` makes of this package. */
export async function packed() {
  await install();
  return tarball;
}

/**
 * A project of these files, by path. `tools` are the packages that it uses beside this one, each as
 * it is installed here, or that and its name there.
 */
export async function project(files, tools = []) {
  await install();
  const dir = mkdtempSync(join(tmpdir(), 'lockkeeper-project-'));
  cleanUp(() => rmSync(dir, { recursive: true, force: true }));
  cpSync(join(template, 'node_modules'), join(dir, 'node_modules'), { recursive: true, verbatimSymlinks: true });
  for (const [tool, name = tool] of tools.map((tool) => [tool].flat())) {
    mkdirSync(dirname(join(dir, 'node_modules', name)), { recursive: true });
    symlinkSync(join(modules, tool), join(dir, 'node_modules', name));
  }
  for (const [path, text] of Object.entries({ 'package.json': '{ "private": true }', ...files })) {
    mkdirSync(dirname(join(dir, path)), { recursive: true });
    writeFileSync(join(dir, path), text);
  }
  return {
    dir,
    /** Runs a file of the project, or of a tool. */
    node: (file, ...args) => execute(process.execPath, [join(dir, file), ...args], { cwd: dir }),
    /** The same, which must succeed. Gives what it printed. */
    async prints(file, ...args) {
      const { code, stdout, stderr } = await execute(process.execPath, [join(dir, file), ...args], { cwd: dir });
      assert.equal(code, 0, `${file}: ${stdout}${stderr}`);
      return stdout.trim();
    },
  };
}

/** The `node_modules` in which the packages are installed, and nothing else. */
export async function installed() {
  await install();
  return join(template, 'node_modules');
}
