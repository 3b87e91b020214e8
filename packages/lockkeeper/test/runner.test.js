/** The runner of these tests: what it must not let pass. */

import { chmodSync, copyFileSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { fileURLToPath } from 'node:url';
import { assert, cleanUp, run, test } from './harness.js';

const RUNTIMES = ['node20', 'node22', 'node24', 'node26', 'bun', 'deno'];
const skip = (names) => names.flatMap((name) => ['--skip', name]);

/**
 * A checkout with the runner, one test file and one runtime, Node 24: a shell script. Gives a
 * function that runs the runner there.
 */
function checkout({ file = 'some.test.js', runtime }) {
  const root = mkdtempSync(join(tmpdir(), 'lockkeeper-runner-'));
  cleanUp(() => rmSync(root, { recursive: true }));
  const write = (path, text) => {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), text);
  };
  write('package.json', '{ "type": "module" }');
  write(`packages/lockkeeper/test/${file}`, '');
  const runner = join(root, 'packages/lockkeeper/test/run.js');
  copyFileSync(fileURLToPath(new URL('run.js', import.meta.url)), runner);
  if (runtime) {
    write('node_modules/node24/bin/node', `#!/bin/sh\n${runtime}\n`);
    chmodSync(join(root, 'node_modules/node24/bin/node'), 0o755);
  }
  // A machine without a browser. Whether it is one of CI does not matter.
  const env = { ...process.env, PATH: '/nonexistent', CI: '' };
  return (...args) => run(runner, args, { env });
}

test('a file that passes, in the one runtime that is not skipped, passes', async () => {
  const runner = checkout({ runtime: 'echo "1 passed, 0 failed"' });
  const { code, stdout, stderr } = await runner(...skip(RUNTIMES.filter((name) => name !== 'node24')));
  assert.equal(code, 0, stderr);
  assert.match(stdout, /^some\.test\.js +1$/m);
  assert.match(stdout, /^SKIPPED: deno$/m);
});

test('a file that fails has failed, though it would pass the next time', async () => {
  const runner = checkout({
    runtime: 'test -e "$0.ran" && echo "1 passed, 0 failed" && exit; : > "$0.ran"; echo "0 passed, 1 failed"; exit 1',
  });
  const { code, stdout } = await runner('--runtime', 'node24');
  assert.equal(code, 1);
  assert.match(stdout, /^FAILED: 1 of 1 runs$/m);
});

test('a file that ends without counting its tests has failed', async () => {
  const { code, stdout } = await checkout({ runtime: 'exit 0' })('--runtime', 'node24');
  assert.equal(code, 1);
  assert.match(stdout, /DIED/);
});

test('a runtime that is not installed is a failure', async () => {
  const runner = checkout({ runtime: 'echo "1 passed, 0 failed"' });
  const { code, stdout } = await runner(...skip(['node20', 'node22', 'node26', 'bun']));
  assert.equal(code, 1);
  assert.match(stdout, /^MISSING: deno: .*--skip deno$/m);
});

test('a browser that is not installed is a failure', async () => {
  const runner = checkout({ file: 'browser.test.js', runtime: 'echo "1 passed, 0 failed"' });
  const { code, stdout } = await runner('--runtime', 'node24');
  assert.equal(code, 1);
  assert.match(stdout, /^MISSING: chromium: .*--skip chromium$/m);
});

test('a runner with nothing to run has failed', async () => {
  const runner = checkout({ file: 'browser.test.js', runtime: 'echo "1 passed, 0 failed"' });
  assert.equal((await runner('--runtime', 'node24', '--skip', 'chromium')).code, 1);
  assert.equal((await runner(...skip(RUNTIMES))).code, 1);
});

test('what is skipped has to exist', async () => {
  const { code, stderr } = await checkout({})('--skip', 'buns');
  assert.equal(code, 1);
  assert.match(stderr, /buns/);
});
