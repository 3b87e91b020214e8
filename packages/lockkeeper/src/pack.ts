/** MessagePack, as far as the protocol has it: numbers that count, text, bytes, booleans, nil and arrays. */

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

const encoder = new TextEncoder();
const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/** The bytes of a value: of the forms that it may have, the shortest. */
export function pack(value: Value): Uint8Array<ArrayBuffer> {
  const writer = new Writer();
  writer.value(value);
  return writer.bytes.slice(0, writer.length);
}

/** The value of these bytes, all of them. What it has of bytes is a view of them. */
export function unpack(bytes: Uint8Array): Value {
  const reader = new Reader(bytes);
  const value = reader.value(DEPTH);
  if (reader.at !== bytes.length) throw new Malformed('bytes after its end');
  return value;
}

class Writer {
  bytes = new Uint8Array(64);
  length = 0;

  value(value: Value): void {
    if (typeof value === 'number' || typeof value === 'bigint') this.uint(value);
    else if (typeof value === 'string') this.text(encoder.encode(value));
    else if (value instanceof Uint8Array) this.binary(value);
    else if (value === null) this.number(0xc0, 1);
    else if (typeof value === 'boolean') this.number(value ? 0xc3 : 0xc2, 1);
    else this.array(value);
  }

  private uint(value: Uint): void {
    if (value < 0x80) this.number(Number(value), 1);
    else if (value < 0x100) this.headed(0xcc, Number(value), 1);
    else if (value < 0x1_0000) this.headed(0xcd, Number(value), 2);
    else if (value < 0x1_0000_0000) this.headed(0xce, Number(value), 4);
    else {
      const all = BigInt.asUintN(64, BigInt(value));
      this.headed(0xcf, Number(all >> 32n), 4);
      this.number(Number(all & 0xffff_ffffn), 4);
    }
  }

  private text(bytes: Uint8Array): void {
    const { length } = bytes;
    if (length < 32) this.number(0xa0 | length, 1);
    else if (length < 0x100) this.headed(0xd9, length, 1);
    else if (length < 0x1_0000) this.headed(0xda, length, 2);
    else this.headed(0xdb, length, 4);
    this.raw(bytes);
  }

  private binary(bytes: Uint8Array): void {
    const { length } = bytes;
    if (length < 0x100) this.headed(0xc4, length, 1);
    else if (length < 0x1_0000) this.headed(0xc5, length, 2);
    else this.headed(0xc6, length, 4);
    this.raw(bytes);
  }

  private array(values: readonly Value[]): void {
    const { length } = values;
    if (length < 16) this.number(0x90 | length, 1);
    else if (length < 0x1_0000) this.headed(0xdc, length, 2);
    else this.headed(0xdd, length, 4);
    for (const value of values) this.value(value);
  }

  private headed(head: number, value: number, size: number): void {
    this.number(head, 1);
    this.number(value, size);
  }

  /** The most significant byte first. */
  private number(value: number, size: number): void {
    this.reserve(size);
    for (let shift = 8 * (size - 1); shift >= 0; shift -= 8) this.bytes[this.length++] = value >>> shift;
  }

  private raw(bytes: Uint8Array): void {
    this.reserve(bytes.length);
    this.bytes.set(bytes, this.length);
    this.length += bytes.length;
  }

  private reserve(more: number): void {
    if (this.length + more <= this.bytes.length) return;
    const grown = new Uint8Array(Math.max(2 * this.bytes.length, this.length + more));
    grown.set(this.bytes);
    this.bytes = grown;
  }
}

class Reader {
  at = 0;

  constructor(private readonly bytes: Uint8Array) {}

  value(depth: number): Value {
    const first = this.number(1);
    if (first < 0x80) return first;
    if (first >= 0x90 && first < 0xa0) return this.array(first & 0x0f, depth);
    if (first >= 0xa0 && first < 0xc0) return this.text(first & 0x1f);
    switch (first) {
      case 0xc0:
        return null;
      case 0xc2:
      case 0xc3:
        return first === 0xc3;
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return this.raw(this.number(1 << (first - 0xc4)));
      case 0xcc:
      case 0xcd:
      case 0xce:
        return this.number(1 << (first - 0xcc));
      case 0xcf:
        return this.long();
      case 0xd9:
      case 0xda:
      case 0xdb:
        return this.text(this.number(1 << (first - 0xd9)));
      case 0xdc:
      case 0xdd:
        return this.array(this.number(2 << (first - 0xdc)), depth);
      default:
        throw new Malformed(`0x${first.toString(16)} is of no type that the protocol has`);
    }
  }

  private long(): Uint {
    const all = (BigInt(this.number(4)) << 32n) | BigInt(this.number(4));
    return all <= Number.MAX_SAFE_INTEGER ? Number(all) : all;
  }

  private text(length: number): string {
    try {
      return decoder.decode(this.raw(length));
    } catch (error) {
      throw error instanceof Malformed ? error : new Malformed('text that is not UTF-8');
    }
  }

  private array(length: number, depth: number): Value[] {
    if (depth === 0) throw new Malformed('an array is too deep');
    // Each element is a byte at least.
    if (length > this.bytes.length - this.at) throw new Malformed('an array is longer than the message');
    const values: Value[] = [];
    for (let i = 0; i < length; i++) values.push(this.value(depth - 1));
    return values;
  }

  private number(size: number): number {
    const end = this.at + size;
    if (end > this.bytes.length) throw new Malformed('the message is cut off');
    let value = 0;
    while (this.at < end) value = value * 256 + this.bytes[this.at++]!;
    return value;
  }

  private raw(length: number): Uint8Array {
    const end = this.at + length;
    if (end > this.bytes.length) throw new Malformed('the message is cut off');
    const bytes = this.bytes.subarray(this.at, end);
    this.at = end;
    return bytes;
  }
}
