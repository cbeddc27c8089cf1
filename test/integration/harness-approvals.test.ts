/** Calls that need a client, with a real server, harness and hand: answers that come late, twice, or never (R23). */

import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import {
  type AgentSpecSchema,
  OnInterrupt,
  Permission,
  Verdict,
} from "../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { type Brains, startBrains } from "../kit/brains.ts";
import { eventually } from "../kit/eventually.ts";
import {
  type FakeMessagesApi,
  type MessagesRequest,
  startFakeMessagesApi,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { enrolledAgent } from "../kit/replica-rig.ts";
import { type ScriptedCall, type ScriptedHandAgent, textResult } from "../kit/scripted-hand-agent.ts";
import { startServer, type TestServer } from "../kit/server.ts";

type Spec = MessageInitShape<typeof AgentSpecSchema>;

let database: TestDatabase;
let server: TestServer;
let api: FakeMessagesApi;
let brains: Brains;
let agent: ScriptedHandAgent;
let harnessKey = "";
let dataDir = "";
const ran: ScriptedCall[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  dataDir = await mkdtemp(join(tmpdir(), "tendon-approvals-"));
  server = await startServer({ databaseUrl: database.url, dataDir });
  harnessKey = await server.localKey("harness");
  // The first words are the calls that are made; whoever has made some is done.
  api = await startFakeMessagesApi({
    script: ({ messages }: MessagesRequest) => {
      if (messages.some(({ role }) => role === "assistant")) return turn(["Done."]);
      const names = String(messages[0]!.content[0]!.text).split(" ");
      return turn(names.map((name, n) => toolUse(name, { command: `${name} ${n}` })));
    },
  });
  await server.client(EnvironmentService).createEnvironment({ spec: { name: "here" }, makeDefault: true });
  agent = await enrolledAgent(
    { url: server.url, admin: server.client(AdminService) },
    {
      run: async (call) => {
        ran.push(call);
        if (call.name === "bash") return textResult(`ran ${String(call.input.command)}`);
        await new Promise<void>((resolve) =>
          call.signal.addEventListener("abort", () => resolve(), { once: true }),
        );
        return textResult("cancelled", { isError: true });
      },
    },
  );
  await agent.connect();
  brains = await newBrains();
});
afterAll(async () => {
  await brains?.stop();
  await agent?.disconnect();
  await server?.stop();
  await api?.stop();
  expect(api.refusals).toEqual([]);
  await database?.drop();
  await rm(dataDir, { recursive: true, force: true });
});

async function newBrains(): Promise<Brains> {
  const model = { url: api.url, apiKey: api.apiKey };
  const made = await startBrains({ url: server.url, key: harnessKey, model });
  await eventually(() => made.harness.isConnected);
  return made;
}

const ASKS: Spec = {
  name: "asks",
  tools: [
    {
      kind: {
        case: "handToolset",
        value: {
          defaultPolicy: { permission: Permission.ALWAYS_ALLOW },
          tools: { bash: { permission: Permission.ALWAYS_ASK } },
        },
      },
    },
    {
      kind: {
        case: "custom",
        value: { name: "ask_user", description: "Asks.", inputSchema: `{"type":"object"}` },
      },
    },
  ],
};

const sessions = () => server.client(SessionService);
const message = (words: string) => ({
  type: "user.message",
  payload: JSON.stringify({ content: [{ type: "text", text: words }] }),
});

async function talk(words: string, spec: Spec = ASKS): Promise<string> {
  const { agent: made } = await server.client(AgentService).createAgent({ spec });
  const request = { agentId: made?.id ?? "", initialEvents: [message(words)] };
  return (await sessions().createSession(request)).session?.id ?? "";
}

async function log(sessionId: string): Promise<Event[]> {
  return (await sessions().getEvents({ sessionId, limit: 1_000 })).events;
}

/** Waits for the n-th idle event, and gives the log. */
async function idle(sessionId: string, times = 1): Promise<Event[]> {
  return eventually(
    async () => {
      const { session } = await sessions().getSession({ sessionId });
      const events = await log(sessionId);
      const idles = events.filter(({ type }) => type === "session.status_idle").length;
      return session?.status === SessionStatus.IDLE && !session.hasWork && idles >= times
        ? events
        : undefined;
    },
    { withinMs: 60_000 },
  );
}

const idsOf = (events: readonly Event[], type: string) =>
  events.filter((event) => event.type === type).map(({ id }) => id);
const payloads = (events: readonly Event[], type: string) =>
  events.filter((event) => event.type === type).map(({ payload }) => JSON.parse(payload));
const awaited = (events: readonly Event[]) =>
  payloads(events, "session.status_idle").map(({ stop_reason }) => stop_reason.event_ids ?? stop_reason.type);
const runsOf = (id: string) => ran.filter(({ key }) => key.includes(id)).length;
const confirm = (tool_use_id: string, result: string, more: object = {}) => ({
  type: "user.tool_confirmation",
  payload: JSON.stringify({ tool_use_id, result, ...more }),
});
const emit = (sessionId: string, ...events: { id?: string; type: string; payload: string }[]) =>
  sessions().emitEvents({ sessionId, events });

describe("calls that wait for clients", () => {
  it("survive restarts of harness and server; the turn goes on once all are answered, in any order (R23)", async () => {
    const sessionId = await talk("bash ask_user bash");
    const first = await idle(sessionId);
    const [a, b] = idsOf(first, "agent.tool_use");
    const [custom] = idsOf(first, "agent.custom_tool_use");
    expect(awaited(first)).toEqual([[a, custom, b]]);
    await brains.stop();
    // Partly, and while nobody could act on it.
    await emit(sessionId, {
      type: "user.custom_tool_result",
      payload: JSON.stringify({ custom_tool_use_id: custom, content: [{ type: "text", text: "42" }] }),
    });
    await server.stop();
    server = await startServer({ databaseUrl: database.url, dataDir });
    await agent.disconnect();
    await agent.connect(server.url);
    brains = await newBrains();
    expect(awaited(await idle(sessionId, 2)).at(-1)).toEqual([a, b]);
    await emit(sessionId, confirm(b!, "allow"));
    expect(awaited(await idle(sessionId, 3)).at(-1)).toEqual([a]);
    expect([runsOf(a!), runsOf(b!)]).toEqual([0, 1]);
    await emit(sessionId, message("meanwhile"), confirm(a!, "deny", { deny_message: "not that" }));
    const events = await idle(sessionId, 4);
    expect(awaited(events).at(-1)).toBe("end_turn");
    expect(runsOf(a!)).toBe(0);
    const asked = api.requests.filter(({ body }) => body.toString().includes("bash ask_user bash"));
    const results = JSON.stringify(asked[1]!.json);
    expect(results).toMatch(/denied this call: not that.*42.*ran bash 2/);
    // What was said meanwhile waited for the end of the turn (L6).
    expect(results).not.toContain("meanwhile");
    expect(JSON.stringify(asked.at(-1)!.json)).toContain("meanwhile");
  });

  it("take the first answer: a repeat is answered as it was, another word is refused (R23)", async () => {
    const sessionId = await talk("bash ask_user");
    const first = await idle(sessionId);
    const [call] = idsOf(first, "agent.tool_use");
    const [custom] = idsOf(first, "agent.custom_tool_use");
    const before = (await log(sessionId)).length;
    const [receipt] = (await emit(sessionId, confirm(call!, "allow"))).receipts;
    const [again] = (await emit(sessionId, confirm(call!, "allow"))).receipts;
    expect(again).toMatchObject({ id: receipt!.id, position: receipt!.position, duplicate: true });
    const other = emit(sessionId, confirm(call!, "deny", { deny_message: "no" }));
    await expect(other).rejects.toMatchObject({ reason: "CALL_ALREADY_ANSWERED" });
    const result = (words: string) => ({
      type: "user.custom_tool_result",
      payload: JSON.stringify({ custom_tool_use_id: custom, content: [{ type: "text", text: words }] }),
    });
    // A repeat beside something new keeps its place; the new one is appended.
    const both = (await emit(sessionId, confirm(call!, "allow"), result("yes"))).receipts;
    expect(both.map(({ duplicate }) => duplicate)).toEqual([true, false]);
    expect((await emit(sessionId, result("yes"))).receipts).toMatchObject([
      { id: both[1]!.id, duplicate: true },
    ]);
    await expect(emit(sessionId, result("no"))).rejects.toMatchObject({ reason: "CALL_ALREADY_ANSWERED" });
    const events = await idle(sessionId, 2);
    expect(runsOf(call!)).toBe(1);
    const said = events.filter(({ type, position }) => type.startsWith("user.") && position > before);
    expect(said.map(({ type }) => type)).toEqual(["user.tool_confirmation", "user.custom_tool_result"]);
  });

  it("refuse answers once they are closed, and answers that are not theirs, with the field", async () => {
    const sessionId = await talk("bash ask_user");
    const first = await idle(sessionId);
    const [call] = idsOf(first, "agent.tool_use");
    const [custom] = idsOf(first, "agent.custom_tool_use");
    await expect(emit(sessionId, confirm(custom!, "allow"))).rejects.toMatchObject({
      reason: "INVALID_FIELD",
    });
    await expect(emit(sessionId, confirm("sevt_none", "allow"))).rejects.toMatchObject({
      reason: "INVALID_FIELD",
    });
    const twice = emit(sessionId, confirm(call!, "allow"), confirm(call!, "deny"));
    await expect(twice).rejects.toMatchObject({ reason: "INVALID_FIELD" });
    const wrong = { custom_tool_use_id: call, content: [] };
    await expect(
      emit(sessionId, { type: "user.custom_tool_result", payload: JSON.stringify(wrong) }),
    ).rejects.toMatchObject({ reason: "INVALID_FIELD" });
    await emit(sessionId, { type: "user.interrupt", payload: "{}" });
    const closed = await idle(sessionId, 2);
    expect(payloads(closed, "agent.tool_result")).toHaveLength(2);
    expect(payloads(closed, "session.status_idle").at(-1)).toMatchObject({ interrupted: {} });
    const late = [
      confirm(call!, "allow"),
      {
        type: "user.custom_tool_result",
        payload: JSON.stringify({ custom_tool_use_id: custom, content: [] }),
      },
    ];
    for (const answer of late)
      await expect(emit(sessionId, answer)).rejects.toMatchObject({ reason: "CALL_ALREADY_ANSWERED" });
    expect((await log(sessionId)).length).toBe(closed.length);
    const { session } = await sessions().getSession({ sessionId });
    expect(session?.hasWork).toBe(false);
    expect(runsOf(call!)).toBe(0);
  });

  it("get their default verdict when nobody answers in time, recorded as any other word", async () => {
    const terms = (timeoutVerdict: Verdict) => ({
      permission: Permission.ALWAYS_ASK,
      answerTimeoutMs: 1_500n,
      timeoutVerdict,
    });
    const spec: Spec = {
      name: "hurried",
      tools: [
        {
          kind: {
            case: "handToolset",
            value: { tools: { bash: terms(Verdict.ALLOW), echo: terms(Verdict.DENY) } },
          },
        },
        {
          kind: {
            case: "custom",
            value: {
              name: "ask_user",
              description: "Asks.",
              inputSchema: `{"type":"object"}`,
              answerTimeoutMs: 1_500n,
            },
          },
        },
      ],
    };
    const sessionId = await talk("bash echo ask_user", spec);
    const first = await idle(sessionId);
    expect(payloads(first, "agent.tool_use")).toMatchObject([
      { answer_timeout_ms: 1_500, timeout_verdict: "allow" },
      { answer_timeout_ms: 1_500, timeout_verdict: "deny" },
    ]);
    const toldAt = Number(first.find(({ type }) => type === "session.status_idle")!.createdAt!.seconds);
    // Nobody holds the session, and its holder dies with its server's memory: the time is in the database.
    const events = await idle(sessionId, 2);
    const words = events.filter(({ type }) => type === "user.tool_confirmation");
    expect(words.map(({ payload }) => JSON.parse(payload))).toMatchObject([
      { result: "allow", timed_out: true },
      { result: "deny", deny_message: "Nobody answered within 1.5 s.", timed_out: true },
    ]);
    expect(Number(words[0]!.createdAt!.seconds)).toBeGreaterThanOrEqual(toldAt + 1);
    expect(payloads(events, "user.custom_tool_result")).toMatchObject([{ is_error: true, timed_out: true }]);
    const [bash, echo] = idsOf(events, "agent.tool_use");
    expect([runsOf(bash!), runsOf(echo!)]).toEqual([1, 0]);
    expect(awaited(events).at(-1)).toBe("end_turn");
  });

  it("wait for ever where the agent sets no time, and an answer in time keeps the verdict away", async () => {
    const spec: Spec = {
      name: "patient",
      tools: [
        {
          kind: {
            case: "handToolset",
            value: { tools: { bash: { permission: Permission.ALWAYS_ASK, answerTimeoutMs: 60_000n } } },
          },
        },
      ],
    };
    const sessionId = await talk("bash", spec);
    const [call] = idsOf(await idle(sessionId), "agent.tool_use");
    const due = await database
      .pool()
      .query<{ ms: number }>(
        "select extract(epoch from answers_due_at - clock_timestamp()) * 1000 as ms from sessions where session_id = $1",
        [sessionId],
      );
    expect(Number(due.rows[0]?.ms)).toBeGreaterThan(30_000);
    expect(Number(due.rows[0]?.ms)).toBeLessThanOrEqual(60_000);
    await emit(sessionId, confirm(call!, "allow"));
    const events = await idle(sessionId, 2);
    expect(payloads(events, "user.tool_confirmation")).toHaveLength(1);
    const forever = await talk("bash");
    await idle(forever);
    const { rows } = await database
      .pool()
      .query("select session_id from sessions where answers_due_at is not null and session_id = any($1)", [
        [forever, sessionId],
      ]);
    expect(rows).toEqual([]);
  });
});

describe("an interrupt while calls run", () => {
  const leaves: Spec = {
    name: "leaves",
    onInterrupt: OnInterrupt.LEAVE_CALLS,
    tools: [{ kind: { case: "handToolset", value: {} } }],
  };

  it.each([
    ["cancels them by default", { ...leaves, onInterrupt: OnInterrupt.CANCEL_CALLS }, true],
    ["leaves them alone where the agent wants it so", leaves, false],
  ])("%s; each has its one result, and the next turn is valid (X3)", async (_, spec, isCancelled) => {
    const sessionId = await talk("echo echo", spec);
    const uses = await eventually(async () => {
      const ids = idsOf(await log(sessionId), "agent.tool_use");
      return ids.length === 2 && ids.every((id) => runsOf(id) === 1) ? ids : undefined;
    });
    await emit(sessionId, { type: "user.interrupt", payload: "{}" }, message("instead"));
    const events = await idle(sessionId, 2);
    expect(
      payloads(events, "agent.tool_result")
        .map(({ tool_use_id }) => tool_use_id)
        .toSorted(),
    ).toEqual(uses.toSorted());
    const calls = ran.filter(({ key }) => uses.some((id) => key.includes(id)));
    expect(calls.map(({ signal }) => signal.aborted)).toEqual([isCancelled, isCancelled]);
    expect(payloads(events, "session.status_idle")[0]).toMatchObject({
      stop_reason: { type: "end_turn" },
      interrupted: { event_id: idsOf(events, "user.interrupt")[0] },
    });
    expect(awaited(events)).toEqual(["end_turn", "end_turn"]);
    if (isCancelled) return;
    expect(JSON.stringify(payloads(events, "agent.tool_result"))).toContain("goes on by itself");
    // Ending later, they change nothing of the log.
    await sessions().archiveSession({ sessionId, interrupt: true });
  });
});
