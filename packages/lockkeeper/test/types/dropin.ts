import 'lockkeeper/navigator';

// What the drop-in reads when it is loaded, in a window and in a worker.
self.lockkeeper = { url: ['wss://a.example', 'wss://b.example'], token: async () => 'x', retry: true };
globalThis.lockkeeper = { url: 'wss://a.example', tokenUrl: '/lock-token', bucket: 'a' };

export const status: string = navigator.locks.status;
