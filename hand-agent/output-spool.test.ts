import { createHash, randomBytes } from "node:crypto";
import { mkdtemp, readdir, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, expect, test } from "vitest";
import { createLogger } from "../kit/log.ts";
import { eventually } from "../test/kit/eventually.ts";
import { OutputSpool, type OutputSpoolOptions } from "./output-spool.ts";

const log = createLogger("test", "silent");
const never = new AbortController().signal;
let dir: string;

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), "tendon-spool-"));
});
afterEach(() => rm(dir, { recursive: true, force: true }));

function newSpool(options: Partial<OutputSpoolOptions> = {}): OutputSpool {
  const budget = { usedBytes: 0, maxBytes: 1e9 };
  return new OutputSpool({
    path: join(dir, "out"),
    budget,
    log,
    memoryBytes: 1_000,
    segmentBytes: 4_000,
    ...options,
  });
}

async function readAll(spool: OutputSpool, from: number): Promise<{ start: number; bytes: Buffer }> {
  const parts: Uint8Array[] = [];
  let start: number | undefined;
  for (let offset = from; ; ) {
    const piece = await spool.read(offset, 700, never);
    if (piece === undefined) return { start: start ?? offset, bytes: Buffer.concat(parts) };
    start ??= piece.offset;
    if (piece.offset !== offset && parts.length > 0) throw new Error("a gap");
    parts.push(piece.data);
    offset = piece.offset + piece.data.byteLength;
  }
}

test("bytes from any offset come back exactly, from memory and from files (X2)", async () => {
  const spool = newSpool();
  const bytes = randomBytes(50_000);
  for (let at = 0; at < bytes.length; ) {
    const size = 1 + (at % 977);
    await spool.append(bytes.subarray(at, at + size));
    at += size;
  }
  spool.finish();
  expect(spool.endOffset).toBe(bytes.length);
  for (const from of [0, 1, 999, 4_000, 25_000, 49_999, 50_000]) {
    expect((await readAll(spool, from)).bytes.equals(bytes.subarray(from))).toBe(true);
  }
  await spool.discard();
  expect(await readdir(dir)).toEqual([]);
});

test("a chunk may be reused by its writer", async () => {
  const spool = newSpool();
  const chunk = Buffer.from("aaa");
  await spool.append(chunk);
  chunk.fill("b");
  spool.finish();
  expect((await readAll(spool, 0)).bytes.toString()).toBe("aaa");
});

test("a reader waits for output, and hears of its end", async () => {
  const spool = newSpool();
  const reading = readAll(spool, 0);
  await spool.append(Buffer.from("one "));
  await spool.append(Buffer.from("two"));
  spool.finish();
  expect((await reading).bytes.toString()).toBe("one two");
  const aborted = new AbortController();
  const waiting = newSpool().read(0, 10, aborted.signal);
  aborted.abort(new Error("stop waiting"));
  await expect(waiting).rejects.toThrow("stop waiting");
});

test("with nobody reading, the oldest bytes go and the rest has no gap", async () => {
  const spool = newSpool({ maxBytes: 10_000 });
  const bytes = randomBytes(60_000);
  for (let at = 0; at < bytes.length; at += 500) await spool.append(bytes.subarray(at, at + 500));
  spool.finish();
  expect(spool.firstOffset).toBeGreaterThan(40_000);
  const { start, bytes: kept } = await readAll(spool, 0);
  expect(start).toBe(spool.firstOffset);
  expect(kept.equals(bytes.subarray(start))).toBe(true);
  expect(kept.length).toBeGreaterThan(5_000);
  await spool.discard();
});

test("a connected reader that is behind holds the writer back and loses nothing (X5)", async () => {
  const spool = newSpool({ maxBytes: 10_000 });
  spool.readerAt(0);
  const bytes = randomBytes(40_000);
  let written = 0;
  const writing = (async () => {
    for (let at = 0; at < bytes.length; at += 500) {
      await spool.append(bytes.subarray(at, at + 500));
      written += 500;
    }
    spool.finish();
  })();
  await eventually(() => written >= 10_000);
  const received = createHash("sha256");
  for (let offset = 0; ; ) {
    spool.readerAt(offset);
    expect(written - offset).toBeLessThan(20_000);
    const piece = await spool.read(offset, 2_000, never);
    if (piece === undefined) break;
    expect(piece.offset).toBe(offset);
    received.update(piece.data);
    offset += piece.data.byteLength;
  }
  await writing;
  expect(received.digest("hex")).toBe(createHash("sha256").update(bytes).digest("hex"));
  await spool.discard();
});

test("a held writer goes on when its reader leaves", async () => {
  const spool = newSpool({ maxBytes: 5_000 });
  spool.readerAt(0);
  const writing = (async () => {
    for (let i = 0; i < 40; i++) await spool.append(Buffer.alloc(500));
  })();
  await eventually(() => spool.endOffset > 5_000);
  spool.readerAt(undefined);
  await writing;
  expect(spool.endOffset).toBe(20_000);
  await spool.discard();
});

test("all spools together stay within their budget", async () => {
  const budget = { usedBytes: 0, maxBytes: 20_000 };
  const spools = [1, 2, 3].map((n) => newSpool({ path: join(dir, `out${n}`), budget }));
  for (let i = 0; i < 100; i++) for (const spool of spools) await spool.append(Buffer.alloc(300));
  expect(budget.usedBytes).toBeLessThanOrEqual(24_000);
  for (const spool of spools) await spool.discard();
  expect(budget.usedBytes).toBe(0);
});

test("a disk that takes nothing costs the oldest bytes, not the call", async () => {
  const spool = newSpool({ path: join(dir, "missing", "out") });
  for (let i = 0; i < 20; i++) await spool.append(Buffer.from(`${i}`.padEnd(400)));
  await spool.append(Buffer.from("the end"));
  spool.finish();
  const { start, bytes } = await readAll(spool, 0);
  expect(start).toBeGreaterThan(0);
  expect(start + bytes.length).toBe(spool.endOffset);
  expect(bytes.toString()).toContain("the end");
});
