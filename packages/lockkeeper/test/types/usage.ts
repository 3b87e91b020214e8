/** What TypeScript accepts, and what it does not. Compiled, never run. */

import { connect, createLocks, locks, DeadlockError, LockManager } from 'lockkeeper';
import type { AcquiredLock, BrokenBy, Inspection, Lock, LockMessage, LockManagerSnapshot } from 'lockkeeper';
import { connect as connectOnly } from 'lockkeeper/connect';
import { proposals, requestLock } from 'lockkeeper/proposals';

type Same<A, B> = (<T>() => T extends A ? 1 : 2) extends <T>() => T extends B ? 1 : 2 ? true : false;
/** Compiles if both types are the same. */
function same<A, B>(_: Same<A, B>): void {}

export async function standard(signal: AbortSignal): Promise<void> {
  const total = await locks.request('a', (lock) => (same<typeof lock, Lock>(true), 1));
  same<typeof total, number>(true);
  const awaited = await locks.request('a', { mode: 'shared', signal }, async (lock) => lock.name);
  same<typeof awaited, string>(true);
  await locks.request('a', { ifAvailable: true }, (lock) => same<typeof lock, Lock | null>(true));
  const ifAvailable: boolean = Math.random() > 0.5;
  await locks.request('a', { ifAvailable }, (lock) => same<typeof lock, Lock | null>(true));
  const snapshot = await locks.query();
  same<typeof snapshot, LockManagerSnapshot>(true);
  // @ts-expect-error: there is no such mode.
  await locks.request('a', { mode: 'none' }, () => {});
  // @ts-expect-error: acquire() has it.
  await locks.request('a', { timeout: 5 }, () => {});
  // @ts-expect-error: acquire() takes several names.
  await locks.request(['a', 'b'], () => {});
  // @ts-expect-error: locks are given, not made.
  new LockManager();
}

export async function beyond(ifAvailable: boolean): Promise<void> {
  const lock = await locks.acquire(['a', 'b'], { timeout: 5000, info: 'x' });
  same<typeof lock, AcquiredLock>(true);
  const plain = await locks.acquire({ a: 'shared', b: 'exclusive' });
  same<typeof plain, AcquiredLock>(true);
  const perhaps = await locks.acquire('a', { ifAvailable });
  same<typeof perhaps, AcquiredLock | null>(true);
  const tried = await locks.acquire('a', { ifAvailable: true });
  same<typeof tried, AcquiredLock | null>(true);
  const waited = await locks.acquire('a', { ifAvailable: false, timeout: undefined });
  same<typeof waited, AcquiredLock>(true);
  lock.assertHeld();
  const token: bigint = lock.token;
  const signal: AbortSignal = lock.signal;
  const released: boolean = await lock.release();
  await lock[Symbol.asyncDispose]();
  await locks.acquire('c', { within: lock, deadlock: 'refuse', signal });
  // @ts-expect-error: a misspelt option.
  await locks.acquire('a', { timeOut: 5 });
  // @ts-expect-error: it takes no callback.
  await locks.acquire('a', () => {});
  // @ts-expect-error: nor null.
  await locks.acquire('a', null);
  const inspection: Inspection = await createLocks().inspect();
  const cause: BrokenBy = 'closed';
  void [token, released, inspection, cause];
}

export async function elsewhere(): Promise<void> {
  const managers: LockManager[] = [await connect(), await connect('ws://127.0.0.1/', { token: async () => 'x' })];
  await connectOnly('wss://example.com', { bucket: 'a', token: 'x' });
  // @ts-expect-error: it needs to know where.
  await connectOnly();
  // @ts-expect-error: a misspelt option.
  await connect(undefined, { tokn: 'x' });
  for (const manager of managers) await manager.close();
  const flag = await proposals(managers[0]!).requestFlag('a', 'shared');
  await flag.waitUntil(Promise.resolve());
  await requestLock(['a'], { ifAvailable: true });
}

export function failures(error: unknown, message: LockMessage): void {
  if (error instanceof DeadlockError) error.cycle.map(({ clientId }) => clientId);
  const { id, cause }: { id: number; cause?: unknown } = message;
  void [id, cause];
}
