/**
 * Two harnesses are forced on one session (R5, E1): one is held back in front of each of its appends and dispatches, another
 * one takes the session and finishes it, and then the first goes on as if nothing had happened.
 */
import { afterAll, afterEach, beforeAll, describe, expect, test } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { type Brains, startBrains } from "../kit/brains.ts";
import { eventually } from "../kit/eventually.ts";
import {
  type FakeMessagesApi,
  startFakeMessagesApi,
  text,
  thinking,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import { callEnds } from "../kit/fault-platform.ts";
import { isWholeRun } from "../kit/fault-trials.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { enrolledAgent } from "../kit/replica-rig.ts";
import { type ScriptedHandAgent, textResult } from "../kit/scripted-hand-agent.ts";
import { startServer, type TestServer } from "../kit/server.ts";
import { Turnstile } from "../kit/turnstile.ts";

const ANSWERS = [
  turn([
    thinking("two"),
    text("Both."),
    toolUse("bash", { command: "a" }),
    toolUse("bash", { command: "b" }),
  ]),
  turn([toolUse("bash", { command: "c" })]),
  turn(["Done."]),
];
const TIMEOUT_MS = isWholeRun ? 1_200_000 : 240_000;
const PATIENT = { modelTimeoutMs: 60_000 };

let database: TestDatabase;
let server: TestServer;
let api: FakeMessagesApi;
let agent: ScriptedHandAgent;
let harnessKey = "";
let agentId = "";
const runs = new Map<string, number>();
const started: Brains[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
  harnessKey = await server.localKey("harness");
  api = await startFakeMessagesApi({
    script: ({ messages }) => ANSWERS[messages.filter(({ role }) => role === "assistant").length]!,
  });
  const tools = [{ kind: { case: "handToolset" as const, value: {} } }];
  const made = await server.client(AgentService).createAgent({ spec: { name: "t", tools } });
  agentId = made.agent?.id ?? "";
  await server.client(EnvironmentService).createEnvironment({ spec: { name: "here" }, makeDefault: true });
  agent = await enrolledAgent(
    { url: server.url, admin: server.client(AdminService) },
    {
      run: ({ key, input }) => {
        runs.set(key, (runs.get(key) ?? 0) + 1);
        return textResult(`ran ${String(input.command)}`);
      },
    },
  );
  await agent.connect();
});
afterEach(async () => {
  for (const brains of started.splice(0)) await brains.stop();
});
afterAll(async () => {
  await agent?.disconnect();
  await server?.stop();
  await api?.stop();
  await database?.drop();
});

async function brains(turnstile?: Turnstile): Promise<Brains> {
  const made = await startBrains({
    url: server.url,
    key: harnessKey,
    model: { url: api.url, apiKey: api.apiKey },
    settings: PATIENT,
    ...(turnstile && { through: (clients) => turnstile.clients(clients) }),
  });
  started.push(made);
  await eventually(() => made.harness.isConnected);
  return made;
}

async function newSession(): Promise<string> {
  const payload = '{"content":[{"type":"text","text":"go"}]}';
  const { session } = await server
    .client(SessionService)
    .createSession({ agentId, initialEvents: [{ type: "user.message", payload }] });
  return session?.id ?? "";
}

async function rested(sessionId: string): Promise<Event[]> {
  const sessions = server.client(SessionService);
  await eventually(
    async () => {
      const { session } = await sessions.getSession({ sessionId });
      return session?.status === SessionStatus.IDLE && !session.hasWork;
    },
    { withinMs: 60_000 },
  );
  return (await sessions.getEvents({ sessionId, limit: 1_000 })).events;
}

/** Who asks is not what the model is told: the last request of a session, without ids that are new each time. */
function lastRequest(since: number): string {
  const body = api.requests.slice(since).at(-1)?.body.toString() ?? "";
  const ids = new Map<string, string>();
  return body.replaceAll(/toolu_\w+/g, (id) => {
    if (!ids.has(id)) ids.set(id, `call ${ids.size}`);
    return ids.get(id)!;
  });
}

/** What a client sees of a turn, apart from ids and from requests of a holder that is gone. */
function story(events: readonly Event[]): string[] {
  return events
    .filter(({ type }) => /^(user|agent)\.|session\.status_idle/.test(type))
    .map(({ type, payload }) => {
      const { content, name, input, is_error, outcome, stop_reason } = JSON.parse(payload);
      return JSON.stringify([type, content, name, input, is_error, outcome, stop_reason]);
    })
    .toSorted();
}

describe("a session with two holders", () => {
  test(
    "has the history of one: whatever the old one still sends is refused, and nothing runs twice",
    async () => {
      const free = new Turnstile(0);
      const serial = await brains(free);
      const serialEvents = await rested(await newSession());
      const serialRequest = lastRequest(0);
      await serial.stop();
      started.pop();
      const steps = free.passed.length;
      expect(free.passed.filter((turn) => turn === "dispatch")).toHaveLength(3);
      expect(steps).toBeGreaterThanOrEqual(9);
      const all = Array.from({ length: steps }, (_, n) => n + 1);
      const some = [1, 2, 1 + free.passed.indexOf("dispatch"), steps];
      for (const stopAt of isWholeRun ? all : some) {
        const label = `held back at ${stopAt} of ${steps}, ${free.passed[stopAt - 1]}`;
        const turnstile = new Turnstile(stopAt);
        const first = await brains(turnstile);
        const since = api.requests.length;
        const sessionId = await newSession();
        await turnstile.reached;
        const second = await brains();
        // The lease runs out without a word to its holder, as when its renewals are lost.
        await database
          .pool()
          .query("update sessions set lease_expires_at = clock_timestamp() where session_id = $1", [
            sessionId,
          ]);
        const events = await rested(sessionId);
        expect(story(events), label).toEqual(story(serialEvents));
        expect(lastRequest(since), label).toEqual(serialRequest);
        turnstile.letThrough();
        await eventually(() => turnstile.answer !== undefined && first.harness.sessions === 0);
        expect(turnstile.answer, label).toBe("LEASE_FENCED");
        expect(await rested(sessionId), label).toEqual(events);
        for (const { toolUseId, outcome } of callEnds(events)) {
          expect(outcome, label).toBe("completed");
          expect(
            [...runs].filter(([key]) => key.includes(toolUseId)),
            label,
          ).toMatchObject([[expect.anything(), 1]]);
        }
        for (const one of [first, second]) await one.stop();
        started.length = 0;
      }
      expect(api.refusals).toEqual([]);
    },
    TIMEOUT_MS,
  );
});
