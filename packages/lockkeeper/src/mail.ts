/** The letters of the addon. */

/** Letters that are collected in one call. */
const ROOM = 255;

/** The numbers that a transport and the addon pass to each other (`native.ts`). */
export function newNumbers(): Float64Array {
  return new Float64Array(2 + 2 * ROOM);
}

/**
 * Reads all letters. Who hears them runs no code but ours, and makes no requests: nothing overwrites
 * them meanwhile.
 */
export function readLetters(
  numbers: Float64Array,
  collect: () => void,
  hear: (slot: number, news: number, token: number) => void,
): void {
  for (let count = ROOM; count === ROOM; ) {
    collect();
    count = numbers[0]!;
    for (let i = 1; i <= count; i++) {
      const letter = numbers[2 * i]!;
      hear(Math.floor(letter / 8), letter % 8, numbers[2 * i + 1]!);
    }
  }
}
