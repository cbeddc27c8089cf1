/**
 * Everything behind a pooler that gives out connections per transaction (R19): two servers, a harness and a hand agent as
 * programs, with and without a direct connection for LISTEN.
 */
import { afterEach, describe, expect, test } from "vitest";
import { newId } from "../../kit/ids.ts";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "../kit/eventually.ts";
import { type Platform, startPlatform } from "../kit/platform.ts";
import { hasPooler, type Pooler, startPooler } from "../kit/pooler.ts";
import { createTestDatabase } from "../kit/postgres.ts";
import { promised } from "../kit/promised.ts";

const ADMIN_KEY = "the-admin-key-of-servers-that-share-a-database";
/** For two servers with pools of 5 each. */
const SERVER_CONNECTIONS = 4;
/** In place of a hint: how often a server asks what is new, and as much again for a busy machine. */
const ASKED_WITHIN_MS = 2_000;

const cleanups: (() => Promise<void>)[] = [];
afterEach(async () => {
  for (const cleanup of cleanups.splice(0).reverse()) await cleanup();
});

interface Setup {
  readonly pooler: Pooler;
  readonly near: Platform;
  readonly far: Platform;
}

async function start(listensDirectly: boolean): Promise<Setup> {
  const database = await createTestDatabase({ migrated: false });
  cleanups.push(() => database.drop());
  const pooler = await startPooler(database.directUrl, SERVER_CONNECTIONS);
  cleanups.push(() => pooler.stop());
  const server = {
    TENDON_DATABASE_URL: pooler.url,
    TENDON_DATABASE_POOL: "5",
    TENDON_ADMIN_KEY: ADMIN_KEY,
    ...(listensDirectly ? { TENDON_DATABASE_LISTEN_URL: database.directUrl } : {}),
  };
  const near = await startPlatform({ env: { server } });
  cleanups.push(() => near.stop());
  const far = await startPlatform({ programs: [], env: { server } });
  cleanups.push(() => far.stop());
  return { pooler, near, far };
}

const say = (text: string) => ({
  type: "user.message",
  payload: JSON.stringify({ content: [{ type: "text", text }] }),
});

async function talk(platform: Platform, words: string): Promise<string> {
  const tools = [{ kind: { case: "handToolset" as const, value: {} } }];
  const { agent } = await platform.client(AgentService).createAgent({ spec: { name: "t", tools } });
  const { session } = await platform
    .client(SessionService)
    .createSession({ agentId: agent!.id, initialEvents: [say(words)] });
  return session!.id;
}

async function restedLog(platform: Platform, sessionId: string, turns: number) {
  return eventually(
    async () => {
      const { events } = await platform.client(SessionService).getEvents({ sessionId, limit: 500 });
      const idle = events.filter(({ type }) => type === "session.status_idle");
      if (idle.length < turns) throw new Error(`not at rest: ${events.map(({ type }) => type).join(" ")}`);
      return events;
    },
    { withinMs: 60_000, everyMs: 100 },
  );
}

/** Everything that a watcher is told, in the background. */
function watch(platform: Platform, sessionId: string) {
  const positions: number[] = [];
  const watching = platform.client(SessionService).watchEvents({ sessionId });
  const ended = (async () => {
    for await (const { kind } of watching)
      if (kind.case === "event") positions.push(Number(kind.value.position));
  })().catch(() => {});
  cleanups.push(async () => {
    watching.cancel();
    await ended;
  });
  return positions;
}

describe.skipIf(!hasPooler).each([
  ["with a direct connection for LISTEN", true],
  ["without one", false],
])("two servers behind a transaction-mode pooler, %s (needs pgbouncer)", (_, listensDirectly) => {
  test("run turns and tool calls, append, watch across servers and outlive the pooler (R19, L4)", async () => {
    const { near, far, pooler } = await start(listensDirectly);
    const sessionId = await talk(near, "run: echo through-$((1+1))-hands");
    const events = await restedLog(near, sessionId, 1);
    expect(events.find(({ type }) => type === "agent.tool_result")?.payload).toContain("through-2-hands");

    const seen = watch(near, sessionId);
    await eventually(() => seen.length === events.length);
    const sessions = far.client(SessionService);
    for (let n = 0; n < 10; n++) {
      const startedMs = performance.now();
      const { head } = await sessions.emitEvents({ sessionId, events: [{ type: "acme.noted" }] });
      await eventually(() => seen.length === Number(head), { everyMs: 2 });
      expect(performance.now() - startedMs).toBeLessThan(promised(ASKED_WITHIN_MS));
    }
    // A brain connected to the one server is found for what the other was told.
    const { head } = await sessions.emitEvents({ sessionId, events: [say("run: echo again")] });
    const after = await restedLog(near, sessionId, 2);
    expect(after.length).toBeGreaterThan(Number(head));
    await eventually(() => seen.length === after.length);

    await pooler.crash();
    const note = { id: newId("event"), type: "acme.noted" };
    const kept = await eventually(() => sessions.emitEvents({ sessionId, events: [note] }));
    await eventually(() => seen.length === Number(kept.head));
    expect(seen).toEqual(seen.map((_, index) => index + 1));
  });
});
