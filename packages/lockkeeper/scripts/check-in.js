/**
 * Copies the drop-in to where the daemon's examples have it: what is in the binary is checked in,
 * and needs no npm.
 */

import { copyFileSync } from 'node:fs';

copyFileSync(
  new URL('../dist/navigator.min.js', import.meta.url),
  new URL('../../../crates/server/pages/navigator.min.js', import.meta.url),
);
