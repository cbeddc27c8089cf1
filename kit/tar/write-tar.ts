/** Writes a tar archive piece by piece: ustar headers, pax records where those are too small. */
import { TAR_BLOCK_BYTES, type TarEntry } from "./tar-entry.ts";

/** What follows the last entry. */
export const TAR_END: Uint8Array = Buffer.alloc(2 * TAR_BLOCK_BYTES);

const MAX_FIELD_BYTES = 100;
const MAX_OCTAL_SIZE = 8 ** 11 - 1;

/** The header of an entry; a file's bytes and `tarPadding` follow. A directory other than "." gets "/" at its end. */
export function tarHeader(entry: TarEntry): Uint8Array {
  const name = entry.type === "directory" ? `${entry.name}/` : entry.name;
  const records: string[] = [];
  if (Buffer.byteLength(name) > MAX_FIELD_BYTES) records.push(paxRecord("path", name));
  if (Buffer.byteLength(entry.linkTarget) > MAX_FIELD_BYTES)
    records.push(paxRecord("linkpath", entry.linkTarget));
  if (entry.size > MAX_OCTAL_SIZE) records.push(paxRecord("size", String(entry.size)));
  const header = ustarHeader({ ...entry, name, flag: FLAGS[entry.type] });
  if (records.length === 0) return header;
  const extension = Buffer.from(records.join(""), "utf8");
  const before = { name: "pax", flag: "x", size: extension.length, mode: 0o644, mtimeMs: 0, linkTarget: "" };
  return Buffer.concat([ustarHeader(before), extension, tarPadding(extension.length), header]);
}

/** Zeros up to the next block. */
export function tarPadding(size: number): Uint8Array {
  return Buffer.alloc((TAR_BLOCK_BYTES - (size % TAR_BLOCK_BYTES)) % TAR_BLOCK_BYTES);
}

const FLAGS = { file: "0", hardlink: "1", symlink: "2", directory: "5" } as const;

function ustarHeader(facts: Omit<TarEntry, "type"> & { readonly flag: string }): Buffer {
  const block = Buffer.alloc(TAR_BLOCK_BYTES);
  block.set(Buffer.from(facts.name, "utf8").subarray(0, MAX_FIELD_BYTES), 0);
  octal(block, facts.mode & 0o777, 100, 8);
  octal(block, 0, 108, 8);
  octal(block, 0, 116, 8);
  octal(block, Math.min(facts.size, MAX_OCTAL_SIZE), 124, 12);
  octal(block, Math.max(0, Math.floor(facts.mtimeMs / 1_000)), 136, 12);
  block.write("        ", 148, "latin1");
  block.write(facts.flag, 156, "latin1");
  block.set(Buffer.from(facts.linkTarget, "utf8").subarray(0, MAX_FIELD_BYTES), 157);
  block.write("ustar\u000000", 257, "latin1");
  const sum = block.reduce((total, byte) => total + byte, 0);
  block.write(`${sum.toString(8).padStart(6, "0")}\0 `, 148, "latin1");
  return block;
}

function octal(block: Buffer, value: number, offset: number, length: number): void {
  block.write(`${value.toString(8).padStart(length - 1, "0")}\0`, offset, "latin1");
}

/** The record's own length counts into its length. */
function paxRecord(key: string, value: string): string {
  const rest = ` ${key}=${value}\n`;
  const restBytes = Buffer.byteLength(rest);
  let length = restBytes + 1;
  while (restBytes + String(length).length !== length) length = restBytes + String(length).length;
  return `${length}${rest}`;
}
