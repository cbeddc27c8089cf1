/**
 * What a process holds in its memory, as a core dump would have it: all that it can write to, heap and stacks, and what was left
 * there by work that is done. Linux alone, and only of processes that the reader may trace (its own children, or as root).
 */
import { closeSync, openSync, readFileSync, readSync } from "node:fs";

/** What is read at once, with so much of the piece before that nothing is cut in two. */
const PIECE = 4 * 1024 * 1024;
const OVERLAP = 256;

/** Calls `take` with piece after piece; pieces overlap, so that a word of up to 256 bytes is whole in one of them. */
export function readMemory(pid: number, take: (piece: Buffer) => void): void {
  const file = openSync(`/proc/${pid}/mem`, "r");
  const buffer = Buffer.alloc(PIECE + OVERLAP);
  try {
    for (const { from, to } of writableRanges(pid)) {
      for (let at = from; at < to; at += PIECE) {
        const wanted = Math.min(PIECE + OVERLAP, to - at);
        const length = readAt(file, buffer, wanted, at);
        if (length > 0) take(buffer.subarray(0, length));
      }
    }
  } finally {
    closeSync(file);
  }
}

function writableRanges(pid: number): { from: number; to: number }[] {
  const lines = readFileSync(`/proc/${pid}/maps`, "latin1").split("\n");
  return lines.flatMap((line) => {
    const match = /^([0-9a-f]+)-([0-9a-f]+) rw/.exec(line);
    if (match === null || line.includes("[vvar]")) return [];
    return [{ from: Number.parseInt(match[1]!, 16), to: Number.parseInt(match[2]!, 16) }];
  });
}

/** What was given back meanwhile cannot be read, and holds nothing. */
function readAt(file: number, buffer: Buffer, length: number, position: number): number {
  try {
    return readSync(file, buffer, 0, length, position);
  } catch (error) {
    const { code = "" } = error as NodeJS.ErrnoException;
    if (["EIO", "EFAULT", "ENXIO"].includes(code)) return 0;
    throw error;
  }
}
