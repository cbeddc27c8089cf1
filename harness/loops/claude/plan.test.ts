import { readFileSync } from "node:fs";
import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { AgentSchema, type AgentSpec, AgentSpecSchema } from "../../../proto/gen/tendon/v1/agent_pb.js";
import type { Event } from "../../../proto/gen/tendon/v1/event_pb.js";
import { SlotToolsSchema } from "../../../proto/gen/tendon/v1/harness_service_pb.js";
import { shortLog } from "../../../test/kit/short-log.ts";
import { toolCatalogue } from "../../tool-catalogue.ts";
import { plan, requestParts } from "./plan.ts";

const golden = (name: string) =>
  readFileSync(new URL(`../../../test/golden/claude/${name}`, import.meta.url), "utf8");
const lines = (name: string) => golden(name).trimEnd().split("\n");
const TOOL = { inputSchema: `{"type":"object","properties":{"command":{"type":"string"}}}` };
const SLOT = create(SlotToolsSchema, {
  tools: ["bash", "read"].map((name) => ({ name, description: `Runs ${name}.`, ...TOOL })),
});

function bodyOf(spec: AgentSpec, history: readonly Event[]): string {
  const agent = create(AgentSchema, { spec });
  const tools = toolCatalogue(spec, [SLOT]);
  return plan(requestParts({ agent, tools, history, defaultModel: "claude-default" })).body;
}

const START: [string, object] = ["span.model_request_start", {}];
const END: [string, object] = ["span.model_request_end", { is_error: false }];
const DEAD: [string, object] = ["span.model_request_end", { is_error: true }];
const says = (text: string): [string, object] => ["user.message", { content: [{ type: "text", text }] }];
const consumed = (...event_ids: string[]): [string, object] => [
  "brain.inputs_consumed",
  { event_ids, turn: 1 },
];
const callOf = (id: string, input_text = "{}"): [string, object, object] => [
  "agent.tool_use",
  { name: "bash", hand: "", input: {} },
  { v: 1, blocks: [{ type: "tool_use", id, name: "bash", input_text }] },
];
const resultOf = (tool_use_id: string, content: unknown, is_error = false): [string, object] => [
  "agent.tool_result",
  { tool_use_id, content, is_error },
];
const SPEC = create(AgentSpecSchema, {
  name: "test",
  tools: [{ kind: { case: "handToolset", value: {} } }],
});
const messagesOf = (history: readonly Event[]) => JSON.parse(bodyOf(SPEC, history)).messages;

describe.each(["session", "rich", "long"])("requests of the recorded session %s", (name) => {
  it("mark at most four places for the cache", () => {
    for (const request of lines(`${name}.requests.ndjson`)) {
      const marks = request.split(`,"cache_control":{"type":"ephemeral"}`).length - 1;
      if (!request.includes("<conversation>")) expect(marks).toBeGreaterThan(0);
      expect(marks).toBeLessThanOrEqual(4);
    }
  });
});

describe("a history", () => {
  it("holds what was consumed where it was consumed, and nothing that waits (L6)", () => {
    const log = shortLog(says("one"), says("two"), says("three"), consumed("e1", "e3"), START);
    expect(messagesOf(log)).toMatchObject([{ role: "user", content: [{ text: "one" }, { text: "three" }] }]);
  });

  it("puts results in the order of their calls, whatever order they came in, before what a user says (X3)", () => {
    const log = shortLog(
      says("go"),
      consumed("e1"),
      START,
      callOf("t1"),
      callOf("t2"),
      END,
      resultOf("e5", [{ type: "text", text: "second" }]),
      resultOf("e4", "first"),
      says("more"),
      consumed("e9"),
      START,
    );
    expect(messagesOf(log)[2].content).toMatchObject([
      { type: "tool_result", tool_use_id: "t1", content: [{ text: "first" }] },
      { type: "tool_result", tool_use_id: "t2", content: [{ text: "second" }] },
      { type: "text", text: "more" },
    ]);
  });

  it("leaves out an answer that broke off, but keeps one whose calls are in the log", () => {
    const message: [string, object, object] = [
      "agent.message",
      { content: [{ type: "text", text: "half" }] },
      { v: 1, blocks: [{ type: "text", text: "half" }] },
    ];
    const broken = shortLog(says("go"), consumed("e1"), START, message, DEAD, START);
    expect(messagesOf(broken).map(({ role }: { role: string }) => role)).toEqual(["user"]);
    const called = shortLog(
      says("go"),
      consumed("e1"),
      START,
      message,
      callOf("t1"),
      DEAD,
      resultOf("e5", "ok"),
      START,
    );
    expect(messagesOf(called).map(({ role }: { role: string }) => role)).toEqual([
      "user",
      "assistant",
      "user",
    ]);
  });

  it("gives calls whose ids repeat, or could not be sent, ids of their own", () => {
    const log = shortLog(
      says("go"),
      consumed("e1"),
      START,
      callOf("t1"),
      callOf("t1"),
      callOf("a b"),
      END,
      START,
    );
    const ids = messagesOf(log)[1].content.map(({ id }: { id: string }) => id);
    expect(ids).toEqual(["t1", "toolu_e5", "toolu_e6"]);
    expect(messagesOf(log)[2].content.map((block: { tool_use_id: string }) => block.tool_use_id)).toEqual(
      ids,
    );
  });

  it("holds nothing that the API refuses: blank texts, half surrogate pairs, images in errors, unknown sources", () => {
    const log = shortLog(
      [
        "user.message",
        {
          content: [
            { type: "text", text: " " },
            { type: "text", text: "a\ud83d" },
          ],
        },
      ],
      ["user.message", { content: [] }],
      ["user.message", { content: [{ type: "document", source: { type: "file", file_id: "f" } }] }],
      consumed("e1", "e2", "e3"),
      START,
      callOf("t1", `{"x":"\\ud83d"}`),
      END,
      resultOf(
        "e6",
        [
          { type: "image", source: { type: "base64" } },
          { type: "text", text: "no" },
        ],
        true,
      ),
      START,
    );
    const [user, assistant, results] = messagesOf(log);
    expect(user.content.map(({ text }: { text: string }) => text)).toEqual([
      "a\uFFFD",
      "(empty message)",
      `[document left out: its source is of type "file"]`,
    ]);
    expect(assistant.content[0].input).toEqual({ x: "\uFFFD" });
    expect(results.content[0]).toMatchObject({
      is_error: true,
      content: [{ text: "[image left out]" }, { text: "no" }],
    });
  });

  it("is rebuilt from payloads where no internal is kept, with the names that the model knows", () => {
    const log = shortLog(
      says("go"),
      consumed("e1"),
      START,
      ["agent.message", { content: [{ type: "text", text: "hm" }] }],
      ["agent.tool_use", { name: "bash", hand: "", input: { command: "x" } }],
      END,
      resultOf("e5", "ok"),
      START,
    );
    expect(messagesOf(log)[1].content).toMatchObject([
      { type: "text", text: "hm" },
      { type: "tool_use", id: "toolu_e5", name: "bash", input: { command: "x" } },
    ]);
  });

  it("tells the model of a lost hand, once (H2)", () => {
    const log = shortLog(
      says("go"),
      consumed("e1"),
      ["hand.lost", { slot: "", detail: "disk gone" }],
      START,
      DEAD,
      START,
    );
    const text = JSON.stringify(messagesOf(log));
    expect(text.match(/was lost \(disk gone\)/g)).toHaveLength(1);
  });

  it("tells the model of a hand that it has given away, and of one that it has got, once (H6)", () => {
    const log = shortLog(
      says("go"),
      consumed("e1"),
      ["hand.handed_over", { slot: "", to_session_id: "sesn_other", to_slot: "" }],
      ["hand.handed_over", { slot: "lab", from_session_id: "sesn_other", from_slot: "" }],
      START,
      DEAD,
      START,
    );
    const text = JSON.stringify(messagesOf(log));
    expect(text.match(/The execution environment was handed over to another session/g)).toHaveLength(1);
    expect(text.match(/lab\\*" was handed over to you/g)).toHaveLength(1);
  });
});

describe("a request", () => {
  const start = shortLog(says("hi"), consumed("e1"), START);

  it("asks the agent's model, or the installation's where it names none", () => {
    expect(JSON.parse(bodyOf(SPEC, start)).model).toBe("claude-default");
    const own = create(AgentSpecSchema, { name: "a", model: { id: "own" } });
    expect(JSON.parse(bodyOf(own, start)).model).toBe("own");
  });

  it("leaves room for an answer beside the thinking", () => {
    const spec = create(AgentSpecSchema, {
      name: "a",
      model: { id: "m", maxOutputTokens: 2_000, thinkingBudgetTokens: 10_000 },
    });
    const { max_tokens, thinking } = JSON.parse(bodyOf(spec, start));
    expect(thinking).toEqual({ type: "enabled", budget_tokens: 10_000 });
    expect(max_tokens).toBeGreaterThan(10_000);
  });
});
