import { describe, expect, it } from "vitest";
import type { Preview } from "../proto/gen/tendon/v1/event_pb.js";
import { FakeClock } from "../test/kit/fake-clock.ts";
import { PreviewFeed } from "./preview-feed.ts";

const text = (eventId: string, words: string, index = 0) =>
  ({ kind: "text", eventId, index, text: words }) as const;

function feed() {
  const clock = new FakeClock();
  const sent: Preview[][] = [];
  return { clock, sent, feed: new PreviewFeed(clock, (previews) => sent.push(previews)) };
}
const texts = (previews: Preview[] | undefined) =>
  previews?.map(({ kind }) => (kind.case === "text" ? kind.value.text : kind.case));

describe("the preview feed (L5)", () => {
  it("shows the first piece at once and then gathers: at most 20 messages a second", async () => {
    const { clock, sent, feed: previews } = feed();
    for (let ms = 0; ms < 1_000; ms += 5) {
      previews.add(text("e1", "x"));
      await clock.advance(5);
    }
    expect(texts(sent[0])).toEqual(["x"]);
    expect(sent.length).toBeLessThanOrEqual(21);
    previews.flush();
    expect(
      sent
        .flat()
        .map(({ kind }) => (kind.value as { text: string }).text)
        .join(""),
    ).toBe("x".repeat(200));
  });

  it("joins pieces of one block and keeps others apart, in order", async () => {
    const { clock, sent, feed: previews } = feed();
    previews.add({ kind: "start", eventId: "e1", type: "agent.message" });
    for (const piece of [text("e1", "a"), text("e1", "b"), text("e1", "c", 1), text("e2", "d")])
      previews.add(piece);
    await clock.advance(50);
    expect(texts(sent[1])).toEqual(["ab", "c", "d"]);
  });

  it("drops what is too much for one message instead of keeping it", async () => {
    const { clock, sent, feed: previews } = feed();
    previews.add(text("e1", "first"));
    for (let i = 0; i < 100; i++) previews.add(text("e1", "x".repeat(10_000)));
    await clock.advance(50);
    expect(texts(sent[1])!.join("").length).toBeLessThanOrEqual(64 * 1024);
    expect(clock.waiting).toBe(0);
  });
});
