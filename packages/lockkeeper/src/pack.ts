/** MessagePack, as far as the protocol has it: numbers that count, text, bytes, booleans, nil and arrays. */

import { builtin } from './host.js';

/** Up to 2⁶⁴−1: a BigInt where a number would not be exact. */
export type Uint = number | bigint;

/** Text is `string`, bytes are `Uint8Array`, nil is `null`. */
export type Value = Uint | string | Uint8Array | boolean | null | readonly Value[];

/** Bytes that are no value. */
export class Malformed extends Error {
  override readonly name = 'Malformed';
}

/** No message of the protocol is as deep. */
const DEPTH = 8;

/** Where a page is simulated, as jsdom does it, the runtime may have to provide them. */
const { TextEncoder, TextDecoder } = globalThis.TextEncoder ? globalThis : builtin('node:util');
export const encoder = new TextEncoder();
export const newDecoder = (fatal: boolean): InstanceType<typeof TextDecoder> =>
  new TextDecoder('utf-8', { fatal, ignoreBOM: true });
const decoder = newDecoder(true);

/** What is being written. Nothing else runs meanwhile. */
let output: number[];

/** The bytes of a value: of the forms that it may have, the shortest. */
export function pack(value: Value): Uint8Array<ArrayBuffer> {
  output = [];
  write(value);
  return Uint8Array.from(output);
}

function write(value: Value): void {
  if (typeof value === 'number' || typeof value === 'bigint') writeUint(value);
  else if (typeof value === 'string') {
    const bytes = encoder.encode(value);
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
  const all = BigInt.asUintN(64, BigInt(value));
  writeNumber(0xcf, 1);
  writeNumber(Number(all >> 32n), 4);
  writeNumber(Number(all & 0xffff_ffffn), 4);
}

/** A number below `limit` is part of its head. Others follow one: it is `head` for those of `size` bytes, and then counts up. */
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

/** Of whatever realm: test tools have several. */
export function isBytes(value: unknown): value is Uint8Array {
  return ArrayBuffer.isView(value);
}

/** What is being read, and how far. */
let input: Uint8Array;
let at = 0;

/** The value of these bytes, all of them. What it has of bytes is a view of them. */
export function unpack(bytes: Uint8Array): Value {
  input = bytes;
  at = 0;
  const value = read(DEPTH);
  if (at !== bytes.length) throw new Malformed('bytes after its end');
  return value;
}

function read(depth: number): Value {
  const first = readNumber(1);
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
      throw new Malformed(`0x${first.toString(16)} is no type of the protocol`);
  }
}

function readLong(): Uint {
  const all = (BigInt(readNumber(4)) << 32n) | BigInt(readNumber(4));
  return all <= Number.MAX_SAFE_INTEGER ? Number(all) : all;
}

function readText(length: number): string {
  const bytes = readBytes(length);
  try {
    return decoder.decode(bytes);
  } catch {
    throw new Malformed('text that is not UTF-8');
  }
}

function readArray(length: number, depth: number): Value[] {
  // Each element is a byte at least.
  if (depth === 0 || length > input.length - at) throw new Malformed('an array is too deep, or too long');
  const values: Value[] = [];
  while (values.length < length) values.push(read(depth - 1));
  return values;
}

/** A view for each would cost more than all else that is read. */
function readNumber(size: number): number {
  let value = 0;
  const end = endOf(size);
  while (at < end) value = value * 256 + input[at++]!;
  return value;
}

function readBytes(length: number): Uint8Array {
  return input.subarray(at, (at = endOf(length)));
}

function endOf(length: number): number {
  if (at + length > input.length) throw new Malformed('the message is cut off');
  return at + length;
}
