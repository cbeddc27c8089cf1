/** Postgres' own log: a file beside the database, kept below a bound by copying it aside and cutting it. */
import { copyFile, open, stat, truncate } from "node:fs/promises";

const LOG_LIMIT_BYTES = 10 * 1024 * 1024;
const TAIL_BYTES = 8 * 1024;

/** Cuts a log above the limit; the part before is kept once, as `<path>.1`. Postgres appends, so it may go on writing meanwhile. */
export async function boundLog(path: string, limitBytes: number = LOG_LIMIT_BYTES): Promise<void> {
  if ((await sizeOf(path)) <= limitBytes) return;
  await copyFile(path, `${path}.1`);
  await truncate(path, 0);
}

export async function sizeOf(path: string): Promise<number> {
  return (await stat(path).catch(() => undefined))?.size ?? 0;
}

/** What was written from `fromBytes` on, at most its last few KiB. */
export async function readLogFrom(path: string, fromBytes: number): Promise<string> {
  const end = await sizeOf(path);
  const start = Math.max(Math.min(fromBytes, end), end - TAIL_BYTES);
  const handle = await open(path, "r").catch(() => undefined);
  if (!handle) return "";
  try {
    const { bytesRead, buffer } = await handle.read(Buffer.alloc(end - start), 0, end - start, start);
    return buffer.toString("utf8", 0, bytesRead);
  } finally {
    await handle.close();
  }
}
