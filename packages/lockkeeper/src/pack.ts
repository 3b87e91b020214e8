/**
 * MessagePack, as far as the protocol uses it: unsigned integers, text, bytes, booleans, nil and
 * arrays.
 */

import { builtin } from './host.js';

/** Up to 2⁶⁴−1: a BigInt where a number would not be exact. */
export type Uint = number | bigint;

/** Text is `string`, bytes are `Uint8Array`, nil is `null`. */
export type Value = Uint | string | Uint8Array | boolean | null | readonly Value[];

/** Bytes that are no value. */
export class Malformed extends Error {}

/** No message of the protocol is as deep. */
const DEPTH = 8;

/** Where a page is simulated, as jsdom does it, the runtime may have to provide it. */
const { TextDecoder } = globalThis.TextDecoder ? globalThis : builtin('node:util');

export const newDecoder = (fatal: boolean): InstanceType<typeof TextDecoder> =>
  new TextDecoder('utf-8', { fatal, ignoreBOM: true });

/**
 * Decodes a part of bytes, unless it is what it was before: in a long list, much is of one client.
 * The last text of each length is remembered, about.
 */
export function remembering(
  decode: (bytes: Uint8Array) => string,
): (bytes: Uint8Array, start: number, length: number) => string {
  const last: { from: Uint8Array; text: string }[] = [];
  return (bytes, start, length) => {
    const place = length % 32;
    const known = last[place];
    if (known?.from.length === length) {
      let i = 0;
      while (i < length && known.from[i] === bytes[start + i]) i++;
      if (i === length) return known.text;
    }
    const from = bytes.slice(start, start + length);
    const text = decode(from);
    last[place] = { from, text };
    return text;
  };
}

const decoder = newDecoder(true);
const textOf = remembering((bytes) => decoder.decode(bytes));

/** What is being written. Nothing else runs meanwhile. */
let output: number[];

/** The bytes of a value: of the forms that it may have, the shortest. */
export function pack(value: Value): Uint8Array<ArrayBuffer> {
  return packAll([value], Infinity)[0]!;
}

/**
 * The bytes of values, one after the other, in pieces of at most `limit` bytes, or of one value
 * that has more.
 */
export function packAll(values: readonly Value[], limit: number): Uint8Array<ArrayBuffer>[] {
  const pieces: Uint8Array<ArrayBuffer>[] = [];
  output = [];
  for (const value of values) {
    const end = output.length;
    write(value);
    if (end > 0 && output.length > limit) pieces.push(new Uint8Array(output.splice(0, end)));
  }
  if (output.length > 0) pieces.push(new Uint8Array(output));
  return pieces;
}

function write(value: Value): void {
  if (typeof value === 'number' || typeof value === 'bigint') writeUint(value);
  else if (typeof value === 'string') {
    const bytes = wtf8(value.replace(/\p{Surrogate}/gu, '\ufffd'));
    writeLength(bytes.length, 32, 0xa0, 0xd9, 1);
    writeBytes(bytes);
  } else if (value === null) writeNumber(0xc0, 1);
  else if (typeof value === 'boolean') writeNumber(value ? 0xc3 : 0xc2, 1);
  else if (isBytes(value)) {
    writeLength(value.length, 0, 0, 0xc4, 1);
    writeBytes(value);
  } else {
    writeLength(value.length, 16, 0x90, 0xdc, 2);
    value.forEach(write);
  }
}

function writeUint(value: Uint): void {
  if (value < 0x1_0000_0000) return writeLength(Number(value), 0x80, 0, 0xcc, 1);
  const all = BigInt(value);
  writeNumber(0xcf, 1);
  writeNumber(Number(all >> 32n), 4);
  writeNumber(Number(all & 0xffff_ffffn), 4);
}

/**
 * A number below `limit` is part of its head. Others follow one: it is `head` for those of `size`
 * bytes, and then counts up.
 */
function writeLength(value: number, limit: number, short: number, head: number, size: number): void {
  if (value < limit) return writeNumber(short | value, 1);
  for (; size < 4 && value >= 256 ** size; size *= 2) head += 1;
  writeNumber(head, 1);
  writeNumber(value, size);
}

/** The most significant byte first. */
function writeNumber(value: number, size: number): void {
  for (let shift = 8 * (size - 1); shift >= 0; shift -= 8) output.push(value >>> shift);
}

function writeBytes(bytes: Uint8Array): void {
  for (const byte of bytes) output.push(byte);
}

/**
 * UTF-8, with three bytes for half of a surrogate pair. For short strings, a `TextEncoder` takes
 * longer.
 */
export function wtf8(text: string): Uint8Array {
  const bytes: number[] = [];
  for (const character of text) {
    const point = character.codePointAt(0)!;
    // How many bytes follow the first, which begins with as many bits and one more.
    const more = point < 0x80 ? 0 : point < 0x800 ? 1 : point < 0x1_0000 ? 2 : 3;
    bytes.push(more === 0 ? point : (0x7f80 >> more) | (point >> (6 * more)));
    for (let i = more - 1; i >= 0; i--) bytes.push(0x80 | ((point >> (6 * i)) & 0x3f));
  }
  return new Uint8Array(bytes);
}

/** Of whatever realm: test tools have several. */
export function isBytes(value: unknown): value is Uint8Array {
  return ArrayBuffer.isView(value);
}

/** What is being read, and how far. */
let input: Uint8Array;
let at = 0;

/** The value of these bytes, all of them. What it has of bytes is a view of them. */
export function unpack(bytes: Uint8Array): Value {
  const [value, ...more] = unpackAll(bytes);
  if (value === undefined || more.length > 0) throw new Malformed('not one value');
  return value;
}

/** The values that these bytes are, one after the other. */
export function unpackAll(bytes: Uint8Array): Value[] {
  input = bytes;
  at = 0;
  const values: Value[] = [];
  while (at < bytes.length) values.push(read(DEPTH));
  return values;
}

function read(depth: number): Value {
  const first = readByte();
  if (first < 0x80) return first;
  if (first >= 0x90 && first < 0xa0) return readArray(first & 0x0f, depth);
  if (first >= 0xa0 && first < 0xc0) return readText(first & 0x1f);
  switch (first) {
    case 0xc0:
      return null;
    case 0xc2:
    case 0xc3:
      return first === 0xc3;
    case 0xc4:
    case 0xc5:
    case 0xc6:
      return readBytes(readNumber(1 << (first - 0xc4)));
    case 0xcc:
    case 0xcd:
    case 0xce:
      return readNumber(1 << (first - 0xcc));
    case 0xcf:
      return readLong();
    case 0xd9:
    case 0xda:
    case 0xdb:
      return readText(readNumber(1 << (first - 0xd9)));
    case 0xdc:
    case 0xdd:
      return readArray(readNumber(2 << (first - 0xdc)), depth);
    default:
      throw new Malformed(`unknown type 0x${first.toString(16)}`);
  }
}

function readLong(): Uint {
  const all = (BigInt(readNumber(4)) << 32n) | BigInt(readNumber(4));
  return all <= Number.MAX_SAFE_INTEGER ? Number(all) : all;
}

function readText(length: number): string {
  const start = pass(length);
  try {
    return textOf(input, start, length);
  } catch {
    throw new Malformed('text that is not UTF-8');
  }
}

function readArray(length: number, depth: number): Value[] {
  // Each element is a byte at least.
  if (depth === 0 || length > input.length - at) throw new Malformed('an array too deep or long');
  const values: Value[] = [];
  while (values.length < length) values.push(read(depth - 1));
  return values;
}

function readByte(): number {
  return input[pass(1)]!;
}

/** A view for each would cost more than all else that is read. */
function readNumber(size: number): number {
  let value = 0;
  for (; size > 0; size--) value = value * 256 + readByte();
  return value;
}

function readBytes(length: number): Uint8Array {
  return input.subarray(pass(length), at);
}

/** Passes over some bytes. Returns where they begin. */
function pass(length: number): number {
  if (length > input.length - at) throw new Malformed('cut off');
  at += length;
  return at - length;
}
