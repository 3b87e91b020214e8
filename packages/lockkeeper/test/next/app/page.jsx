import { locks } from 'lockkeeper';

export const dynamic = 'force-dynamic';

export default async function Page() {
  return <p>{await locks.request('page', (lock) => `${lock.name} is locked`)}</p>;
}
