import { expect, test } from "vitest";
import { AttachFrames } from "./attach-frames.ts";
import { MarkedStream } from "./marked-stream.ts";

/** What is data and which marks are seen, however the bytes are cut. */
function read(bytes: Buffer, size: number, tokens = ["aabb"]): { data: string; marks: string[] } {
  const data: Buffer[] = [];
  const marks: string[] = [];
  const stream = new MarkedStream({
    tokens: new Set(tokens),
    onData: (chunk) => void data.push(Buffer.from(chunk)),
    onMark: (token, words) => void marks.push(`${token}:${words.join(",")}`),
  });
  for (let at = 0; at < bytes.length; at += size) stream.push(bytes.subarray(at, at + size));
  stream.end();
  return { data: Buffer.concat(data).toString("latin1"), marks };
}

test.each([1, 2, 3, 7, 1_000])("marks and data are told apart in pieces of %i bytes", (size) => {
  const bytes = Buffer.from("one\x01aabb z 0\x01two\x01\x01aabb x 12\x01", "latin1");
  expect(read(bytes, size)).toEqual({ data: "onetwo\x01", marks: ["aabb:z,0", "aabb:x,12"] });
});

test.each([1, 5, 1_000])("what only looks like a mark is data, in pieces of %i bytes", (size) => {
  for (const text of [
    "\x01",
    "\x01\x01\x01",
    "\x01aab",
    "\x01aabc z 0\x01",
    "\x01aabbz 0\x01",
    `\x01aabb ${"9".repeat(70)}\x01`,
    "tail\x01aabb z",
  ])
    expect(read(Buffer.from(text, "latin1"), size)).toEqual({ data: text, marks: [] });
});

test("tokens are told apart", () => {
  const bytes = Buffer.from("\x01aabb a\x01\x01aacc b\x01\x01zz c\x01", "latin1");
  expect(read(bytes, 4, ["aabb", "aacc"])).toEqual({ data: "\x01zz c\x01", marks: ["aabb:a", "aacc:b"] });
});

test.each([1, 3, 8, 1_000])("frames of both outputs are taken apart in pieces of %i bytes", (size) => {
  const frame = (output: number, text: string) => {
    const head = Buffer.alloc(8);
    head[0] = output;
    head.writeUInt32BE(text.length, 4);
    return Buffer.concat([head, Buffer.from(text)]);
  };
  const bytes = Buffer.concat([frame(1, "out"), frame(2, "err"), frame(1, ""), frame(1, "more")]);
  const heard = { stdout: "", stderr: "" };
  const frames = new AttachFrames((output, piece) => {
    heard[output] += piece.toString();
  });
  for (let at = 0; at < bytes.length; at += size) frames.push(bytes.subarray(at, at + size));
  expect(heard).toEqual({ stdout: "outmore", stderr: "err" });
});
