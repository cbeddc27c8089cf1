/**
 * Reads a tar archive as it comes: ustar, with the long names and sizes of pax and GNU tar. At most one block, one
 * extension and one piece of the source are held in memory.
 */
import {
  MAX_TAR_EXTENSION_BYTES,
  MAX_TAR_NAME_BYTES,
  TAR_BLOCK_BYTES,
  type TarEntry,
  TarError,
  told,
} from "./tar-entry.ts";

export interface TarItem {
  readonly entry: TarEntry;
  /** To be read before the next item is asked for; what is left of it is then passed over. */
  readonly content: AsyncIterable<Uint8Array>;
}

/**
 * The entries in order. Reads the source to its end, and throws TarError when it ends before the archive does or cannot
 * be understood; an error of the source itself is passed on.
 */
export async function* readTar(source: AsyncIterable<Uint8Array>): AsyncGenerator<TarItem> {
  const bytes = new ByteReader(source);
  let extension: Extension = {};
  for (;;) {
    const block = await bytes.exactly(TAR_BLOCK_BYTES);
    if (block.every((byte) => byte === 0)) break;
    const header = parseHeader(block);
    switch (header.flag) {
      case "x":
        extension = { ...extension, ...paxOf(await extensionOf(bytes, header.size)) };
        continue;
      case "g":
        await extensionOf(bytes, header.size);
        continue;
      case "L":
        extension = { ...extension, path: textOf(await extensionOf(bytes, header.size)) };
        continue;
      case "K":
        extension = { ...extension, linkPath: textOf(await extensionOf(bytes, header.size)) };
        continue;
    }
    const entry = entryOf(header, extension);
    extension = {};
    const content = contentOf(bytes, entry.size);
    yield { entry, content };
    for await (const _ of content);
    await bytes.skip(paddingOf(entry.size));
  }
  await bytes.drain();
}

interface Extension {
  path?: string;
  linkPath?: string;
  size?: number;
}

interface Header {
  readonly name: string;
  readonly flag: string;
  readonly size: number;
  readonly mode: number;
  readonly mtimeMs: number;
  readonly linkTarget: string;
}

const TYPES: Readonly<Record<string, TarEntry["type"]>> = {
  "0": "file",
  "\0": "file",
  "7": "file",
  "1": "hardlink",
  "2": "symlink",
  "5": "directory",
};

function parseHeader(block: Buffer): Header {
  const stated = numberOf(block, 148, 8);
  let sum = 0;
  for (const [index, byte] of block.entries()) sum += index >= 148 && index < 156 ? 32 : byte;
  if (sum !== stated) throw new TarError("the bytes are no tar archive: a header's checksum is wrong");
  const isUstar = block.toString("latin1", 257, 262) === "ustar";
  // GNU tar, which writes "ustar  ", keeps other things where the prefix is.
  const prefix = isUstar && block[262] === 0 ? textOf(block.subarray(345, 500)) : "";
  const name = textOf(block.subarray(0, 100));
  return {
    name: prefix === "" ? name : `${prefix}/${name}`,
    flag: String.fromCharCode(block[156]!),
    size: numberOf(block, 124, 12),
    mode: numberOf(block, 100, 8) & 0o777,
    mtimeMs: numberOf(block, 136, 12) * 1_000,
    linkTarget: textOf(block.subarray(157, 257)),
  };
}

function entryOf(header: Header, extension: Extension): TarEntry {
  const name = extension.path ?? header.name;
  // Old archives mark directories by their names alone.
  const type = name.endsWith("/") && TYPES[header.flag] === "file" ? "directory" : TYPES[header.flag];
  if (type === undefined)
    throw new TarError(`${told(name)} is no file, directory or link (type ${JSON.stringify(header.flag)})`);
  const size = type === "file" ? (extension.size ?? header.size) : 0;
  return {
    name: name === "/" ? name : name.replace(/\/+$/, "") || ".",
    type,
    size,
    mode: header.mode,
    mtimeMs: header.mtimeMs,
    linkTarget: extension.linkPath ?? header.linkTarget,
  };
}

/** Octal digits, or the base-256 number of GNU tar. */
function numberOf(block: Buffer, offset: number, length: number): number {
  const field = block.subarray(offset, offset + length);
  if ((field[0]! & 0x80) !== 0) {
    let value = field[0]! & 0x7f;
    for (const byte of field.subarray(1)) value = value * 256 + byte;
    if (!Number.isSafeInteger(value)) throw new TarError("a header's number is too large");
    return value;
  }
  const digits = field.toString("latin1").replace(/\0.*$/s, "").trim();
  if (!/^[0-7]*$/.test(digits)) throw new TarError("the bytes are no tar archive: a header's number is none");
  return digits === "" ? 0 : Number.parseInt(digits, 8);
}

function textOf(field: Buffer): string {
  const end = field.indexOf(0);
  return field.toString("utf8", 0, end === -1 ? field.length : end);
}

/** Records of the form "<length> <key>=<value>\n". */
function paxOf(bytes: Buffer): Extension {
  const extension: Extension = {};
  for (let at = 0; at < bytes.length; ) {
    const space = bytes.indexOf(32, at);
    const length = space === -1 ? Number.NaN : Number(bytes.toString("latin1", at, space));
    if (!(length > 0) || at + length > bytes.length || bytes[at + length - 1] !== 10)
      throw new TarError("an extended header cannot be understood");
    const record = bytes.toString("utf8", space + 1, at + length - 1);
    const equals = record.indexOf("=");
    const [key, value] = [record.slice(0, equals), record.slice(equals + 1)];
    if (key === "path") extension.path = value;
    else if (key === "linkpath") extension.linkPath = value;
    else if (key === "size") {
      const size = Number(value);
      if (!Number.isSafeInteger(size) || size < 0)
        throw new TarError("an extended header's size cannot be understood");
      extension.size = size;
    }
    at += length;
  }
  return extension;
}

async function extensionOf(bytes: ByteReader, size: number): Promise<Buffer> {
  if (size > MAX_TAR_EXTENSION_BYTES)
    throw new TarError(`an extended header has more than ${MAX_TAR_EXTENSION_BYTES} bytes`);
  const content = Buffer.from(await bytes.exactly(size));
  await bytes.skip(paddingOf(size));
  if (content.indexOf(0) > MAX_TAR_NAME_BYTES) throw new TarError("a name is too long");
  return content;
}

function paddingOf(size: number): number {
  return (TAR_BLOCK_BYTES - (size % TAR_BLOCK_BYTES)) % TAR_BLOCK_BYTES;
}

/** Ends once so many bytes were given; iterating again goes on where the last loop has stopped. */
function contentOf(bytes: ByteReader, size: number): AsyncIterable<Uint8Array> {
  let left = size;
  return {
    async *[Symbol.asyncIterator]() {
      while (left > 0) {
        const piece = await bytes.atMost(left);
        left -= piece.length;
        yield piece;
      }
    },
  };
}

class ByteReader {
  private readonly source: AsyncIterator<Uint8Array>;
  private held: Buffer = Buffer.alloc(0);

  constructor(source: AsyncIterable<Uint8Array>) {
    this.source = source[Symbol.asyncIterator]();
  }

  /** At least one byte, and no more than what one piece of the source has. */
  async atMost(bytes: number): Promise<Buffer> {
    while (this.held.length === 0) if (!(await this.more())) throw new TarError("the archive is cut off");
    const piece = this.held.subarray(0, bytes);
    this.held = this.held.subarray(piece.length);
    return piece;
  }

  async exactly(bytes: number): Promise<Buffer> {
    while (this.held.length < bytes) if (!(await this.more())) throw new TarError("the archive is cut off");
    const piece = this.held.subarray(0, bytes);
    this.held = this.held.subarray(bytes);
    return piece;
  }

  async skip(bytes: number): Promise<void> {
    for (let left = bytes; left > 0; ) left -= (await this.atMost(left)).length;
  }

  async drain(): Promise<void> {
    this.held = Buffer.alloc(0);
    while (await this.more()) this.held = Buffer.alloc(0);
  }

  private async more(): Promise<boolean> {
    const next = await this.source.next();
    if (next.done) return false;
    const piece = Buffer.from(next.value.buffer, next.value.byteOffset, next.value.byteLength);
    this.held = this.held.length === 0 ? piece : Buffer.concat([this.held, piece]);
    return true;
  }
}
