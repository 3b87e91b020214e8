/** Notifications of the addon about requests of this thread. */

/** Notifications that are collected in one call. */
const ROOM = 255;

/** The array through which a transport and the addon pass arguments and results (`native.ts`). */
export function newCallBuffer(): Float64Array {
  return new Float64Array(2 + 2 * ROOM);
}

/**
 * Reads all notifications. The callback runs only internal code, and makes no requests, so nothing
 * overwrites the buffer in the meantime.
 */
export function readNotifications(
  buffer: Float64Array,
  collect: () => void,
  onNotification: (slot: number, news: number, token: number) => void,
): void {
  for (let count = ROOM; count === ROOM; ) {
    collect();
    count = buffer[0]!;
    for (let i = 1; i <= count; i++) {
      const notification = buffer[2 * i]!;
      onNotification(Math.floor(notification / 8), notification % 8, buffer[2 * i + 1]!);
    }
  }
}
