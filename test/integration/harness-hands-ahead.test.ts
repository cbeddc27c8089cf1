/** Hands that are made while the model still writes the call that needs them (H4), and hands that come later: real programs, a model whose stream the test holds. */

import type { MessageInitShape } from "@bufbuild/protobuf";
import { afterAll, beforeAll, expect, it } from "vitest";
import { type AgentSpecSchema, Permission } from "../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import { eventually } from "../kit/eventually.ts";
import {
  type Answer,
  type FakeMessagesApi,
  type Gate,
  gate,
  type MessagesRequest,
  startFakeMessagesApi,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import type { Platform } from "../kit/platform.ts";

type Tools = NonNullable<MessageInitShape<typeof AgentSpecSchema>["tools"]>;

const TIMEOUT_MS = 300_000;

let api: FakeMessagesApi;
let platform: Platform;
/** What the model says to a session's first words, in the order of the requests; then it is done. */
const scripts = new Map<string, Answer[]>();

/** What the judge of a session's calls says, by its first words. */
const verdicts = new Map<string, string>();

beforeAll(async () => {
  api = await startFakeMessagesApi({
    script: ({ messages }: MessagesRequest) => {
      const words = String(messages[0]!.content[0]!.text);
      if (words.startsWith(`{"agent_instructions"`)) {
        const first = JSON.parse(words).conversation[0].text as string;
        return turn([JSON.stringify({ verdict: verdicts.get(first), reason: "so" })]);
      }
      return scripts.get(words)?.shift() ?? turn(["Done."]);
    },
  });
  platform = await startDatabasePlatform({
    env: { harness: { ANTHROPIC_API_KEY: api.apiKey, ANTHROPIC_BASE_URL: api.url } },
  });
}, TIMEOUT_MS);
afterAll(async () => {
  await platform?.stop();
  await api?.stop();
  expect(api.refusals).toEqual([]);
}, TIMEOUT_MS);

const sessions = () => platform.client(SessionService);
const message = (words: string) => ({
  type: "user.message",
  payload: JSON.stringify({ content: [{ type: "text", text: words }] }),
});
const BASH = toolUse("bash", { command: "echo $((6 * 7))" });

/** An answer that stops after it has begun its first call, until the gate is opened. */
function held(until: Gate, more: Partial<Answer> = {}): Answer {
  return turn([BASH], { before: { delta: (n) => (n === 0 ? until.opened : undefined) }, ...more });
}

const handTools = (value: object = {}): Tools[number] => ({ kind: { case: "handToolset", value } });

async function talk(words: string, answers: Answer[], tools: Tools = [handTools()]): Promise<string> {
  scripts.set(words, answers);
  const spec = { name: "ahead", model: { id: "claude-test" }, tools };
  const { agent } = await platform.client(AgentService).createAgent({ spec });
  const request = { agentId: agent!.id, initialEvents: [message(words)] };
  return (await sessions().createSession(request)).session!.id;
}

async function log(sessionId: string): Promise<Event[]> {
  return (await sessions().getEvents({ sessionId, limit: 1_000 })).events;
}

async function types(sessionId: string): Promise<string[]> {
  return (await log(sessionId)).map(({ type }) => type);
}

async function handsOf(sessionId: string, includeEnded = true) {
  return (await platform.client(HandService).listHands({ sessionId, includeEnded })).hands;
}

function handIsReady(sessionId: string): Promise<string> {
  return eventually(
    async () => (await handsOf(sessionId)).find(({ state }) => state === HandState.READY)?.id,
    { withinMs: 60_000 },
  );
}

function rested(sessionId: string): Promise<Event[]> {
  return eventually(
    async () => {
      const { session } = await sessions().getSession({ sessionId });
      const isResting = session?.status === SessionStatus.IDLE && !session.hasWork;
      return isResting ? log(sessionId) : undefined;
    },
    { withinMs: 60_000 },
  );
}

function released(sessionId: string): Promise<Record<string, unknown>> {
  return eventually(
    async () => {
      const event = (await log(sessionId)).find(({ type }) => type === "hand.released");
      return event && (JSON.parse(event.payload) as Record<string, unknown>);
    },
    { withinMs: 60_000 },
  );
}

const position = (events: readonly Event[], type: string) => events.findIndex((event) => event.type === type);

it(
  "a hand is ready before the model has ended the call that needs it, and the call runs there",
  async () => {
    const until = gate();
    const sessionId = await talk("ahead", [held(until)]);
    const handId = await handIsReady(sessionId);
    expect(await types(sessionId)).not.toContain("agent.tool_use");
    until.open();
    const events = await rested(sessionId);
    expect(position(events, "hand.provisioned")).toBeLessThan(position(events, "agent.tool_use"));
    const result = JSON.parse(events.find(({ type }) => type === "agent.tool_result")!.payload);
    expect(result).toMatchObject({ is_error: false, content: [{ text: "42" }] });
    expect((await handsOf(sessionId)).map(({ id }) => id)).toEqual([handId]);
    // A hand that was used stays, however long the session rests.
    expect(events.map(({ type }) => type)).not.toContain("hand.released");
  },
  TIMEOUT_MS,
);

it(
  "no hand is made ahead of a call that somebody has to allow (H4)",
  async () => {
    const until = gate();
    const asks = { defaultPolicy: { permission: Permission.ALWAYS_ASK } };
    const sessionId = await talk("asks", [held(until)], [handTools(asks)]);
    // The stream is open and its call has begun; what would be made is asked for before anything else of it arrives.
    const other = gate();
    const witness = await talk("witness", [held(other)]);
    await handIsReady(witness);
    expect(await handsOf(sessionId)).toEqual([]);
    until.open();
    other.open();
    expect((await rested(sessionId)).map(({ type }) => type)).toContain("agent.tool_use");
    expect(await handsOf(sessionId)).toEqual([]);
    await rested(witness);
  },
  TIMEOUT_MS,
);

it(
  "a hand is ready before its call is judged: one that may run finds it, also once a client says so, one that may not leaves no hand (H4)",
  async () => {
    const auto = [handTools({ defaultPolicy: { permission: Permission.AUTO } })];
    const judged = async (verdict: string) => {
      const until = gate();
      verdicts.set(`judged: ${verdict}`, verdict);
      const sessionId = await talk(`judged: ${verdict}`, [held(until)], auto);
      const handId = await handIsReady(sessionId);
      expect(await types(sessionId)).not.toContain("brain.judging_began");
      until.open();
      return { sessionId, handId, events: await rested(sessionId) };
    };
    const [allowed, denied, asked] = await Promise.all(["allow", "deny", "ask"].map(judged));
    const outputs = async (sessionId: string) =>
      (await log(sessionId))
        .filter(({ type }) => type === "agent.tool_result")
        .map(({ payload }) => JSON.parse(payload).content[0].text);
    expect(await outputs(allowed!.sessionId)).toEqual(["42"]);
    expect(await released(denied!.sessionId)).toMatchObject({ hand_id: denied!.handId, unused: true });
    expect(await outputs(denied!.sessionId)).toEqual([expect.stringContaining("high_risk")]);
    const call = asked!.events.find(({ type }) => type === "agent.tool_use")!;
    const payload = JSON.stringify({ tool_use_id: call.id, result: "allow" });
    const { sessionId } = asked!;
    await sessions().emitEvents({ sessionId, events: [{ type: "user.tool_confirmation", payload }] });
    await eventually(async () => (await outputs(sessionId)).length === 1, { withinMs: 60_000 });
    expect(await outputs(sessionId)).toEqual(["42"]);
    for (const { sessionId, handId } of [allowed!, asked!])
      expect((await handsOf(sessionId)).map(({ id }) => id)).toEqual([handId]);
    expect((await handsOf(denied!.sessionId)).map(({ id }) => id)).toEqual([denied!.handId]);
    await rested(sessionId);
  },
  TIMEOUT_MS,
);

it(
  "an interrupt leaves no hand that nothing used, and the next turn has one again (H1)",
  async () => {
    const [first, second] = [gate(), gate()];
    const sessionId = await talk("interrupted", [held(first), held(second)]);
    const handId = await handIsReady(sessionId);
    await sessions().emitEvents({ sessionId, events: [{ type: "user.interrupt", payload: "{}" }] });
    expect(await released(sessionId)).toMatchObject({ hand_id: handId, unused: true });
    first.open();
    await sessions().emitEvents({ sessionId, events: [message("again")] });
    const next = await handIsReady(sessionId);
    expect(next).not.toBe(handId);
    second.open();
    const events = await rested(sessionId);
    const result = JSON.parse(events.find(({ type }) => type === "agent.tool_result")!.payload);
    // Nothing was lost with a hand that nothing had used, so nobody is told of it.
    expect(result.content).toEqual([{ type: "text", text: "42" }]);
    expect((await handsOf(sessionId, false)).map(({ id }) => id)).toEqual([next]);
  },
  TIMEOUT_MS,
);

it(
  "an answer that was cut off inside its call leaves no hand either, and one that somebody asked for stays",
  async () => {
    const [cut, asked] = [gate(), gate()];
    const half = { type: "tool_use" as const, name: "bash", inputJson: `{"comm` };
    const cutOff = (until: Gate) => held(until, { stopReason: "max_tokens", blocks: [half] });
    const sessionId = await talk("cut", [cutOff(cut)]);
    const kept = await talk("kept", [cutOff(asked)]);
    const [handId, keptId] = await Promise.all([handIsReady(sessionId), handIsReady(kept)]);
    await platform.client(HandService).provision({ requestId: "by a client", sessionId: kept });
    cut.open();
    asked.open();
    expect(await released(sessionId)).toMatchObject({ hand_id: handId, unused: true });
    await rested(kept);
    expect((await handsOf(kept, false)).map(({ id }) => id)).toEqual([keptId]);
  },
  TIMEOUT_MS,
);

it(
  "the death of the harness while its model writes leaves one hand, which the next answer's call uses (H1)",
  async () => {
    const [first, second] = [gate(), gate()];
    const sessionId = await talk("killed", [held(first), held(second)]);
    const handId = await handIsReady(sessionId);
    await platform.program("harness").end("SIGKILL");
    await platform.start("harness");
    await eventually(() => scripts.get("killed")?.length === 0, { withinMs: 60_000 });
    first.open();
    second.open();
    const events = await rested(sessionId);
    const result = JSON.parse(events.find(({ type }) => type === "agent.tool_result")!.payload);
    expect(result).toMatchObject({ is_error: false, content: [{ text: "42" }] });
    expect((await handsOf(sessionId)).map(({ id }) => id)).toEqual([handId]);
  },
  TIMEOUT_MS,
);

it(
  "a hand that comes later changes nothing of what the requests began with, and the model's words stay as it said them",
  async () => {
    const names = ["hand_execute", "hand_provision"];
    const provision = toolUse("hand_provision", { slot: "late" });
    const execute = toolUse("hand_execute", { hand: "late", tool: "bash", input: { command: "echo there" } });
    const tools: Tools = [handTools(), { kind: { case: "brainToolset", value: { names } } }];
    const sessionId = await talk("later", [turn([provision]), turn([execute])], tools);
    await rested(sessionId);
    const requests = api.requests.map(({ json }) => json as unknown as MessagesRequest & { tools: unknown });
    const own = requests.filter(({ messages }) => messages[0]?.content[0]?.text === "later");
    expect(own).toHaveLength(3);
    for (const { tools: offered } of own) expect(offered).toEqual(own[0]?.tools);
    expect(own[2]?.messages).toMatchObject([
      {},
      { content: [{ type: "tool_use", name: "hand_provision" }] },
      { content: [{ type: "tool_result" }] },
      { content: [{ name: "hand_execute", input: { hand: "late", tool: "bash" } }] },
      { content: [{ type: "tool_result", content: [{ text: "there" }] }] },
    ]);
    expect((await handsOf(sessionId)).map(({ slot }) => slot)).toEqual(["late"]);
  },
  TIMEOUT_MS,
);
