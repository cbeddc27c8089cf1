/** Sessions with several hands, a real server, harness and hand agent: tools by slot, side by side, and the brain's own tools for hands. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { type AgentSpecSchema, Permission } from "../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { type Brains, startBrains } from "../kit/brains.ts";
import { eventually } from "../kit/eventually.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { enrolledAgent } from "../kit/replica-rig.ts";
import { type ScriptedCall, type ScriptedHandAgent, textResult } from "../kit/scripted-hand-agent.ts";
import { startServer, type TestServer } from "../kit/server.ts";

type Spec = MessageInitShape<typeof AgentSpecSchema>;
type Tools = NonNullable<Spec["tools"]>;

let database: TestDatabase;
let server: TestServer;
let brains: Brains;
let agent: ScriptedHandAgent;
let dataDir = "";
const ran: ScriptedCall[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  dataDir = await mkdtemp(join(tmpdir(), "tendon-hands-"));
  server = await startServer({ databaseUrl: database.url, dataDir });
  await server.client(EnvironmentService).createEnvironment({ spec: { name: "here" }, makeDefault: true });
  agent = await enrolledAgent(
    { url: server.url, admin: server.client(AdminService) },
    {
      run: async (call) => {
        ran.push(call);
        return textResult(`${call.name} ran ${String(call.input.command ?? "")}`);
      },
    },
  );
  await agent.connect();
  brains = await startBrains({ url: server.url, key: await server.localKey("harness") });
  await eventually(() => brains.harness.isConnected);
});
afterAll(async () => {
  await brains?.stop();
  await agent?.disconnect();
  await server?.stop();
  await database?.drop();
  await rm(dataDir, { recursive: true, force: true });
});

const sessions = () => server.client(SessionService);
const hands = () => server.client(HandService);
const handTools = (slot = "", more: object = {}): Tools[number] => ({
  kind: { case: "handToolset", value: { slot, ...more } },
});
const brainTools = (names: string[], more: object = {}): Tools[number] => ({
  kind: { case: "brainToolset", value: { names, ...more } },
});

interface Step {
  say?: string;
  calls?: { name: string; input?: object }[];
}

/** A session of an agent that takes these steps, one for each model request. */
async function talk(
  steps: readonly Step[],
  tools: Tools,
  slots: Record<string, string> = {},
): Promise<string> {
  const spec: Spec = { name: "many", loop: "scripted", loopSettings: JSON.stringify({ steps }), tools };
  const { agent: made } = await server.client(AgentService).createAgent({ spec });
  const text = { content: [{ type: "text", text: "go" }] };
  const initialEvents = [{ type: "user.message", payload: JSON.stringify(text) }];
  const request = { agentId: made!.id, initialEvents, slotEnvironmentIds: slots };
  return (await sessions().createSession(request)).session!.id;
}

async function log(sessionId: string): Promise<Event[]> {
  return (await sessions().getEvents({ sessionId, limit: 1_000 })).events;
}

/** Waits until the session rests, and gives its log. */
function rested(sessionId: string): Promise<Event[]> {
  return eventually(
    async () => {
      const { session } = await sessions().getSession({ sessionId });
      if (session?.status !== SessionStatus.IDLE || session.hasWork) return undefined;
      return log(sessionId);
    },
    { withinMs: 20_000 },
  );
}

type Payload = Record<string, unknown> & { content: { text: string }[] };
const payloads = (events: readonly Event[], type: string): Payload[] =>
  events.filter((event) => event.type === type).map(({ payload }) => JSON.parse(payload));
const resultTexts = (events: readonly Event[]) =>
  payloads(events, "agent.tool_result").map(({ content }) => content.map(({ text }) => text).join(""));

describe("the brain's own tools", () => {
  it("run in the harness: the log says so before, has one result, and no hand was made for them", async () => {
    const sessionId = await talk(
      [{ calls: [{ name: "hand_list" }, { name: "hand_list" }] }],
      [brainTools(["hand_list"]), handTools()],
    );
    const events = await rested(sessionId);
    expect(payloads(events, "agent.tool_use")).toMatchObject([
      { name: "hand_list", runs_in: "brain", evaluated_permission: "allow" },
      { name: "hand_list", runs_in: "brain" },
    ]);
    expect(resultTexts(events)).toHaveLength(2);
    for (const text of resultTexts(events)) expect(text).toContain("default slot: no hand yet");
    expect((await hands().listHands({ sessionId })).hands).toEqual([]);
  });

  it("wait for a confirmation where the agent wants one, and a client cannot answer for them (R23)", async () => {
    const always = { defaultPolicy: { permission: Permission.ALWAYS_ASK } };
    const steps = [{ calls: [{ name: "hand_list" }, { name: "hand_list" }] }];
    const sessionId = await talk(steps, [brainTools(["hand_list"], always)]);
    const asked = await rested(sessionId);
    const [first, second] = asked.filter(({ type }) => type === "agent.tool_use").map(({ id }) => id);
    const say = (type: string, payload: object) =>
      sessions().emitEvents({ sessionId, events: [{ type, payload: JSON.stringify(payload) }] });
    const forged = { tool_use_id: first, content: [{ type: "text", text: "mine" }] };
    await expect(say("user.tool_result", forged)).rejects.toThrow("the brain runs itself");
    await expect(hands().cancelExecution({ sessionId, executionId: first! })).rejects.toThrow(
      "the brain runs itself",
    );
    await say("user.tool_confirmation", { tool_use_id: first, result: "allow" });
    await say("user.tool_confirmation", { tool_use_id: second, result: "deny", deny_message: "no need" });
    const events = await eventually(async () => {
      const now = await rested(sessionId);
      return payloads(now, "agent.message").length > 0 ? now : undefined;
    });
    const texts = Object.fromEntries(
      payloads(events, "agent.tool_result").map((p) => [p.tool_use_id, p.content[0]!.text]),
    );
    expect(texts[first!]).toContain("default slot");
    expect(texts[second!]).toContain("denied this call: no need");
  });
});
