/**
 * Functions of the language and the platform, captured when this module was loaded. User code can
 * replace them later, and test tools do: fake timers, for example, replace `queueMicrotask`. No
 * release depends on such a replacement.
 */

export const { Promise, queueMicrotask } = globalThis;
export const { then } = Promise.prototype;
type Listen = (this: AbortSignal, type: 'abort', listener: () => void) => void;
export const addEventListener: Listen = EventTarget.prototype.addEventListener;
export const removeEventListener: Listen = EventTarget.prototype.removeEventListener;
