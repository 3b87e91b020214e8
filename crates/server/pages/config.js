// The daemon that serves this page is the one that has the locks. It is waited for if it is not there.
globalThis.lockkeeper = { url: location.origin.replace(/^http/, 'ws'), retry: true };
