import { describe, expect, it } from "vitest";
import type { Json } from "../../event-payload.ts";
import type { LoopPreview } from "../loop.ts";
import { AnswerReader } from "./answer-reader.ts";

function read(stopReason: string, ...blocks: { start: Json; deltas?: Json[] }[]) {
  let ids = 0;
  const previews: LoopPreview[] = [];
  const begun: [string, string][] = [];
  const reader = new AnswerReader({
    newEventId: () => `sevt_${++ids}`,
    preview: (preview) => previews.push(preview),
    callBegan: (...call) => begun.push(call),
    nameOf: (name) => name.replace("mcp__tendon__", ""),
  });
  const usage = { input_tokens: 9, cache_read_input_tokens: 4 };
  const events: Json[] = [{ type: "message_start", message: { id: "msg_1", usage } }];
  for (const [index, { start, deltas = [] }] of blocks.entries()) {
    events.push({ type: "content_block_start", index, content_block: start });
    for (const delta of deltas) events.push({ type: "content_block_delta", index, delta });
    events.push({ type: "content_block_stop", index });
  }
  events.push({ type: "message_delta", delta: { stop_reason: stopReason }, usage: { output_tokens: 3 } });
  const ends = events.map((event) => reader.take(event));
  expect(ends.every((isEnd) => !isEnd)).toBe(true);
  expect(reader.take({ type: "message_stop" })).toBe(true);
  return { reader, previews, begun, response: reader.response() };
}
const call = (...pieces: string[]) => ({
  start: { type: "tool_use", id: "toolu_1", name: "mcp__tendon__bash", input: {} },
  deltas: pieces.map((partial_json) => ({ type: "input_json_delta", partial_json })),
});
const text = (...pieces: string[]) => ({
  start: { type: "text", text: "" },
  deltas: pieces.map((piece) => ({ type: "text_delta", text: piece })),
});

describe("an answer of the SDK's model", () => {
  it("becomes thoughts, messages and calls, with their blocks as the model wrote them", () => {
    const thinking = {
      start: { type: "thinking", thinking: "", signature: "" },
      deltas: [
        { type: "thinking_delta", thinking: "h" },
        { type: "thinking_delta", thinking: "m" },
        { type: "signature_delta", signature: "sig" },
      ],
    };
    const { reader, response, previews, begun } = read(
      "tool_use",
      thinking,
      text("Hel", "lo"),
      call('{"a": ', "1}"),
    );
    expect(response.events).toEqual([
      {
        kind: "thinking",
        eventId: "sevt_1",
        blocks: ['{"type":"thinking","thinking":"hm","signature":"sig"}'],
      },
      { kind: "message", eventId: "sevt_2", texts: ["Hello"], blocks: ['{"type":"text","text":"Hello"}'] },
      {
        kind: "call",
        eventId: "sevt_3",
        modelName: "bash",
        inputText: '{"a": 1}',
        problem: undefined,
        blocks: ['{"type":"tool_use","id":"toolu_1","name":"bash","input_text":"{\\"a\\": 1}"}'],
      },
    ]);
    expect(response.stop).toEqual({ kind: "done", reason: "tool_use" });
    expect(response.usage).toEqual({
      inputTokens: 9,
      outputTokens: 3,
      cacheReadInputTokens: 4,
      cacheCreationInputTokens: 0,
    });
    expect([...reader.callIds]).toEqual([["sevt_3", "toolu_1"]]);
    expect(begun).toEqual([["sevt_3", "bash"]]);
    expect(previews.map((preview) => (preview.kind === "text" ? preview.text : preview.kind))).toEqual([
      "start",
      "Hel",
      "lo",
    ]);
  });

  it("says that a call cannot run whose input is no object", () => {
    expect(read("tool_use", call('{"a":')).response.events).toMatchObject([
      { kind: "call", problem: expect.stringContaining("not one JSON object") },
    ]);
    expect(read("tool_use", call()).response.events).toMatchObject([{ inputText: "{}", problem: undefined }]);
  });

  it("is the newest one, when the program asked again after one that broke off", () => {
    const { reader } = read("tool_use", call("{}"));
    reader.take({ type: "message_start", message: { id: "msg_2", usage: { input_tokens: 5 } } });
    reader.take({ type: "content_block_start", index: 0, content_block: { type: "text", text: "" } });
    reader.take({ type: "content_block_delta", index: 0, delta: { type: "text_delta", text: "Hi" } });
    reader.take({ type: "message_delta", delta: { stop_reason: "end_turn" }, usage: { output_tokens: 1 } });
    expect(reader.take({ type: "message_stop" })).toBe(true);
    expect(reader.messageId).toBe("msg_2");
    expect(reader.response()).toMatchObject({
      events: [{ kind: "message", texts: ["Hi"] }],
      stop: { kind: "done", reason: "end_turn" },
      usage: { inputTokens: 5, outputTokens: 1, cacheReadInputTokens: 0 },
    });
    expect(reader.callIds.size).toBe(0);
  });

  it("is not whole when it ends without a reason, as one does that broke off", () => {
    expect(read("end_turn", text("Hi")).reader.isWhole).toBe(true);
    expect(read("", text("Hi")).reader.isWhole).toBe(false);
  });

  it("ends as the model API says", () => {
    expect(read("end_turn", text("x")).response.stop.kind).toBe("done");
    expect(read("max_tokens", text("x")).response.stop.kind).toBe("limit");
    expect(read("max_tokens", call('{"a"')).response.stop.kind).toBe("cut_in_call");
    expect(read("refusal").response.stop).toMatchObject({ kind: "refusal", refusal: { category: null } });
  });
});
