import lockkeeper = require('lockkeeper');

export const held: Promise<number> = lockkeeper.locks.request('a', (lock) => lock.name.length);
