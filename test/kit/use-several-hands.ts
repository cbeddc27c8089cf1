/** A real server and harness and a scripted hand agent for the tests of one file, and sessions whose agents have tools for several hands. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { afterAll, beforeAll, beforeEach } from "vitest";
import type { ServerClients } from "../../harness/server-clients.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import type { AgentSpecSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import type { Hand } from "../../proto/gen/tendon/v1/hand_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { type Brains, startBrains } from "./brains.ts";
import { eventually } from "./eventually.ts";
import { createTestDatabase, type TestDatabase } from "./postgres.ts";
import { enrolledAgent } from "./replica-rig.ts";
import { type ScriptedCall, type ScriptedHandAgent, textResult } from "./scripted-hand-agent.ts";
import { startServer, type TestServer } from "./server.ts";

type Spec = MessageInitShape<typeof AgentSpecSchema>;
type Tools = NonNullable<Spec["tools"]>;

export interface Step {
  say?: string;
  calls?: { name: string; input?: object }[];
}

export interface SeveralHands {
  readonly server: TestServer;
  readonly agent: ScriptedHandAgent;
  /** Stopped after the tests; whoever stops them before puts others here. */
  brains: Brains;
  /** What the hand agent ran in this test. */
  readonly ran: ScriptedCall[];
  /** What the hand agent waits for before it answers; nothing, at the beginning of each test. */
  beforeAnswer: (call: ScriptedCall) => Promise<void>;
  newBrains(through?: (clients: ServerClients) => ServerClients): Promise<Brains>;
  sessions(): Client<typeof SessionService>;
  hands(): Client<typeof HandService>;
  /** A session of an agent that takes these steps, one for each model request; `silent`: nobody has said `GO` yet. */
  talk(
    steps: readonly Step[],
    tools: Tools,
    options?: { slots?: Record<string, string>; silent?: boolean },
  ): Promise<string>;
  /** Makes one, and gives its id. */
  environment(name: string): Promise<string>;
  handsOf(sessionId: string, includeEnded?: boolean): Promise<Hand[]>;
  log(sessionId: string): Promise<Event[]>;
  /** Waits until the session rests, and gives its log. */
  rested(sessionId: string): Promise<Event[]>;
}

export const GO = { type: "user.message", payload: `{"content":[{"type":"text","text":"go"}]}` };

export const handTools = (slot = "", more: object = {}): Tools[number] => ({
  kind: { case: "handToolset", value: { slot, ...more } },
});
export const brainTools = (names: string[], more: object = {}): Tools[number] => ({
  kind: { case: "brainToolset", value: { names, ...more } },
});

export function useSeveralHands(): SeveralHands {
  let database: TestDatabase;
  let dataDir = "";
  let server: TestServer;
  let agent: ScriptedHandAgent;
  let brains: Brains;
  const ran: ScriptedCall[] = [];
  const sessions = () => server.client(SessionService);
  const hands = () => server.client(HandService);
  const log = async (sessionId: string) => (await sessions().getEvents({ sessionId, limit: 1_000 })).events;
  const rig: SeveralHands = {
    get server() {
      return server;
    },
    get agent() {
      return agent;
    },
    get brains() {
      return brains;
    },
    set brains(others) {
      brains = others;
    },
    ran,
    beforeAnswer: async () => {},
    async newBrains(through) {
      const key = await server.localKey("harness");
      const made = await startBrains({ url: server.url, key, ...(through && { through }) });
      await eventually(() => made.harness.isConnected);
      return made;
    },
    sessions,
    hands,
    async talk(steps, tools, options = {}) {
      const spec: Spec = { name: "many", loop: "scripted", loopSettings: JSON.stringify({ steps }), tools };
      const { agent: made } = await server.client(AgentService).createAgent({ spec });
      const request = {
        agentId: made!.id,
        initialEvents: options.silent ? [] : [GO],
        slotEnvironmentIds: options.slots ?? {},
      };
      return (await sessions().createSession(request)).session!.id;
    },
    async environment(name) {
      const made = await server.client(EnvironmentService).createEnvironment({ spec: { name } });
      return made.environment!.id;
    },
    handsOf: async (sessionId, includeEnded = false) =>
      (await hands().listHands({ sessionId, includeEnded })).hands,
    log,
    rested: (sessionId) =>
      eventually(
        async () => {
          const { session } = await sessions().getSession({ sessionId });
          if (session?.status !== SessionStatus.IDLE || session.hasWork) return undefined;
          return log(sessionId);
        },
        { withinMs: 60_000 },
      ),
  };

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
          await rig.beforeAnswer(call);
          return textResult(`${call.name} ran ${String(call.input.command ?? "")}`);
        },
      },
    );
    await agent.connect();
    brains = await rig.newBrains();
  });
  beforeEach(() => {
    ran.length = 0;
    rig.beforeAnswer = async () => {};
  });
  afterAll(async () => {
    await brains?.stop();
    await agent?.disconnect();
    await server?.stop();
    await database?.drop();
    await rm(dataDir, { recursive: true, force: true });
  });
  return rig;
}
