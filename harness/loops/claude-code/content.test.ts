import { describe, expect, it } from "vitest";
import { inputContent, mcpResult, resultBlock } from "./content.ts";

const image = { type: "image", source: { type: "base64", media_type: "image/png", data: "AAAA" } };
const document = { type: "document", source: { type: "text", media_type: "text/plain", data: "x" } };
const text = { type: "text", text: "seen" };

describe("content for the agent SDK", () => {
  it("of users is passed on, and never empty", () => {
    expect(
      inputContent({ content: [text, image, document, { type: "redacted" }, { type: "sound" }] }),
    ).toEqual([text, image, document, { type: "text", text: '[content of type "sound" left out]' }]);
    expect(inputContent({ content: [{ type: "text", text: " " }] })).toEqual([
      { type: "text", text: "(empty message)" },
    ]);
    expect(inputContent({ content: [{ type: "text", text: "a\uD800b" }] })).toEqual([
      { type: "text", text: "a\uFFFDb" },
    ]);
  });

  it("of results is the same for a program that runs and for a restored transcript", () => {
    const payload = { content: [text, image, document] };
    const left = { type: "text", text: "[document left out]" };
    expect(mcpResult(payload)).toEqual({
      content: [text, { type: "image", data: "AAAA", mimeType: "image/png" }, left],
      isError: false,
    });
    expect(resultBlock("toolu_1", payload)).toEqual({
      type: "tool_result",
      tool_use_id: "toolu_1",
      content: [text, image, left],
    });
  });

  it("of errors is text alone", () => {
    expect(resultBlock("toolu_1", { content: [text, image], is_error: true })).toMatchObject({
      content: [text],
      is_error: true,
    });
    expect(resultBlock("toolu_1", { content: "plain", is_error: true })).toMatchObject({
      content: [{ type: "text", text: "plain" }],
    });
  });
});
