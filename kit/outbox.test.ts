import { expect, test } from "vitest";
import { isTendonError } from "./errors.ts";
import { Outbox } from "./outbox.ts";

test("what is pushed before and while somebody reads comes out once and in order, then the end", async () => {
  const outbox = new Outbox<number>(10);
  outbox.push(1);
  const seen: number[] = [];
  const reading = (async () => {
    for await (const item of outbox) seen.push(item);
  })();
  outbox.push(2);
  await Promise.resolve();
  outbox.push(3);
  outbox.end();
  await reading;
  expect(seen).toEqual([1, 2, 3]);
  expect(outbox.push(4)).toBe(false);
});

test("a full outbox ends with LIMIT_EXCEEDED instead of growing", async () => {
  const outbox = new Outbox<number>(2);
  expect([outbox.push(1), outbox.push(2), outbox.push(3)]).toEqual([true, true, false]);
  const failure = await outbox[Symbol.asyncIterator]()
    .next()
    .catch((error: unknown) => error);
  expect(isTendonError(failure, "LIMIT_EXCEEDED")).toBe(true);
});

test("a reader that stops closes the outbox for writers", async () => {
  const outbox = new Outbox<number>(2);
  outbox.push(1);
  for await (const _ of outbox) break;
  expect(outbox.isOpen).toBe(false);
});
