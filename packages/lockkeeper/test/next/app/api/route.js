import { connect, locks } from 'lockkeeper';

export const dynamic = 'force-dynamic';

/**
 * One lock of this process, and one of the daemon, which is started with the binary of the package.
 */
export async function GET() {
  const daemon = await connect();
  const names = [await locks.request('a', (lock) => lock.name), await daemon.request('b', (lock) => lock.name)];
  await daemon.close();
  return Response.json(names);
}
