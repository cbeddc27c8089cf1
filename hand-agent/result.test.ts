import { randomBytes } from "node:crypto";
import { describe, expect, it } from "vitest";
import type { Hand } from "./drivers/driver.ts";
import {
  AnsiStripper,
  capText,
  errorResult,
  MAX_TEXT_CHARS,
  OutputCollector,
  outputPath,
  textResult,
} from "./result.ts";

// Output that fits never touches the hand.
const hand = { outputsDir: "/hand/outputs" } as Hand;

async function collect(chunks: Iterable<Uint8Array>): Promise<string> {
  const collector = new OutputCollector(hand, "call");
  for (const chunk of chunks) await collector.push(chunk);
  return (await collector.end()).text;
}

function* pieces(bytes: Uint8Array, size: () => number): Generator<Uint8Array> {
  for (let at = 0; at < bytes.byteLength; ) {
    const length = size();
    yield bytes.subarray(at, at + length);
    at += length;
  }
}

describe("the text of an output", () => {
  const samples: [string, Buffer][] = [
    ["characters of 1 to 4 bytes", Buffer.from("aé€😀\0z\u{10ffff}")],
    ["lone and cut bytes", Buffer.from("61ff62c363e282f09f98e282ac80f5c0af", "hex")],
    ["a byte order mark", Buffer.from("efbbbf61", "hex")],
    ["encoded surrogates", Buffer.from("eda080edb080", "hex")],
    ["a cut at the very end", Buffer.from("61f09f98", "hex")],
    [
      "random bytes",
      Buffer.concat([randomBytes(5_000).map((byte) => (byte === 0x1b ? 0x41 : byte)), Buffer.from("z")]),
    ],
  ];
  const whole = (bytes: Uint8Array) => new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);

  it.each(samples)("decodes %s in 1-byte chunks like the whole (R12)", async (_, bytes) => {
    expect(await collect(pieces(bytes, () => 1))).toBe(whole(bytes));
  });

  it.each(samples)("decodes %s in chunks of any size like the whole (R12)", async (_, bytes) => {
    for (let i = 0; i < 20; i++) {
      expect(await collect(pieces(bytes, () => 1 + Math.floor(Math.random() * 7)))).toBe(whole(bytes));
    }
  });

  it("cuts newlines at the end only, wherever the chunks part", async () => {
    expect(await collect(pieces(Buffer.from("\n\na\n\n\nb\n\n\n"), () => 1))).toBe("\n\na\n\n\nb");
    expect(await collect([Buffer.from("\n".repeat(300_000))])).toBe("");
  });

  it.each([
    ["\x1b[31mred\x1b[0m", "red"],
    ["\x1b]0;title\x07text", "text"],
    ["\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"],
    ["a\x1b(Bb\x1b=c\x1b[2J\x1b[1;1Hd", "abcd"],
    ["\x1b[?25l\x1b[38;2;1;2;3mx", "x"],
  ])("strips control sequences from %j, wherever the chunks part", async (input, output) => {
    expect(await collect(pieces(Buffer.from(input), () => 1))).toBe(output);
    expect(await collect([Buffer.from(input)])).toBe(output);
  });

  it("does not wait for ever for the end of a sequence that never ends", () => {
    const stripper = new AnsiStripper();
    stripper.push("\x1b]0;");
    const flood = stripper.push("x".repeat(10_000));
    expect(flood.length).toBeGreaterThan(5_000);
  });
});

describe("the bound of a text", () => {
  it("leaves what fits as it is", () => {
    const text = "x".repeat(MAX_TEXT_CHARS);
    expect(capText(text)).toBe(text);
  });

  it("keeps the first 20,000 and the last 80,000 characters and names the dropped bytes", () => {
    const text = `${"a".repeat(20_000)}${"é".repeat(50)}${"z".repeat(80_000)}`;
    expect(capText(text, "/w/f")).toBe(
      `${"a".repeat(20_000)}\n[100 bytes dropped; all of it is in /w/f]\n${"z".repeat(80_000)}`,
    );
  });

  it("never parts a surrogate pair", () => {
    for (const shift of ["", "x"]) {
      const text = capText(shift + "😀".repeat(60_000) + shift);
      expect(text).toBe(Buffer.from(text).toString());
      expect(text.length).toBeLessThanOrEqual(MAX_TEXT_CHARS + 100);
    }
  });

  it("says what an empty text is", () => {
    expect(textResult("").content).toEqual([{ type: "text", text: "(no output)" }]);
    expect(errorResult("no")).toMatchObject({ isError: true, outcome: "completed", artefacts: [] });
  });

  it("keeps artefacts in the outputs directory whatever the call's id holds", () => {
    expect(outputPath(hand, "../a/b")).toBe("/hand/outputs/___a_b.txt");
  });
});
