import { connect } from 'lockkeeper';
import { WebSocket as OfPackage } from 'ws';

export async function sockets(): Promise<void> {
  await connect('ws://127.0.0.1/', { WebSocket: OfPackage });
  await connect('ws://127.0.0.1/', { WebSocket: globalThis.WebSocket });
  // @ts-expect-error: it is not a class.
  await connect('ws://127.0.0.1/', { WebSocket: new OfPackage('ws://127.0.0.1/') });
}
