import { describe, expect, it } from "vitest";
import { shortened } from "../../shortened-text.ts";
import { blockWeight } from "./block-weight.ts";
import type { HistoryMessage } from "./message-list.ts";
import { transcript } from "./transcript.ts";

const message = (role: HistoryMessage["role"], ...blocks: object[]): HistoryMessage => ({
  role,
  blocks: blocks.map((block) => JSON.stringify(block)),
});

describe("a transcript", () => {
  const talk = [
    message("user", { type: "text", text: "first words" }),
    message(
      "assistant",
      { type: "thinking", thinking: "secret", signature: "s" },
      { type: "tool_use", id: "t", name: "bash", input: { command: "ls" } },
    ),
    message("user", {
      type: "tool_result",
      tool_use_id: "t",
      content: [{ type: "text", text: "a b" }, { type: "image" }],
    }),
    message("assistant", { type: "text", text: "last words" }),
  ];

  it("has what was said, called and answered, without thoughts and files", () => {
    expect(transcript(talk, 10_000).split("\n\n")).toEqual([
      "user: first words",
      `assistant: [call of bash] {"command":"ls"}`,
      "user: [result] a b\n[image]",
      "assistant: last words",
    ]);
  });

  it("keeps within its bound: long parts by their ends, the beginning and the newest part of the rest", () => {
    const long = Array.from({ length: 200 }, (_, i) =>
      message("user", { type: "text", text: `part ${i} ${"ü".repeat(500)}` }),
    );
    const text = transcript([...talk, ...long], 8_000);
    expect(Buffer.byteLength(text)).toBeLessThan(8_500);
    expect(text).toContain("first words");
    expect(text).toContain("part 199");
    expect(text).toMatch(/\[\d+ parts left out\]/);
    expect(text).toContain("characters left out");
  });

  it("shortens by the bytes of what is there, and leaves short texts alone", () => {
    expect(shortened("short", 100)).toBe("short");
    expect(Buffer.byteLength(shortened("字".repeat(10_000), 3_000))).toBeLessThan(3_200);
  });
});

describe("what a block weighs", () => {
  it("is its bytes, but for files what they usually cost", () => {
    expect(blockWeight(`{"type":"text","text":"ü"}`)).toBe(27);
    const data = "A".repeat(1_000_000);
    const image = { type: "image", source: { type: "base64", media_type: "image/png", data } };
    expect(blockWeight(JSON.stringify(image))).toBe(6_000);
    const result = { type: "tool_result", tool_use_id: "t", content: [image, image] };
    expect(blockWeight(JSON.stringify(result))).toBeGreaterThan(12_000);
    expect(blockWeight(JSON.stringify(result))).toBeLessThan(12_200);
    const document = { type: "document", source: { type: "base64", media_type: "application/pdf", data } };
    expect(blockWeight(JSON.stringify(document))).toBe(100_000);
    expect(blockWeight(JSON.stringify({ ...document, context: "3 pages" }))).toBe(21_000);
  });
});
