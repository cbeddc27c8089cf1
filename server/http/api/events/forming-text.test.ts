import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { PreviewStartSchema, PreviewTextSchema } from "../../../../proto/gen/tendon/v1/event_pb.js";
import { FormingText } from "./forming-text.ts";

const start = (eventId: string, type = "agent.message") => create(PreviewStartSchema, { eventId, type });
const text = (eventId: string, words: string, offset?: number, index = 0) =>
  create(PreviewTextSchema, {
    eventId,
    index,
    text: words,
    ...(offset !== undefined && { offset: BigInt(offset) }),
  });

describe("what is told of an event that forms", () => {
  const forming = () => new FormingText(new Set(["agent.message", "agent.thinking"]));

  it("is its beginning: after a gap nothing more, also when what comes then would fit again", () => {
    const told = forming();
    expect(told.begins(start("a"))).toBe(true);
    const pieces = [text("a", "one ", 0), text("a", "two", 4), text("a", "!", 20), text("a", "late", 7)];
    expect(pieces.map((piece) => told.continues(piece))).toEqual([true, true, false, false]);
    expect(told.begins(start("b"))).toBe(true);
    expect(told.continues(text("b", "one", 0))).toBe(true);
    // Each block has places of its own.
    expect(told.continues(text("b", "other", 0, 1))).toBe(true);
  });

  it("begins once, with the start, and ends with the event", () => {
    const told = forming();
    expect(told.continues(text("a", "without a start", 0))).toBe(false);
    expect([told.begins(start("a")), told.begins(start("a"))]).toEqual([true, false]);
    told.ends("a");
    expect(told.continues(text("a", "late", 0))).toBe(false);
  });

  it("is of a thought only that it began, and of a type that nobody asked for nothing", () => {
    const told = forming();
    expect(told.begins(start("a", "agent.thinking"))).toBe(true);
    expect(told.continues(text("a", "secret", 0))).toBe(false);
    expect(new FormingText(new Set(["agent.thinking"])).begins(start("b"))).toBe(false);
  });

  it("is believed where nobody says where it stands", () => {
    const told = forming();
    told.begins(start("a"));
    expect([told.continues(text("a", "one")), told.continues(text("a", "two"))]).toEqual([true, true]);
  });
});
