#!/usr/bin/env node
// The command `lockkeeper` of this platform, in the place of this process where that can be.

import { spawn } from 'node:child_process';
import { constants } from 'node:os';
import platform from '../dist/cjs/platform.cjs';

let program;
try {
  program = platform.platformFiles().daemon;
} catch (error) {
  console.error(`lockkeeper: ${error.message}`);
  process.exit(69);
}
if (program === undefined) {
  const here = `${process.platform}-${process.arch}`;
  console.error(`lockkeeper: the command is not built for ${here}. connect('ws://…') reaches a daemon on another machine`);
  process.exit(69);
}
const args = process.argv.slice(2);
try {
  process.execve?.(program, ['lockkeeper', ...args], process.env);
} catch {
  // There is such a function, and it does not work here. Go on as if there were none.
}
const child = spawn(program, args, { stdio: 'inherit' });
// What is sent to this process is meant for the command. What a terminal sends goes to both.
for (const signal of ['SIGTERM', 'SIGUSR1', 'SIGUSR2']) process.on(signal, () => child.kill(signal));
for (const signal of ['SIGINT', 'SIGQUIT', 'SIGHUP']) process.on(signal, () => process.stdin.isTTY || child.kill(signal));
child.on('error', (error) => {
  console.error(`lockkeeper: ${program}: ${error.message}`);
  process.exit(126);
});
child.on('exit', (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
