import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { ExecutionResultSchema } from "../../proto/gen/tendon/v1/hand_pb.js";
import { eventually } from "../../test/kit/eventually.ts";
import { promised } from "../../test/kit/promised.ts";
import type { ExecutionRecord } from "../store/executions.ts";
import { LiveExecution, type OutputPiece, RING_BYTES } from "./live-execution.ts";

const PIECE = 64 * 1024;
const STALL_MS = 60;

function liveExecution(): LiveExecution {
  return new LiveExecution({
    execution: { executionKey: "sesn_1/sevt_1" } as ExecutionRecord,
    clock: systemClock,
    readerStallMs: STALL_MS,
    previews: undefined,
  });
}

const result = create(ExecutionResultSchema, { content: "[]" });
const never = new AbortController().signal;

/** Bytes whose value tells their offset. */
function bytesAt(offset: number, length: number): Uint8Array {
  return Uint8Array.from({ length }, (_, index) => (offset + index) % 251);
}

async function readAll(pieces: AsyncIterable<OutputPiece>): Promise<{ from: number; bytes: Buffer }> {
  const read: Buffer[] = [];
  let from = -1;
  let end = -1;
  for await (const { offset, data } of pieces) {
    if (from < 0) from = offset;
    else expect(offset).toBe(end);
    end = offset + data.length;
    read.push(Buffer.from(data));
  }
  return { from, bytes: Buffer.concat(read) };
}

test("readers get every byte once from where they ask, also when they come late (X2)", async () => {
  const live = liveExecution();
  const stream = live.openStream(0);
  const early = readAll(live.read(0, never));
  await live.accept(stream, 0, bytesAt(0, 1_000));
  const late = readAll(live.read(300, never));
  await live.accept(stream, 1_000, bytesAt(1_000, 500));
  live.finish(result);
  expect(await early).toEqual({ from: 0, bytes: Buffer.from(bytesAt(0, 1_500)) });
  expect(await late).toEqual({ from: 300, bytes: Buffer.from(bytesAt(300, 1_200)) });
  expect(await live.done).toBe(result);
});

test("output that comes again after a reconnect is taken once; a gap is refused (R11)", async () => {
  const live = liveExecution();
  const first = live.openStream(0);
  const read = readAll(live.read(0, never));
  await live.accept(first, 0, bytesAt(0, 100));
  const second = live.openStream(0);
  expect(first.signal.aborted).toBe(true);
  expect(second.resumeOffset).toBe(100);
  await live.accept(second, 50, bytesAt(50, 100));
  await expect(live.accept(first, 150, bytesAt(150, 10))).rejects.toMatchObject({ reason: "UNAVAILABLE" });
  await expect(live.accept(second, 151, bytesAt(151, 10))).rejects.toMatchObject({ reason: "INVALID_FIELD" });
  live.finish(result);
  expect((await read).bytes).toEqual(Buffer.from(bytesAt(0, 150)));
});

test("without readers a flood goes through, and no more than the ring is kept (X5)", async () => {
  const live = liveExecution();
  const stream = live.openStream(0);
  const chunk = new Uint8Array(PIECE);
  for (let offset = 0; offset < 64 * RING_BYTES; offset += PIECE) {
    await live.accept(stream, offset, chunk);
    expect(live.bufferedBytes).toBeLessThanOrEqual(RING_BYTES + PIECE);
  }
});

test("a slow reader holds its own execution up, and loses nothing while it goes on (X5)", async () => {
  const live = liveExecution();
  const stream = live.openStream(0);
  const reader = live.read(0, never);
  await live.accept(stream, 0, bytesAt(0, PIECE));
  expect((await reader.next()).value?.offset).toBe(0);
  let taken = PIECE;
  const flood = (async () => {
    for (; taken < 3 * RING_BYTES; taken += PIECE) await live.accept(stream, taken, bytesAt(taken, PIECE));
    live.finish(result);
  })();
  await eventually(() => taken >= RING_BYTES);
  expect(taken).toBeLessThanOrEqual(RING_BYTES + PIECE);
  let end = PIECE;
  for (let next = await reader.next(); !next.done; next = await reader.next()) {
    expect(next.value.offset).toBe(end);
    end += next.value.data.length;
    expect(
      Buffer.from(next.value.data).equals(Buffer.from(bytesAt(next.value.offset, next.value.data.length))),
    ).toBe(true);
  }
  await flood;
  expect(end).toBe(3 * RING_BYTES);
});

test("a reader that stands still is cut loose after the stall bound, also beside one that reads on (X5)", async () => {
  const live = liveExecution();
  const stream = live.openStream(0);
  const stuck = live.read(0, never);
  const lively = readAll(live.read(0, never));
  await live.accept(stream, 0, new Uint8Array(PIECE));
  await stuck.next();
  const started = performance.now();
  for (let offset = PIECE; offset < 4 * RING_BYTES; offset += PIECE) {
    await live.accept(stream, offset, new Uint8Array(PIECE));
  }
  live.finish(result);
  expect(performance.now() - started).toBeLessThan(promised(STALL_MS + 1_000));
  expect((await lively).bytes.length).toBe(4 * RING_BYTES);
  await expect(stuck.next()).rejects.toMatchObject({
    reason: "UNAVAILABLE",
    metadata: { from_offset: String(PIECE) },
  });
});

test("a reader that needs what the ring has lost makes the agent send it again (X2)", async () => {
  const live = liveExecution();
  const stream = live.openStream(0);
  const total = 2 * RING_BYTES;
  for (let offset = 0; offset < total; offset += PIECE)
    await live.accept(stream, offset, bytesAt(offset, PIECE));
  const ahead = readAll(live.read(total, never));
  const back = readAll(live.read(10, never));
  expect(stream.signal.aborted).toBe(true);
  const again = live.openStream(0);
  expect(again.resumeOffset).toBe(10);
  for (let offset = 10; offset < total + 500; offset += PIECE) {
    const length = Math.min(PIECE, total + 500 - offset);
    await live.accept(again, offset, bytesAt(offset, length));
  }
  live.finish(result);
  expect((await back).bytes.equals(Buffer.from(bytesAt(10, total + 490)))).toBe(true);
  expect(await ahead).toEqual({ from: total, bytes: Buffer.from(bytesAt(total, 500)) });
});

test("readers leave when they are called off or sent away, and the execution goes on", async () => {
  const live = liveExecution();
  const abort = new AbortController();
  const called = readAll(live.read(0, abort.signal));
  const sent = readAll(live.read(0, never));
  abort.abort(new Error("called off"));
  await expect(called).rejects.toThrow("called off");
  live.sendAway(Object.assign(new Error("elsewhere")) as never);
  await expect(sent).rejects.toThrow("elsewhere");
  expect(live.isIdle).toBe(true);
  live.finish(result);
  expect(await live.done).toBe(result);
});
