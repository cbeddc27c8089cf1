import Anthropic from "@anthropic-ai/sdk";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { createLogger } from "../../kit/log.ts";
import { type DemoModel, startDemoModel } from "./demo-model.ts";
import { DEMO_NOTICE } from "./plan.ts";

const TOOLS: Anthropic.Tool[] = ["bash", "read", "write"].map((name) => ({
  name,
  input_schema: { type: "object" },
}));
const REQUEST = { model: "tendon-demo", max_tokens: 1000, tools: TOOLS };

describe("the demo model", () => {
  let demo: DemoModel;
  let client: Anthropic;

  beforeEach(async () => {
    demo = await startDemoModel({ log: createLogger("test", "silent") });
    client = new Anthropic({ baseURL: demo.baseUrl, authToken: demo.authToken, apiKey: null, maxRetries: 0 });
  });
  afterEach(() => demo.stop());

  it("streams a whole tool loop to the official client", async () => {
    const messages: Anthropic.MessageParam[] = [{ role: "user", content: "run: echo hi && also: false" }];
    const first = await client.messages.stream({ ...REQUEST, messages }).finalMessage();
    expect(first).toMatchObject({ model: "tendon-demo", stop_reason: "tool_use" });
    const calls = first.content.filter((block) => block.type === "tool_use");
    expect(calls.map((call) => call.input)).toEqual([{ command: "echo hi" }, { command: "false" }]);
    expect(new Set(calls.map((call) => call.id)).size).toBe(2);

    messages.push(
      { role: "assistant", content: first.content },
      {
        role: "user",
        content: [
          { type: "tool_result", tool_use_id: calls[0]!.id, content: "hi" },
          { type: "tool_result", tool_use_id: calls[1]!.id, content: "exit 1", is_error: true },
        ],
      },
    );
    const stream = client.messages.stream({ ...REQUEST, messages });
    let deltas = 0;
    stream.on("text", () => deltas++);
    const last = await stream.finalMessage();
    expect(await stream.finalText()).toBe("`echo hi` printed:\nhi\n\n`false` failed:\nexit 1");
    expect(deltas).toBeGreaterThan(2);
    expect(last.stop_reason).toBe("end_turn");
    expect(last.usage.input_tokens).toBeGreaterThan(first.usage.input_tokens);
    expect(last.usage.output_tokens).toBeGreaterThan(5);
  });

  it("answers without streaming too", async () => {
    const message = await client.messages.create({
      ...REQUEST,
      messages: [{ role: "user", content: "help" }],
    });
    expect(message.content[0]).toMatchObject({ type: "text", text: expect.stringContaining(DEMO_NOTICE) });
  });

  it("calls no tool when the request forbids it", async () => {
    const message = await client.messages.create({
      ...REQUEST,
      tool_choice: { type: "none" },
      messages: [{ role: "user", content: "run: ls" }],
    });
    expect(message.stop_reason).toBe("end_turn");
  });

  it("names its one model", async () => {
    const models = await client.models.list();
    expect(models.data.map((model) => model.id)).toEqual(["tendon-demo"]);
    expect(await client.models.retrieve("tendon-demo")).toMatchObject({ type: "model" });
    await expect(client.models.retrieve("other")).rejects.toMatchObject({ status: 404 });
  });

  it("lets in nobody without its token", async () => {
    const stranger = new Anthropic({
      baseURL: demo.baseUrl,
      authToken: "guess",
      apiKey: null,
      maxRetries: 0,
    });
    await expect(stranger.models.list()).rejects.toMatchObject({ status: 401, type: "authentication_error" });
    expect((await fetch(`${demo.baseUrl}/v1/messages`, { method: "POST", body: "{}" })).status).toBe(401);
  });

  it.each([
    ["{", "not valid JSON"],
    ["[]", "not a JSON object"],
    ["{}", "model: "],
    ['{"model":"m","max_tokens":0}', "max_tokens: "],
    ['{"model":"m","max_tokens":1,"messages":[]}', "messages: "],
    ['{"model":"m","max_tokens":1,"messages":[{"role":"user"}]}', "messages.0.content: "],
    ['{"model":"m","max_tokens":1,"messages":[{"role":"user","content":"x"}],"tools":7}', "tools: "],
  ])("refuses the body %s with the field that is wrong", async (body, message) => {
    const response = await fetch(`${demo.baseUrl}/v1/messages`, {
      method: "POST",
      headers: { authorization: `Bearer ${demo.authToken}` },
      body,
    });
    expect(response.status).toBe(400);
    expect(await response.json()).toMatchObject({
      type: "error",
      error: { type: "invalid_request_error", message: expect.stringContaining(message) },
      request_id: response.headers.get("request-id"),
    });
  });

  it("stops while an answer is open, and may be stopped twice", async () => {
    const stream = client.messages.stream({ ...REQUEST, messages: [{ role: "user", content: "help" }] });
    const ended = stream.finalMessage().then(
      () => "answered",
      () => "cut",
    );
    await stream.emitted("streamEvent");
    await demo.stop();
    await demo.stop();
    expect(await ended).toBe("cut");
    await expect(fetch(demo.baseUrl)).rejects.toThrow();
  });
});
