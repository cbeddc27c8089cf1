import { expect, test } from "vitest";
import { resultOfAnswer } from "./call-result.ts";

const contentOf = (content: unknown[], more: object = {}) => resultOfAnswer({ content, ...more }).content;
const png = (bytes: number) => ({
  type: "image",
  mimeType: "image/png",
  data: Buffer.alloc(bytes).toString("base64"),
});

test("what a result cannot hold is named, not dropped in silence", () => {
  const { data } = png(3);
  expect(contentOf([png(3)])).toEqual([
    { type: "image", source: { type: "base64", media_type: "image/png", data } },
  ]);
  const texts = contentOf([
    png(1024 * 1024 + 3),
    { type: "image", mimeType: "image/tiff", data },
    { type: "image", mimeType: "image/png", data: "no base64!" },
    { type: "audio", mimeType: "audio/wav", data },
    { type: "resource_link", uri: "file:///a", name: "a" },
    { type: "resource", resource: { uri: "file:///b", text: "inside" } },
    { type: "text", text: "" },
    { type: "new" },
    null,
  ]).map((block) => (block.type === "text" ? block.text : block.type));
  expect(texts).toEqual([
    "[left out: image/png, 1048579 bytes]",
    "[left out: image/tiff, 3 bytes]",
    "[left out: image/png, 7 bytes]",
    "[left out: audio/wav, 3 bytes]",
    "[resource file:///a: a]",
    "[resource file:///b]\ninside",
    "(empty)",
    '[left out: a block of the type "new"]',
    "[left out: a block of the type null]",
  ]);
});

test("too many images and blocks are cut and said, and an answer by a schema alone is text", () => {
  const images = contentOf(Array.from({ length: 18 }, () => png(3)));
  expect(images.filter(({ type }) => type === "image")).toHaveLength(16);
  const many = contentOf(Array.from({ length: 300 }, () => ({ type: "text", text: "x" })));
  expect(many).toHaveLength(257);
  expect(many.at(-1)).toEqual({ type: "text", text: "[left out: 44 more blocks of content]" });
  expect(contentOf([], { structuredContent: { a: 1 } })).toEqual([{ type: "text", text: '{"a":1}' }]);
  expect(resultOfAnswer({ isError: true })).toMatchObject({
    isError: true,
    content: [{ text: "(no output)" }],
  });
});
