import { locks } from 'lockkeeper';

export async function scoped(): Promise<string> {
  await using lock = await locks.acquire('a');
  return lock.name;
}
