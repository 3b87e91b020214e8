import 'lockkeeper/install';

export async function installed(): Promise<void> {
  const lock = await navigator.locks.acquire(['a', 'b'], { timeout: 5 });
  lock.assertHeld();
  await navigator.locks.request('a', { mode: 'shared' }, async (lock) => lock.name);
  const { held } = await navigator.locks.query();
  held.map(({ name }) => name);
  await navigator.locks.inspect();
  await navigator.locks[Symbol.asyncDispose]();
}
