import { expect, test } from "vitest";
import type { EventRecord } from "../store/events.ts";
import { Tail } from "./tail.ts";

const event = (position: number, payload = "{}"): EventRecord => ({
  id: `sevt_${position}`,
  position,
  type: "acme.noted",
  threadId: "",
  createdAt: new Date(0),
  payload,
  payloadOmitted: undefined,
  internal: "secret",
  internalOmitted: undefined,
  processedAt: undefined,
});
const events = (from: number, to: number) => Array.from({ length: to - from + 1 }, (_, n) => event(from + n));
const after = (tail: Tail, position: number) => tail.after(position)?.map((one) => one.position);

test("a run without a gap is given from any of its positions; before it, the database has to be asked", () => {
  const tail = new Tail();
  expect(after(tail, 0)).toBeUndefined();
  tail.add(events(5, 7));
  tail.add(events(8, 8));
  expect(after(tail, 4)).toEqual([5, 6, 7, 8]);
  expect(after(tail, 7)).toEqual([8]);
  expect(after(tail, 8)).toEqual([]);
  expect(after(tail, 3)).toBeUndefined();
});

test("what comes twice or late is ignored; a gap begins a new run", () => {
  const tail = new Tail();
  tail.add(events(1, 3));
  tail.add(events(2, 4));
  expect(after(tail, 0)).toEqual([1, 2, 3, 4]);
  tail.add(events(9, 9));
  expect(after(tail, 3)).toBeUndefined();
  expect(after(tail, 8)).toEqual([9]);
  tail.add(events(5, 5));
  expect(after(tail, 8)).toEqual([9]);
});

test("it holds at most 64 events and 64 Ki characters, and no internal", () => {
  const tail = new Tail();
  tail.add(events(1, 100));
  expect(after(tail, 35)).toBeUndefined();
  expect(after(tail, 36)).toHaveLength(64);
  expect(tail.after(99)?.[0]?.internal).toBeUndefined();
  tail.add([event(101, "x".repeat(60_000)), event(102, "y".repeat(10_000))]);
  expect(after(tail, 100)).toBeUndefined();
  expect(after(tail, 101)).toEqual([102]);
  tail.add([event(103, "z".repeat(70_000)), event(104)]);
  expect(after(tail, 102)).toBeUndefined();
  expect(after(tail, 103)).toEqual([104]);
});
