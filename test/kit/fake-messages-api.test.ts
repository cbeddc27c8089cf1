import Anthropic from "@anthropic-ai/sdk";
import { afterEach, describe, expect, it } from "vitest";
import { eventually } from "./eventually.ts";
import {
  drop,
  type FakeMessagesApi,
  type FakeMessagesApiOptions,
  gate,
  hang,
  invalidRequest,
  overloaded,
  rateLimited,
  redactedThinking,
  refusal,
  serverError,
  startFakeMessagesApi,
  text,
  thinking,
  toolUse,
  turn,
} from "./fake-messages-api.ts";
import { asks, base, HELLO, result, says, tells } from "./fake-messages-params.ts";

let api: FakeMessagesApi;
afterEach(() => api.stop());

async function start(options: FakeMessagesApiOptions = {}): Promise<Anthropic> {
  api = await startFakeMessagesApi(options);
  return new Anthropic({ baseURL: api.url, apiKey: api.apiKey, maxRetries: 0 });
}

describe("the fake Messages API, answering", () => {
  it("streams text in the deltas of the script to the official client", async () => {
    const client = await start({ script: [turn([text("Hel", "lo ", "😀")])] });
    const deltas: string[] = [];
    const stream = client.messages.stream(HELLO).on("text", (delta) => deltas.push(delta));
    const message = await stream.finalMessage();
    expect(deltas).toEqual(["Hel", "lo ", "😀"]);
    expect(message).toMatchObject({
      role: "assistant",
      model: "claude-test",
      stop_reason: "end_turn",
      content: [{ type: "text", text: "Hello 😀" }],
    });
    expect(message.usage.input_tokens).toBeGreaterThan(0);
    expect(message.usage.output_tokens).toBeGreaterThan(0);
    expect(api.requests[0]).toMatchObject({ outcome: "answered", json: { stream: true } });
  });

  it("streams thinking, redacted thinking and parallel calls, and takes them back unchanged", async () => {
    const client = await start({
      script: [
        turn([
          thinking("Let me ", "see"),
          redactedThinking("secret"),
          text("Two calls."),
          toolUse("bash", { command: "a" }, { pieces: ['{"com', 'mand":', '"a"}'] }),
          toolUse("bash", { command: "b" }),
        ]),
        turn(["Done."]),
      ],
    });
    const first = await client.messages.stream(HELLO).finalMessage();
    expect(first.stop_reason).toBe("tool_use");
    expect(first.content.map((block) => block.type)).toEqual([
      "thinking",
      "redacted_thinking",
      "text",
      "tool_use",
      "tool_use",
    ]);
    const calls = first.content.filter((block) => block.type === "tool_use");
    expect(calls.map((block) => block.input)).toEqual([{ command: "a" }, { command: "b" }]);
    const messages = [...HELLO.messages, says(...first.content), tells(...calls.map(({ id }) => result(id)))];
    const second = await client.messages.stream({ ...base, messages }).finalMessage();
    expect(second.content).toMatchObject([{ type: "text", text: "Done." }]);
    expect(api.refusals).toEqual([]);
  });

  it("answers without streaming what it would have streamed", async () => {
    const script = () =>
      turn([thinking("hm"), text("a", "b"), toolUse("bash", { command: "x" }, { id: "toolu_1" })]);
    const client = await start({ script });
    const whole = await client.messages.create(HELLO);
    const streamed = await client.messages.stream(HELLO).finalMessage();
    expect(JSON.parse(JSON.stringify(whole.content))).toEqual(JSON.parse(JSON.stringify(streamed.content)));
    expect(streamed.stop_reason).toBe(whole.stop_reason);
  });

  it("records bodies byte for byte and tells when the n-th has come", async () => {
    const client = await start();
    const answered = client.messages.create(HELLO);
    const record = await api.received(1);
    expect(record.body.toString()).toBe(JSON.stringify(HELLO));
    expect(record.headers.authorization).toBe("Bearer test-key");
    await answered;
  });

  it.each([
    ["max_tokens", turn(["half"], { stopReason: "max_tokens" })],
    ["refusal", refusal(["I"], "cyber")],
    ["pause_turn", turn(["wait"], { stopReason: "pause_turn" })],
  ] as const)("stops with %s when the script says so", async (reason, answer) => {
    const client = await start({ script: [answer] });
    const message = await client.messages.stream(HELLO).finalMessage();
    expect(message.stop_reason).toBe(reason);
    expect(message.stop_details?.category ?? null).toBe(reason === "refusal" ? "cyber" : null);
  });

  it("lets a paused answer be continued, and nothing else be prefilled", async () => {
    const client = await start({ script: [turn(["wait"], { stopReason: "pause_turn" }), turn(["on"])] });
    const paused = await client.messages.create(HELLO);
    await client.messages.create({ ...base, messages: [...HELLO.messages, says(...paused.content)] });
    await expect(
      client.messages.create({ ...base, messages: [...HELLO.messages, says({ type: "text", text: "I" })] }),
    ).rejects.toMatchObject({ status: 400, message: expect.stringContaining("prefill") });
  });

  it("sends the first delta and each other only when the test lets it", async () => {
    const [first, second, end] = [gate(), gate(), gate()];
    const client = await start({
      script: [
        turn([text("a", "b")], {
          before: {
            firstDelta: first.opened,
            delta: (n) => (n === 1 ? second.opened : undefined),
            end: () => end.opened,
          },
        }),
      ],
    });
    let got = "";
    const stream = client.messages.stream(HELLO).on("text", (delta) => {
      got += delta;
    });
    await stream.emitted("streamEvent");
    expect(got).toBe("");
    first.open();
    await eventually(() => got === "a");
    second.open();
    await eventually(() => got === "ab");
    expect(api.requests[0]!.outcome).toBe("pending");
    end.open();
    expect((await stream.finalMessage()).stop_reason).toBe("end_turn");
  });

  it("names any model it was not told to miss", async () => {
    const client = await start({ models: ["known"] });
    expect(await client.models.retrieve("known")).toMatchObject({ id: "known", max_input_tokens: 200_000 });
    await expect(client.models.retrieve("other")).rejects.toMatchObject({ status: 404 });
    await expect(client.messages.create(HELLO)).rejects.toMatchObject({
      status: 404,
      type: "not_found_error",
    });
  });

  it("counts tokens without an answer", async () => {
    const client = await start();
    const { max_tokens: _, ...counted } = HELLO;
    expect((await client.messages.countTokens(counted)).input_tokens).toBeGreaterThan(5);
    expect(api.requests).toEqual([]);
  });

  it("follows simple instructions when no script is given", async () => {
    const client = await start();
    const first = await client.messages.create({ ...base, messages: [asks("run: uname -a")] });
    const use = first.content.find((block) => block.type === "tool_use")!;
    expect(first.content).toMatchObject([{ name: "bash", input: { command: "uname -a" } }]);
    const messages = [asks("run: uname -a"), says(...first.content), tells(result(use.id, "Linux"))];
    const last = await client.messages.create({ ...base, messages });
    expect(last.content).toMatchObject([{ text: "`uname -a` printed:\nLinux" }]);
    expect((await client.messages.create(HELLO)).content).toMatchObject([{ text: "You said: hello" }]);
  });
});

describe("the fake Messages API, failing", () => {
  it.each([
    [rateLimited(7), 429, "rate_limit_error"],
    [overloaded(), 529, "overloaded_error"],
    [serverError(), 500, "api_error"],
    [invalidRequest("no"), 400, "invalid_request_error"],
  ])("fails as told: %j", async (failure, status, type) => {
    const client = await start({ script: [failure, turn(["ok"])] });
    const error = await client.messages
      .stream(HELLO)
      .finalMessage()
      .catch((caught) => caught);
    expect(error).toMatchObject({ status, type });
    expect(error.error).toMatchObject({ type: "error", error: { type }, request_id: error.requestID });
    if (status === 429) expect(error.headers.get("retry-after")).toBe("7");
    expect((await client.messages.create(HELLO)).stop_reason).toBe("end_turn");
    expect(api.refusals).toEqual([]);
  });

  it("hangs until the client goes", async () => {
    const client = await start({ script: [hang] });
    const abort = new AbortController();
    const answer = client.messages.create(HELLO, { signal: abort.signal }).catch((error) => error);
    const record = await api.received(1);
    expect(record.outcome).toBe("pending");
    abort.abort();
    expect(await answer).toBeInstanceOf(Anthropic.APIUserAbortError);
    await eventually(() => record.outcome === "client_closed");
  });

  it("drops the connection without an answer", async () => {
    const client = await start({ script: [drop] });
    await expect(client.messages.create(HELLO)).rejects.toBeInstanceOf(Anthropic.APIConnectionError);
  });

  it("notices that the client left a stream", async () => {
    const client = await start({
      script: [turn([text("a", "b")], { before: { delta: (n) => (n === 1 ? gate().opened : undefined) } })],
    });
    const stream = client.messages.stream(HELLO);
    stream.on("text", () => stream.abort());
    await expect(stream.finalMessage()).rejects.toBeInstanceOf(Anthropic.APIUserAbortError);
    await eventually(() => api.requests[0]!.outcome === "client_closed");
  });

  it("cuts a stream after every byte of it, and never sends one more", async () => {
    const answer = [thinking("hm"), text("ü"), toolUse("bash", { a: 1 }, { id: "toolu_x" })];
    const client = await start({
      script: (_, n) => turn(answer, n === 1 ? {} : { breakOff: { atByte: n - 2, how: "destroy" } }),
    });
    await client.messages.stream(HELLO).finalMessage();
    const length = api.requests[0]!.responseBytes!;
    for (let atByte = 0; atByte < length; atByte++) {
      const response = await fetch(`${api.url}/v1/messages`, {
        method: "POST",
        headers: { authorization: "Bearer test-key", "anthropic-version": "2026-10-21" },
        body: JSON.stringify({ ...HELLO, stream: true }),
      });
      const [received, ended] = await readUntilCut(response);
      expect([received, ended]).toEqual([atByte, "cut"]);
    }
    expect(api.requests.filter(({ outcome }) => outcome === "cut")).toHaveLength(length);
  });

  it("fails the official client wherever its stream is cut", async () => {
    const client = await start({
      script: (_, n) => turn(["text"], n === 1 ? {} : { breakOff: { atByte: n * 40, how: "destroy" } }),
    });
    await client.messages.stream(HELLO).finalMessage();
    for (let atByte = 80; atByte < api.requests[0]!.responseBytes! - 60; atByte += 40)
      await expect(client.messages.stream(HELLO).finalMessage()).rejects.toThrow();
  });

  it("ends a stream early as if it were whole", async () => {
    const client = await start({ script: [turn(["x"], { breakOff: { atByte: 700, how: "end" } })] });
    const response = await client.messages.create({ ...HELLO, stream: true }).asResponse();
    expect(await readUntilCut(response)).toEqual([700, "end"]);
  });

  it("sends an error event in the middle of a stream", async () => {
    const client = await start({
      script: [
        turn([text("a", "b", "c")], {
          breakOff: { afterDeltas: 2, errorType: "overloaded_error", message: "Overloaded" },
        }),
      ],
    });
    let got = "";
    const stream = client.messages.stream(HELLO).on("text", (delta) => {
      got += delta;
    });
    await expect(stream.finalMessage()).rejects.toMatchObject({ type: "overloaded_error" });
    expect(got).toBe("ab");
  });

  it("streams a tool input that is not JSON", async () => {
    const client = await start({ script: [turn([toolUse("bash", '{"command": "ls')])] });
    let raw = "";
    const stream = await client.messages.create({ ...HELLO, stream: true });
    for await (const event of stream)
      if (event.type === "content_block_delta" && event.delta.type === "input_json_delta")
        raw += event.delta.partial_json;
    expect(raw).toBe('{"command": "ls');
  });

  it("says loudly that a script has run out", async () => {
    const client = await start({ script: [] });
    await expect(client.messages.create(HELLO)).rejects.toMatchObject({ status: 400 });
    expect(api.refusals).toEqual(["the script has no turn for request 1"]);
    api.enqueue(turn(["more"]));
    expect((await client.messages.create(HELLO)).stop_reason).toBe("end_turn");
  });

  it("stops with answers open, and twice", async () => {
    const client = await start({ script: [hang] });
    const answer = client.messages.create(HELLO).catch((error) => error);
    await api.received(1);
    await api.stop();
    await api.stop();
    expect(await answer).toBeInstanceOf(Anthropic.APIConnectionError);
  });
});

async function readUntilCut(response: Response): Promise<[number, "end" | "cut"]> {
  let bytes = 0;
  try {
    for await (const chunk of response.body! as unknown as AsyncIterable<Uint8Array>) bytes += chunk.length;
    return [bytes, "end"];
  } catch {
    return [bytes, "cut"];
  }
}
