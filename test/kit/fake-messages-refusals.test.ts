import Anthropic from "@anthropic-ai/sdk";
import { afterEach, describe, expect, it } from "vitest";
import {
  type FakeMessagesApi,
  type FakeMessagesApiOptions,
  redactedThinking,
  startFakeMessagesApi,
  thinking,
  toolUse,
  turn,
} from "./fake-messages-api.ts";
import {
  asks,
  BASH,
  base,
  call,
  HELLO,
  type Params,
  result,
  says,
  TEXT,
  tells,
} from "./fake-messages-params.ts";

let api: FakeMessagesApi;
afterEach(() => api.stop());

async function start(options: FakeMessagesApiOptions = {}): Promise<Anthropic> {
  api = await startFakeMessagesApi(options);
  return new Anthropic({ baseURL: api.url, apiKey: api.apiKey, maxRetries: 0 });
}

const marked = (ttl: "5m" | "1h" = "5m"): Anthropic.TextBlockParam => ({
  ...TEXT,
  cache_control: { type: "ephemeral", ttl },
});
const tool = (fields: object) => ({ ...HELLO, tools: [{ ...BASH, ...fields }] });
const history = (...messages: unknown[]) => ({ ...base, messages });

/** What is refused, and a part of the message that has to say why. */
const REFUSED: [string, object, string][] = [
  ["no model", { ...HELLO, model: undefined }, "model: Field required"],
  ["an empty model", { ...HELLO, model: "" }, "model: String should have"],
  ["no max_tokens", { ...HELLO, max_tokens: undefined }, "max_tokens: Field required"],
  ["max_tokens of 0", { ...HELLO, max_tokens: 0 }, "max_tokens: Input should be greater"],
  [
    "max_tokens that is no integer",
    { ...HELLO, max_tokens: 1.5 },
    "max_tokens: Input should be a valid integer",
  ],
  ["no messages field", { ...HELLO, messages: undefined }, "messages: Field required"],
  ["no message", history(), "messages: at least one message"],
  ["an unknown field", { ...HELLO, internal: 1 }, "internal: Extra inputs are not permitted"],
  ["an unknown field of a message", history({ ...asks("x"), id: "1" }), "messages.0.id: Extra inputs"],
  [
    "an unknown field of a block",
    history(tells({ ...TEXT, id: "1" } as never)),
    "messages.0.content.0.text.id: Extra",
  ],
  ["an unknown role", history({ role: "tool", content: "x" }), "messages.0.role"],
  [
    "an unknown block type",
    history(tells({ type: "audio" } as never)),
    "messages.0.content.0: Input tag 'audio'",
  ],
  ["a call by the user", history(tells(call("toolu_1"))), "Input tag 'tool_use'"],
  ["a result by the assistant", history(asks("x"), says(result("toolu_1"))), "Input tag 'tool_result'"],
  ["a first message of the assistant", history(says(TEXT), asks("x")), "first message must use"],
  [
    "a first message of the system",
    history({ role: "system", content: "x" }, asks("x")),
    "first message must use",
  ],
  [
    "a system message behind the assistant",
    history(asks("x"), says(TEXT), { role: "system", content: "x" }, asks("y")),
    "directly follow",
  ],
  ["empty content", history(asks("")), "messages.0: all messages must have non-empty content"],
  ["no blocks", history(tells()), "messages.0: all messages must have non-empty content"],
  [
    "an empty text block",
    history(tells({ type: "text", text: "" })),
    "text content blocks must be non-empty",
  ],
  ["a text block of spaces", history(tells({ type: "text", text: " \n" })), "non-whitespace"],
  [
    "an empty system block",
    { ...HELLO, system: [{ type: "text", text: "" }] },
    "system.0: text content blocks must be",
  ],
  [
    "an empty text in a result",
    history(asks("x"), says(call("a")), tells({ ...result("a"), content: [{ type: "text", text: "" }] })),
    "non-empty",
  ],
  [
    "a call without a result",
    history(asks("x"), says(call("toolu_1")), asks("y")),
    "without `tool_result` blocks immediately after: toolu_1",
  ],
  ["a call at the end", history(asks("x"), says(call("toolu_1"))), "without `tool_result` blocks"],
  [
    "one result of two missing",
    history(asks("x"), says(call("a"), call("b")), tells(result("a"))),
    "immediately after: b",
  ],
  [
    "a result behind text",
    history(asks("x"), says(call("a")), tells(TEXT, result("a"))),
    "without `tool_result` blocks",
  ],
  [
    "a result one message late",
    history(asks("x"), says(call("a")), asks("y"), says(TEXT), tells(result("a"))),
    "without `tool_result`",
  ],
  [
    "two results for a call",
    history(asks("x"), says(call("a")), tells(result("a"), result("a"))),
    "must have a single result",
  ],
  [
    "a result without its call",
    history(tells(result("toolu_1"))),
    "unexpected `tool_use_id` found in `tool_result` blocks: toolu_1",
  ],
  [
    "repeated call ids in one message",
    history(asks("x"), says(call("a"), call("a")), tells(result("a"))),
    "must be unique",
  ],
  [
    "repeated call ids in two messages",
    history(asks("x"), says(call("a")), tells(result("a")), says(call("a")), tells(result("a"))),
    "must be unique",
  ],
  [
    "a call input that is no object",
    history(asks("x"), says({ ...call("a"), input: "x" }), tells(result("a"))),
    "valid dictionary",
  ],
  [
    "a call id with a space",
    history(asks("x"), says(call("a b")), tells(result("a b"))),
    "messages.1.content.0.tool_use.id",
  ],
  [
    "an error result with an image",
    history(
      asks("x"),
      says(call("a")),
      tells({
        ...result("a"),
        is_error: true,
        content: [{ type: "image", source: { type: "base64", media_type: "image/png", data: "AAAA" } }],
      }),
    ),
    'must be type "text"',
  ],
  [
    "an image of a wrong type",
    history(
      tells({ type: "image", source: { type: "base64", media_type: "image/bmp", data: "AAAA" } } as never),
    ),
    "media_type",
  ],
  [
    "calls without tools",
    { ...history(asks("x"), says(call("a")), tells(result("a"))), tools: undefined },
    "must define tools",
  ],
  ["a tool name with a dot", tool({ name: "a.b" }), "tools.0.custom.name: String should match pattern"],
  ["an empty tool name", tool({ name: "" }), "tools.0.custom.name"],
  ["a tool name of 129 characters", tool({ name: "a".repeat(129) }), "tools.0.custom.name"],
  ["two tools of one name", { ...HELLO, tools: [BASH, BASH] }, "Tool names must be unique"],
  [
    "a tool without a schema",
    tool({ input_schema: undefined }),
    "tools.0.custom.input_schema: Field required",
  ],
  ["a schema without a type", tool({ input_schema: {} }), "input_schema.type: Field required"],
  ["a schema that is no object's", tool({ input_schema: { type: "string" } }), "Input should be 'object'"],
  [
    "a schema with oneOf at the top",
    tool({ input_schema: { type: "object", oneOf: [] } }),
    "does not support oneOf",
  ],
  [
    "a schema with a strange property",
    tool({ input_schema: { type: "object", properties: { "a b": {} } } }),
    "Property keys",
  ],
  ["an unknown field of a tool", tool({ outputSchema: {} }), "tools.0.custom.outputSchema: Extra inputs"],
  [
    "a tool choice without tools",
    { ...HELLO, tools: [], tool_choice: { type: "any" } },
    "tools must be provided",
  ],
  [
    "a choice of an unknown tool",
    { ...HELLO, tool_choice: { type: "tool", name: "x" } },
    "Tool 'x' not found",
  ],
  [
    "five breakpoints",
    { ...history(tells(marked(), marked(), marked())), system: [marked(), marked()] },
    "A maximum of 4 blocks with cache_control may be provided. Found 5.",
  ],
  [
    "a long-lived breakpoint behind a short one",
    history(tells(marked("5m"), marked("1h"))),
    "must not come after",
  ],
  [
    "a mark on thinking",
    history(
      asks("x"),
      says({
        type: "thinking",
        thinking: "x",
        signature: "y",
        cache_control: { type: "ephemeral" },
      } as never),
      asks("y"),
    ),
    "thinking.cache_control: Extra inputs",
  ],
  [
    "a made-up signature",
    history(asks("x"), says({ type: "thinking", thinking: "x", signature: "y" }, TEXT), asks("y")),
    "Invalid `signature` in `thinking` block",
  ],
  [
    "made-up redacted thinking",
    history(asks("x"), says({ type: "redacted_thinking", data: "y" }, TEXT), asks("y")),
    "Invalid `data`",
  ],
  [
    "a small thinking budget",
    { ...HELLO, thinking: { type: "enabled", budget_tokens: 100 } },
    "greater than or equal to 1024",
  ],
  [
    "a budget above max_tokens",
    { ...HELLO, thinking: { type: "enabled", budget_tokens: 2000 } },
    "`max_tokens` must be greater",
  ],
  [
    "forced tool use while thinking",
    { ...HELLO, thinking: { type: "adaptive" }, tool_choice: { type: "any" } },
    "Thinking may not be enabled",
  ],
  ["a lone surrogate", history(asks("a\ud800b")), "no low surrogate"],
  [
    "a lone surrogate in a call's input",
    history(asks("x"), says({ ...call("a"), input: { k: "\udc00" } }), tells(result("a"))),
    "no low surrogate",
  ],
  [
    "a trailing assistant message",
    history(asks("x"), says(TEXT)),
    "does not support assistant message prefill",
  ],
];

describe("the fake Messages API, refusing", () => {
  it.each(REFUSED)("refuses %s", async (_, params, why) => {
    const client = await start({ script: () => turn(["never"]) });
    for (const stream of [false, true]) {
      const error = await client.messages
        .create({ ...(params as Params), ...(stream && { stream }) } as Params)
        .catch((caught) => caught);
      expect(error).toMatchObject({ status: 400, type: "invalid_request_error" });
      expect(error.error).toEqual({
        type: "error",
        error: { type: "invalid_request_error", message: expect.stringContaining(why) },
        request_id: error.requestID,
      });
    }
    expect(api.requests.map(({ outcome }) => outcome)).toEqual(["refused", "refused"]);
    expect(api.refusals).toHaveLength(2);
  });

  it.each([
    ["not JSON", "{"],
    ["not an object", "[]"],
    ["not UTF-8", Buffer.from([0x7b, 0x22, 0xff, 0x22, 0x3a, 0x31, 0x7d])],
  ])("refuses a body that is %s", async (_, body) => {
    await start();
    const response = await fetch(`${api.url}/v1/messages`, {
      method: "POST",
      headers: { authorization: "Bearer test-key", "anthropic-version": "2026-10-21" },
      body,
    });
    expect(response.status).toBe(400);
  });

  it("refuses a request without version", async () => {
    await start();
    const headers = { authorization: "Bearer test-key" };
    const response = await fetch(`${api.url}/v1/messages`, {
      method: "POST",
      headers,
      body: JSON.stringify(HELLO),
    });
    expect(await response.json()).toMatchObject({
      error: { message: "anthropic-version: header is required" },
    });
  });

  it("refuses a wrong key and takes the right one in either header", async () => {
    await start();
    const wrong = new Anthropic({ baseURL: api.url, apiKey: "wrong", maxRetries: 0 });
    await expect(wrong.messages.create(HELLO)).rejects.toMatchObject({
      status: 401,
      type: "authentication_error",
    });
    const headers = { "x-api-key": api.apiKey, "anthropic-version": "2023-06-01" };
    const response = await fetch(`${api.url}/v1/messages`, {
      method: "POST",
      headers,
      body: JSON.stringify(HELLO),
    });
    expect(response.status).toBe(200);
  });

  it("refuses a tool loop whose thinking was dropped, changed or reordered", async () => {
    const client = await start({
      script: (_, n) =>
        n === 1 ? turn([thinking("one"), thinking("two"), toolUse("bash", {})]) : turn(["ok"]),
    });
    const { content } = await client.messages.create(HELLO);
    const use = content.find((block) => block.type === "tool_use")!;
    const send = (
      blocks: Anthropic.ContentBlockParam[],
      more: Partial<Params> = {},
      after: Anthropic.MessageParam[] = [],
    ) =>
      client.messages.create({
        ...base,
        ...more,
        messages: [...HELLO.messages, says(...blocks), tells(result(use.id)), ...after],
      });
    const changed = { ...content[0], thinking: "ONE" } as Anthropic.ThinkingBlockParam;
    await expect(send([use])).rejects.toThrow("must start with a thinking block");
    await expect(send([content[0]!, use])).rejects.toThrow("cannot be modified");
    await expect(send([content[1]!, content[0]!, use])).rejects.toThrow("cannot be modified");
    await expect(send([changed, content[1]!, use])).rejects.toThrow("Invalid `signature`");
    await send(content);
    await send([use], { thinking: { type: "disabled" } });
    await send([use], {}, [says(TEXT), asks("next turn")]);
  });

  it("knows its own thinking again after a restart", async () => {
    const before = await start({
      script: [turn([thinking("hm"), redactedThinking("x"), toolUse("bash", {})])],
    });
    const { content } = await before.messages.create(HELLO);
    const use = content.find((block) => block.type === "tool_use")!;
    await api.stop();
    const after = await start();
    await after.messages.create({
      ...base,
      messages: [...HELLO.messages, says(...content), tells(result(use.id))],
    });
  });

  it("takes neighbours of one role, system messages behind the user's, and empty results", async () => {
    const client = await start({ script: () => turn(["ok"]) });
    await client.messages.create(
      history(
        asks("a"),
        asks("b"),
        { role: "system", content: "be brief" },
        says(call("x")),
        says(call("y")),
        tells(result("x", "")),
        tells({ type: "tool_result", tool_use_id: "y" }, TEXT),
      ) as Params,
    );
    expect(api.refusals).toEqual([]);
  });
});
