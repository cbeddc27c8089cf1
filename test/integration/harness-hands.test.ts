/** Sessions with several hands, a real server, harness and hand agent: tools by slot, side by side, and the brain's own tools for hands. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { afterAll, beforeAll, beforeEach, describe, expect, it, onTestFinished } from "vitest";
import type { ServerClients } from "../../harness/server-clients.ts";
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
let beforeAnswer = async (_call: ScriptedCall): Promise<void> => {};

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
        await beforeAnswer(call);
        return textResult(`${call.name} ran ${String(call.input.command ?? "")}`);
      },
    },
  );
  await agent.connect();
  brains = await newBrains();
});
beforeEach(() => {
  ran.length = 0;
  beforeAnswer = async () => {};
});
afterAll(async () => {
  await brains?.stop();
  await agent?.disconnect();
  await server?.stop();
  await database?.drop();
  await rm(dataDir, { recursive: true, force: true });
});

async function newBrains(through?: (clients: ServerClients) => ServerClients): Promise<Brains> {
  const key = await server.localKey("harness");
  const made = await startBrains({ url: server.url, key, ...(through && { through }) });
  await eventually(() => made.harness.isConnected);
  return made;
}

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

const GO = { type: "user.message", payload: `{"content":[{"type":"text","text":"go"}]}` };

/** A session of an agent that takes these steps, one for each model request. */
async function talk(
  steps: readonly Step[],
  tools: Tools,
  options: { slots?: Record<string, string>; silent?: boolean } = {},
): Promise<string> {
  const spec: Spec = { name: "many", loop: "scripted", loopSettings: JSON.stringify({ steps }), tools };
  const { agent: made } = await server.client(AgentService).createAgent({ spec });
  const request = {
    agentId: made!.id,
    initialEvents: options.silent ? [] : [GO],
    slotEnvironmentIds: options.slots ?? {},
  };
  return (await sessions().createSession(request)).session!.id;
}

async function environment(name: string): Promise<string> {
  const made = await server.client(EnvironmentService).createEnvironment({ spec: { name } });
  return made.environment!.id;
}

async function handsOf(sessionId: string, includeEnded = false) {
  return (await hands().listHands({ sessionId, includeEnded })).hands;
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

/** Texts of the results, in the order of their calls. */
function resultsInOrder(events: readonly Event[]): string[] {
  const texts = new Map(
    payloads(events, "agent.tool_result").map((p) => [
      p.tool_use_id,
      p.content.map(({ text }) => text).join(""),
    ]),
  );
  return events.filter(({ type }) => type === "agent.tool_use").map(({ id }) => texts.get(id) ?? "");
}

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
    expect(await handsOf(sessionId)).toEqual([]);
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

describe("a session with several hands", () => {
  it("has an environment for each slot: its own word first, then its agent's, then the default slot's", async () => {
    const [gpu, other] = await Promise.all([environment("gpu"), environment("other")]);
    const tools = [handTools(), handTools("gpu", { environmentId: gpu }), handTools("test")];
    const byAgent = await sessions().getSession({ sessionId: await talk([], tools) });
    const { environmentId } = byAgent.session!;
    expect(byAgent.session?.slotEnvironmentIds).toEqual({ gpu, test: environmentId });
    const said = await talk([], tools, { slots: { gpu: other } });
    expect((await sessions().getSession({ sessionId: said })).session?.slotEnvironmentIds).toEqual({
      gpu: other,
      test: environmentId,
    });
    await expect(talk([], [handTools("gpu", { environmentId: "env_none" })])).rejects.toThrow("env_none");
  });

  it("offers each slot's tools under the slot's name, and calls to different hands run side by side", async () => {
    const gpu = await environment("another gpu");
    // Nobody answers before all three run.
    beforeAnswer = async () => {
      await eventually(() => ran.length === 3);
    };
    const call = (name: string) => ({ name, input: { command: name } });
    const sessionId = await talk(
      [{ calls: [call("bash"), call("gpu__bash"), call("test__bash")] }],
      [handTools(), handTools("gpu", { environmentId: gpu }), handTools("test")],
    );
    const events = await rested(sessionId);
    expect(resultTexts(events).sort()).toEqual([
      "bash ran bash",
      "bash ran gpu__bash",
      "bash ran test__bash",
    ]);
    expect(new Set(ran.map(({ handId }) => handId)).size).toBe(3);
    const made = await handsOf(sessionId);
    const { environmentId } = (await sessions().getSession({ sessionId })).session!;
    expect(Object.fromEntries(made.map((hand) => [hand.slot, hand.environmentId]))).toEqual({
      "": environmentId,
      gpu,
      test: environmentId,
    });
  });
});

const ALL = ["hand_execute", "hand_hand_over", "hand_list", "hand_provision", "hand_release"];
const reach = (hand: string, tool: string, input: object = {}) => ({
  name: "hand_execute",
  input: { hand, tool, input },
});

describe("hands that come later", () => {
  it("are provisioned, listed, reached and released by the brain, and none is made by a wrong name", async () => {
    const sessionId = await talk(
      [
        { calls: [{ name: "hand_provision", input: { slot: "late" } }] },
        { calls: [reach("late", "bash", { command: "here" }), { name: "hand_list" }] },
        { calls: [{ name: "hand_list", input: { slot: "late" } }, reach("lte", "bash")] },
        { calls: [{ name: "hand_release", input: { slot: "late" } }] },
        { calls: [reach("late", "bash"), { name: "hand_release", input: { slot: "late" } }] },
        { calls: [reach("no slot", "bash"), reach("late", "no tool"), reach("", "no_such")] },
      ],
      [brainTools(ALL)],
    );
    const events = await rested(sessionId);
    const texts = resultsInOrder(events);
    const [hand] = await handsOf(sessionId, true).then((all) => all.filter(({ slot }) => slot === "late"));
    expect(texts[0]).toContain(`the slot "late": ${hand?.id}, ready`);
    expect(texts[1]).toBe("bash ran here");
    expect(ran[0]).toMatchObject({ handId: hand?.id, name: "bash" });
    expect(texts[2]).toContain("the default slot: no hand yet");
    expect(texts[3]).toContain("Input schema: {");
    expect(texts[4]).toContain(`there is no hand in the slot "lte"`);
    expect(texts[5]).toContain(`${hand?.id} in the slot "late" is released`);
    expect(texts[6]).toContain(`there is no hand in the slot "late"`);
    expect(texts[7]).toContain(`There is no hand in the slot "late"`);
    expect(texts[8]).toContain(`"no slot" is no name of a slot`);
    expect(texts[9]).toContain(`"tool" must be the name`);
    expect(texts[10]).toContain(`this hand has no tool "no_such"`);
    expect(await handsOf(sessionId)).toHaveLength(1);
  });

  it("are reached by calls like any other: the log has slot, tool and input as written, and the server the result", async () => {
    const input = { command: "x", at: [1, { deep: "}" }] };
    const sessionId = await talk([{ calls: [reach("", "bash", input)] }], [brainTools(["hand_execute"])]);
    const events = await rested(sessionId);
    expect(payloads(events, "agent.tool_use")).toMatchObject([
      { name: "bash", hand: "", via: "hand_execute", input, evaluated_permission: "allow" },
    ]);
    expect(ran).toMatchObject([{ name: "bash", input }]);
    expect(payloads(events, "agent.tool_result")).toMatchObject([{ outcome: "completed", is_error: false }]);
  });

  it("are reached only as far as the agent allows: the stricter permission of both holds (R23)", async () => {
    const asks = handTools("", {
      tools: { bash: { permission: Permission.ALWAYS_ASK }, write: { disabled: true } },
    });
    const steps = [{ calls: [reach("", "bash", { command: "x" }), reach("", "write"), reach("", "echo")] }];
    const sessionId = await talk(steps, [asks, brainTools(["hand_execute"])]);
    const asked = await rested(sessionId);
    expect(payloads(asked, "agent.tool_use").map((p) => p.evaluated_permission)).toEqual([
      "ask",
      "deny",
      "allow",
    ]);
    expect(ran.map(({ name }) => name)).toEqual(["echo"]);
    const [bash] = asked.filter(({ type }) => type === "agent.tool_use");
    const payload = JSON.stringify({ tool_use_id: bash!.id, result: "allow" });
    await sessions().emitEvents({ sessionId, events: [{ type: "user.tool_confirmation", payload }] });
    await eventually(() => ran.length === 2);
    const always = { defaultPolicy: { permission: Permission.ALWAYS_ASK } };
    const through = await talk(steps, [handTools(), brainTools(["hand_execute"], always)]);
    const both = await rested(through);
    expect(payloads(both, "agent.tool_use").map((p) => p.evaluated_permission)).toEqual([
      "ask",
      "ask",
      "ask",
    ]);
  });

  it("come from another session with what is in them, and go on in their new slot (H6)", async () => {
    const given = [{ calls: [reach("given", "bash", { command: "there" })] }];
    const to = await talk(given, [brainTools(ALL)], { silent: true });
    const pass = { name: "hand_hand_over", input: { to_session: to, to_slot: "given" } };
    const from = await talk(
      [{ calls: [{ name: "bash", input: { command: "first" } }] }, { calls: [pass] }, { calls: [pass] }],
      [handTools(), brainTools(ALL)],
    );
    const texts = resultsInOrder(await rested(from));
    expect(texts[1]).toContain(`is now the hand of ${to} in the slot "given"`);
    expect(texts[2]).toContain("There is no hand in the default slot now");
    await sessions().emitEvents({ sessionId: to, events: [GO] });
    const events = await eventually(async () => {
      const now = await rested(to);
      return ran.length === 2 ? now : undefined;
    });
    expect(resultTexts(events)).toEqual([expect.stringContaining("bash ran there")]);
    expect(ran[1]?.handId).toBe(ran[0]?.handId);
  });

  it("are not passed to a session that takes none, and the one that has them goes on", async () => {
    const to = await talk([], [brainTools(ALL)], { silent: true });
    await sessions().archiveSession({ sessionId: to });
    const pass = { name: "hand_hand_over", input: { to_session: to } };
    const from = await talk(
      [{ calls: [{ name: "bash" }] }, { calls: [pass] }],
      [handTools(), brainTools(ALL)],
    );
    expect(resultsInOrder(await rested(from))[1]).toContain("is archived");
    expect(await handsOf(from)).toHaveLength(1);
  });

  it("are refused where the workspace has as many as it may, instead of being waited for", async () => {
    const holder = await talk([{ calls: [{ name: "bash" }] }], [handTools()]);
    await rested(holder);
    const { workspaceId } = (await sessions().getSession({ sessionId: holder })).session!;
    const limit = (most: number) =>
      server.client(AdminService).updateWorkspace({ workspaceId, limits: { hands: most } });
    onTestFinished(() => limit(0).then(() => {}));
    await limit(1);
    const steps = [{ calls: [{ name: "hand_provision", input: { slot: "late" } }] }];
    const sessionId = await talk(steps, [brainTools(ALL)]);
    expect(resultTexts(await rested(sessionId))[0]).toContain("the one hand that it may have");
  });

  it("are made only in environments that the session has", async () => {
    const foreign = await environment("not of the session");
    const steps = [{ calls: [{ name: "hand_provision", input: { slot: "late", environment: foreign } }] }];
    const sessionId = await talk(steps, [brainTools(ALL)]);
    expect(resultTexts(await rested(sessionId))[0]).toContain("must be one of this session's environments");
    expect(await handsOf(sessionId)).toEqual([]);
  });
});

describe("after the death of a harness between a tool's effect and its result", () => {
  /** The first harness never hears what came of the method; the next one takes over once `between` is done. */
  async function takeOver(
    method: "provision" | "releaseHand" | "handOver",
    steps: Step[],
    between: (sessionId: string) => Promise<void>,
  ): Promise<string> {
    let wasCalled = false;
    await brains.stop();
    const first = await newBrains((clients) => ({
      ...clients,
      hands: {
        ...clients.hands,
        [method]: async (...args: Parameters<ServerClients["hands"][typeof method]>) => {
          await (clients.hands[method] as (...all: unknown[]) => Promise<unknown>)(...args);
          wasCalled = true;
          return new Promise<never>(() => {});
        },
      },
    }));
    const sessionId = await talk(steps, [handTools(), brainTools(ALL)]);
    await eventually(() => wasCalled);
    await between(sessionId);
    const stopped = first.stop();
    brains = await newBrains();
    await stopped;
    await rested(sessionId);
    return sessionId;
  }

  it("the same hand is provisioned, not a second one (H1)", async () => {
    const steps = [{ calls: [{ name: "hand_provision", input: { slot: "late" } }] }];
    const sessionId = await takeOver("provision", steps, async () => {});
    const made = await handsOf(sessionId, true);
    expect(made).toHaveLength(1);
    expect(resultTexts(await log(sessionId))).toEqual([expect.stringContaining(made[0]!.id)]);
  });

  it("what was released stays the hand that was meant: the slot's next one is kept", async () => {
    const steps = [{ calls: [{ name: "bash" }] }, { calls: [{ name: "hand_release" }] }];
    let next = "";
    const sessionId = await takeOver("releaseHand", steps, async (id) => {
      const { hand } = await hands().provision({ requestId: `next ${id}`, sessionId: id });
      next = hand!.id;
    });
    expect((await handsOf(sessionId)).map(({ id }) => id)).toEqual([next]);
    const text = resultsInOrder(await log(sessionId))[1];
    expect(text).toContain("is released");
    expect(text).not.toContain(next);
  });

  it("a hand is handed over once", async () => {
    const to = await talk([], [brainTools(ALL)], { silent: true });
    const pass = { name: "hand_hand_over", input: { to_session: to } };
    const sessionId = await takeOver(
      "handOver",
      [{ calls: [{ name: "bash" }] }, { calls: [pass] }],
      async () => {},
    );
    expect(resultsInOrder(await log(sessionId))[1]).toContain(`is now the hand of ${to}`);
    const [hand] = await handsOf(to);
    expect(hand?.ownerNumber).toBe(2n);
  });
});

describe("the tools of a slot", () => {
  it("stay what they were at the session's first model request, whatever hand agents come to offer", async () => {
    const bash = { calls: [{ name: "bash", input: { command: "x" } }] };
    const sessionId = await talk([{ say: "first" }, bash], [handTools()]);
    await rested(sessionId);
    await agent.disconnect();
    const tools = [{ name: "draw", description: "Draws.", inputSchema: `{"type":"object"}` }];
    const other = await enrolledAgent(
      { url: server.url, admin: server.client(AdminService) },
      { greeting: { drivers: [{ name: "process", available: true, tools, capabilities: [] }] } },
    );
    await other.connect();
    await sessions().emitEvents({ sessionId, events: [GO] });
    const says = (id: string) =>
      eventually(async () => {
        const [text] = resultTexts(await rested(id));
        return text;
      });
    expect(await says(sessionId)).toContain(`this hand has no tool "bash". It has: draw`);
    const next = await talk([bash], [handTools()]);
    expect(await says(next)).toContain(`There is no tool named "bash". Tools: draw`);
    await other.disconnect();
    await agent.connect();
  });
});
