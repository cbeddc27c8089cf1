/** Two replicas over one database, sessions that they hand out, and scripted harnesses that take them. */
import { type Clock, systemClock } from "../../kit/clock.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import { HarnessService } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "./eventually.ts";
import { createTestDatabase, type TestDatabase } from "./postgres.ts";
import { ScriptedHarness } from "./scripted-harness.ts";
import { startServer, type TestServer } from "./server.ts";

export const message = { type: "user.message", payload: '{"content":[{"type":"text","text":"go"}]}' };

type Hello = ConstructorParameters<typeof ScriptedHarness>[1];

export interface DispatchRig {
  readonly database: TestDatabase;
  readonly a: TestServer;
  readonly b: TestServer;
  readonly harnessKey: string;
  /** An agent without a loop of its own. */
  readonly agentId: string;
  createAgent(loop: string): Promise<string>;
  createSession(agent?: string, withWork?: boolean): Promise<string>;
  harness(server: TestServer, hello?: Hello): ScriptedHarness;
  /** After each test: archives its sessions, and ends its harnesses. */
  clear(): Promise<void>;
  stop(): Promise<void>;
}

/** Scripted harnesses renew nothing by themselves: a lease lasts for a whole test, unless `leaseTtlMs` says how long. */
export async function startDispatchRig({
  leaseTtlMs = 120_000,
  clock = systemClock,
}: {
  leaseTtlMs?: number;
  clock?: Clock;
} = {}): Promise<DispatchRig> {
  const database = await createTestDatabase();
  const settings = { TENDON_LEASE_TTL_MS: String(leaseTtlMs) };
  const a = await startServer({ databaseUrl: database.url, settings, clock });
  const b = await startServer({ databaseUrl: database.url, settings, clock });
  const harnessKey = await a.localKey("harness");
  const createAgent = async (loop: string) => {
    const { agent } = await a.client(AgentService).createAgent({ spec: { name: "t", loop } });
    return agent?.id ?? "";
  };
  const agentId = await createAgent("");
  await a.client(EnvironmentService).createEnvironment({ spec: { name: "default" }, makeDefault: true });
  const harnesses: ScriptedHarness[] = [];
  const sessionIds: string[] = [];
  return {
    database,
    a,
    b,
    harnessKey,
    agentId,
    createAgent,
    async createSession(agent = agentId, withWork = true) {
      const { session } = await a
        .client(SessionService)
        .createSession({ agentId: agent, initialEvents: withWork ? [message] : [] });
      sessionIds.push(session?.id ?? "");
      return session?.id ?? "";
    },
    harness(server, hello = {}) {
      const made = new ScriptedHarness(server.client(HarnessService, harnessKey), hello);
      harnesses.push(made);
      return made;
    },
    async clear() {
      // What a test leaves waiting would count as another death of the next test's harness.
      for (const sessionId of sessionIds.splice(0))
        await a.client(SessionService).archiveSession({ sessionId, interrupt: true });
      for (const harness of harnesses.splice(0)) harness.die();
      // The next test begins when nobody is connected any more.
      await eventually(async () => (await a.client(AdminService).getStatus({})).harnesses.length === 0);
    },
    async stop() {
      await a.stop();
      await b.stop();
      await database.drop();
    },
  };
}
