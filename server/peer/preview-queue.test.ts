import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { type Preview, PreviewSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import { FakeClock } from "../../test/kit/fake-clock.ts";
import { PreviewQueue } from "./preview-queue.ts";

function text(value: string, eventId = "sevt_1"): Preview {
  return create(PreviewSchema, { kind: { case: "text", value: { eventId, index: 0, text: value } } });
}

function texts(previews: readonly Preview[]): string[] {
  return previews.map(({ kind }) => (kind.case === "text" ? kind.value.text : "?"));
}

async function settle(): Promise<void> {
  for (let turn = 0; turn < 20; turn += 1) await Promise.resolve();
}

test("what comes together goes together, joined; what others hold is not changed", async () => {
  const clock = new FakeClock();
  const sent: [string, string[]][] = [];
  const queue = new PreviewQueue(clock, async (id, previews) => void sent.push([id, texts(previews)]));
  const first = text("a");
  queue.push("s1", [first]);
  queue.push("s1", [text("b"), text("c", "sevt_2")]);
  queue.push("s2", [text("d")]);
  await clock.advance(20);
  await settle();
  expect(sent).toEqual([
    ["s1", ["ab", "c"]],
    ["s2", ["d"]],
  ]);
  expect(texts([first])).toEqual(["a"]);
});

test("one request of a session is under way at a time; what comes meanwhile waits, bounded (L5)", async () => {
  const clock = new FakeClock();
  const sent: string[][] = [];
  let answer = () => {};
  const queue = new PreviewQueue(clock, (_id, previews) => {
    sent.push(texts(previews));
    return new Promise((resolve) => {
      answer = resolve;
    });
  });
  queue.push("s1", [text("first")]);
  await clock.advance(20);
  for (let index = 0; index < 1_000; index += 1) queue.push("s1", [text("x".repeat(1_000))]);
  await clock.advance(1_000);
  await settle();
  expect(sent).toEqual([["first"]]);
  answer();
  await settle();
  expect(sent).toHaveLength(2);
  expect(sent[1]!.join("").length).toBeLessThanOrEqual(64 * 1024);
  expect(sent[1]!.join("").length).toBeGreaterThan(60 * 1024);
});

test("a replica that does not take previews is left alone for a second, and nothing is kept for it", async () => {
  const clock = new FakeClock();
  let asked = 0;
  let works = false;
  const queue = new PreviewQueue(clock, async () => {
    asked += 1;
    if (!works) throw new Error("gone");
  });
  queue.push("s1", [text("lost")]);
  await clock.advance(20);
  await settle();
  for (let index = 0; index < 100; index += 1) queue.push("s1", [text("lost too")]);
  await clock.advance(900);
  await settle();
  expect(asked).toBe(1);
  works = true;
  await clock.advance(200);
  await settle();
  expect(asked).toBe(1);
  queue.push("s1", [text("seen")]);
  await clock.advance(20);
  await settle();
  expect(asked).toBe(2);
});
