import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { EventSchema } from "../../../proto/gen/tendon/v1/event_pb.js";
import type { LoopPreview } from "../loop.ts";
import { LineReader } from "./line-reader.ts";
import { BadProgram, eventLine, MAX_LINE_BYTES, MAX_PARTS, StepReader } from "./protocol.ts";

function read(...lines: unknown[]) {
  let ids = 0;
  const previews: LoopPreview[] = [];
  const reader = new StepReader({
    keeper: "external:test",
    newEventId: () => `sevt_${++ids}`,
    preview: (preview) => previews.push(preview),
  });
  let outcome: ReturnType<StepReader["take"]>;
  for (const line of lines) outcome = reader.take(typeof line === "string" ? line : JSON.stringify(line));
  return { outcome, previews };
}
const reasonOf = (run: () => unknown) => {
  try {
    run();
    return undefined;
  } catch (error) {
    return error instanceof BadProgram ? error.reason : error;
  }
};

describe("what a program says", () => {
  it("becomes messages, thoughts and calls in its order, with what it used and wants to keep", () => {
    const { outcome } = read(
      { type: "thinking", text: "hm" },
      { type: "message", text: "Hello." },
      { type: "call", name: "bash", input: { command: "ls" } },
      { type: "end", usage: { input_tokens: 7, output_tokens: 2.9, cache_read_input_tokens: -4 }, keep: [1] },
    );
    expect(outcome).toEqual({
      kind: "response",
      response: {
        events: [
          { kind: "thinking", eventId: "sevt_1", blocks: [] },
          {
            kind: "message",
            eventId: "sevt_2",
            texts: ["Hello."],
            blocks: ['{"type":"text","text":"Hello."}'],
          },
          {
            kind: "call",
            eventId: "sevt_3",
            modelName: "bash",
            inputText: '{"command":"ls"}',
            problem: undefined,
            blocks: ['{"type":"tool_use","id":"","name":"bash","input_text":"{\\"command\\":\\"ls\\"}"}'],
          },
        ],
        stop: { kind: "done", reason: "done" },
        usage: { inputTokens: 7, outputTokens: 2, cacheReadInputTokens: 0, cacheCreationInputTokens: 0 },
        keep: { by: "external:test", value: [1] },
      },
    });
  });

  it("is shown while it forms under the id of the message that ends it, one for each part", () => {
    const { outcome, previews } = read(
      { type: "preview", text: "He" },
      { type: "preview", part: "b", text: "Other" },
      { type: "preview", text: "llo" },
      { type: "message", text: "Hello" },
      { type: "message", part: "b", text: "Other" },
      { type: "end" },
    );
    expect(previews).toEqual([
      { kind: "start", eventId: "sevt_1", type: "agent.message" },
      { kind: "text", eventId: "sevt_1", index: 0, text: "He" },
      { kind: "start", eventId: "sevt_2", type: "agent.message" },
      { kind: "text", eventId: "sevt_2", index: 0, text: "Other" },
      { kind: "text", eventId: "sevt_1", index: 0, text: "llo" },
    ]);
    const { response } = outcome as unknown as { response: { events: { eventId: string }[] } };
    expect(response.events.map(({ eventId }) => eventId)).toEqual(["sevt_1", "sevt_2"]);
  });

  it("can be that its model failed, in the ways in which models fail", () => {
    expect(
      read({ type: "fail", reason: "rate_limited", message: "busy", retry_after_ms: 70 }).outcome,
    ).toEqual({
      kind: "failed",
      failure: {
        type: "model_rate_limited_error",
        message: "busy",
        maxAttempts: Number.POSITIVE_INFINITY,
        retryAfterMs: 70,
        began: false,
      },
    });
    expect(read({ type: "fail", final: true }).outcome).toMatchObject({
      failure: { type: "model_request_failed_error", maxAttempts: 1 },
    });
  });

  it("is refused when the protocol does not have it", () => {
    for (const line of [
      "not json",
      "[]",
      '"x"',
      "{}",
      { type: "shout" },
      { type: "message" },
      { type: "preview", text: 1 },
      { type: "message", text: "x", part: 7 },
      { type: "call", name: "bash" },
      { type: "call", name: "bash", input: [] },
      { type: "call", input: {} },
      { type: "end", stop: "never" },
      { type: "fail", reason: "toString" },
    ]) {
      expect(
        reasonOf(() => read(line)),
        JSON.stringify(line),
      ).toBe("LOOP_BAD_LINE");
    }
  });

  it("is bounded in its parts and bytes", () => {
    const many = Array.from({ length: MAX_PARTS + 1 }, () => ({ type: "message", text: "x" }));
    expect(reasonOf(() => read(...many))).toBe("LOOP_TOO_MUCH");
    const large = { type: "preview", text: "x".repeat(900_000) };
    expect(reasonOf(() => read(...Array.from({ length: 20 }, () => large)))).toBe("LOOP_TOO_MUCH");
  });
});

describe("lines", () => {
  const linesOf = (...chunks: (string | Buffer)[]) => {
    const reader = new LineReader();
    return chunks.flatMap((chunk) => [...reader.take(Buffer.from(chunk as string))]);
  };

  it("are put together from pieces cut anywhere, also within a character", () => {
    const bytes = Buffer.from('{"a":"ü€😀"}\n\n{"b":1}\n');
    for (let at = 0; at <= bytes.length; at++) {
      expect(linesOf(bytes.subarray(0, at), bytes.subarray(at))).toEqual(['{"a":"ü€😀"}', '{"b":1}']);
    }
  });

  it("have a bound, whether or not they end", () => {
    expect(linesOf(`${"x".repeat(MAX_LINE_BYTES)}\n`)).toHaveLength(1);
    expect(reasonOf(() => linesOf(`${"x".repeat(MAX_LINE_BYTES + 1)}\n`))).toBe("LOOP_LINE_TOO_LONG");
    const piece = "x".repeat(64 * 1024);
    expect(reasonOf(() => linesOf(...Array.from({ length: 17 }, () => piece)))).toBe("LOOP_LINE_TOO_LONG");
  });

  it("that are not UTF-8 are refused", () => {
    expect(reasonOf(() => linesOf(Buffer.from([0x7b, 0xff, 0x7d, 0x0a])))).toBe("LOOP_BAD_LINE");
  });
});

describe("what a program is told of an event", () => {
  const event = (internal: string, payload = '{"content": [ ]}') =>
    create(EventSchema, { id: "sevt_1", position: 4n, type: "agent.message", payload, internal });

  it("is its payload as it stands, and nothing that only brains may see", () => {
    expect(
      eventLine(event('{"v":1,"blocks":[{"type":"thinking"}],"kept":{"by":"other","value":1}}'), "me"),
    ).toBe(
      '{"type":"event","event":{"type":"agent.message","id":"sevt_1","position":4,"payload":{"content": [ ]}}}',
    );
  });

  it("holds what the program itself kept", () => {
    const line = eventLine(event('{"kept":{"by":"me","value":{"n":2}}}'), "me");
    expect(JSON.parse(line).event.kept).toEqual({ n: 2 });
  });

  it("is one line, whoever wrote the payload over several", () => {
    expect(eventLine(event("", '{\n"a":\r\n1}'), "me").split(/[\r\n]/)).toHaveLength(1);
  });
});
