import Anthropic from "@anthropic-ai/sdk";
import { afterEach, describe, expect, it } from "vitest";
import {
  type FakeMessagesApi,
  type FakeMessagesApiOptions,
  startFakeMessagesApi,
  turn,
} from "./fake-messages-api.ts";
import { asks, BASH, base, call, HELLO, result, says, TEXT, tells } from "./fake-messages-params.ts";

let api: FakeMessagesApi;
afterEach(() => api.stop());

async function start(options: FakeMessagesApiOptions = {}): Promise<Anthropic> {
  api = await startFakeMessagesApi(options);
  return new Anthropic({ baseURL: api.url, apiKey: api.apiKey, maxRetries: 0 });
}

describe("the fake Messages API, counting", () => {
  const mark = { type: "ephemeral" } as const;
  const long = (name: string) => `${name} ${"word ".repeat(2000)}`;
  const system = [{ type: "text" as const, text: long("system"), cache_control: mark }];

  it("reads from the cache what an earlier request wrote up to a breakpoint", async () => {
    const client = await start({ script: () => turn(["ok"]) });
    const first = await client.messages.create({ ...HELLO, system });
    expect(first.usage).toMatchObject({ cache_read_input_tokens: 0 });
    const written = first.usage.cache_creation_input_tokens!;
    expect(written).toBeGreaterThan(2400);

    const messages = [
      asks("hello"),
      says(TEXT),
      tells({ type: "text", text: long("next"), cache_control: mark }),
    ];
    const second = await client.messages.stream({ ...base, system, messages }).finalMessage();
    expect(second.usage.cache_read_input_tokens).toBe(written);
    expect(second.usage.cache_creation_input_tokens).toBeGreaterThan(2400);
    expect(second.usage.input_tokens).toBe(0);

    // The mark moved on: what was marked before is still found.
    const unmarked = [asks("hello"), says(TEXT), tells({ type: "text", text: long("next") })];
    const third = await client.messages.create({
      ...base,
      system,
      messages: [...unmarked, says(TEXT), tells({ ...TEXT, cache_control: mark })],
    });
    const prefix = written + second.usage.cache_creation_input_tokens!;
    expect(third.usage.cache_read_input_tokens).toBe(prefix);
  });

  it.each([
    ["a tool", { tools: [{ ...BASH, description: "new" }] }],
    ["the model", { model: "other" }],
    ["a byte of the system prompt", { system: [{ ...system[0]!, text: `${long("system")}!` }] }],
  ])("reads nothing after %s has changed", async (_, change) => {
    const client = await start({ script: () => turn(["ok"]) });
    await client.messages.create({ ...HELLO, system });
    const { usage } = await client.messages.create({ ...HELLO, system, ...change });
    expect(usage.cache_read_input_tokens).toBe(0);
  });

  it("minds the order of keys in a call's input", async () => {
    const client = await start({ script: () => turn(["ok"]), minCacheTokens: 0 });
    const send = (input: object) =>
      client.messages.create({
        ...base,
        cache_control: mark,
        messages: [asks("x"), says({ ...call("a"), input }), tells(result("a"))],
      });
    await send({ a: 1, b: 2 });
    expect((await send({ b: 2, a: 1 })).usage.cache_read_input_tokens).toBe(0);
    expect((await send({ a: 1, b: 2 })).usage.input_tokens).toBe(0);
  });

  it("keeps tools and system, and drops messages, when the thinking setting changes", async () => {
    const client = await start({ script: () => turn(["ok"]), minCacheTokens: 0 });
    const messages = [tells({ ...TEXT, cache_control: mark })];
    const first = await client.messages.create({ ...base, system, messages });
    const { usage } = await client.messages.create({
      ...base,
      system,
      messages,
      thinking: { type: "adaptive" },
    });
    expect(usage.cache_read_input_tokens).toBeGreaterThan(0);
    expect(usage.cache_read_input_tokens).toBeLessThan(first.usage.cache_creation_input_tokens!);
  });

  it("does not cache short prefixes, and looks at 20 blocks at most, the marked one included", async () => {
    const client = await start({ script: () => turn(["ok"]) });
    const short = { ...base, messages: [tells({ ...TEXT, cache_control: mark })] };
    await client.messages.create(short);
    expect((await client.messages.create(short)).usage.cache_read_input_tokens).toBe(0);

    const grown = (blocks: number) => ({
      ...base,
      messages: [
        tells({ type: "text", text: long("x") }, ...Array(blocks).fill(TEXT), {
          ...TEXT,
          cache_control: mark,
        }),
      ],
    });
    await client.messages.create({
      ...base,
      messages: [tells({ type: "text", text: long("x"), cache_control: mark })],
    });
    expect((await client.messages.create(grown(19))).usage.cache_read_input_tokens).toBe(0);
    await api.stop();
    const again = await start({ script: () => turn(["ok"]) });
    await again.messages.create({
      ...base,
      messages: [tells({ type: "text", text: long("x"), cache_control: mark })],
    });
    expect((await again.messages.create(grown(18))).usage.cache_read_input_tokens).toBeGreaterThan(2000);
  });

  it("takes the script's counts before its own", async () => {
    const client = await start({ script: [turn(["ok"], { usage: { inputTokens: 5, outputTokens: 7 } })] });
    expect((await client.messages.create(HELLO)).usage).toMatchObject({ input_tokens: 5, output_tokens: 7 });
  });
});
