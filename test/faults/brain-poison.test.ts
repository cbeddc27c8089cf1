/**
 * One session among many kills whoever runs it (E4). It is found out, isolated and given up; the others finish, and the
 * harnesses are restarted by a supervisor, as they would be.
 */
import { afterEach, describe, expect, test } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { HarnessFleet } from "../kit/deadly-harness.ts";
import { eventually } from "../kit/eventually.ts";
import { isWholeRun, trials } from "../kit/fault-trials.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { startServer, type TestServer } from "../kit/server.ts";

const SESSIONS = trials(30, 100);
const HARNESSES = 2;
const message = { type: "user.message", payload: '{"content":[{"type":"text","text":"go"}]}' };
/** In `npm test` the first; the other takes two deaths more, and dispatch-fairness shows how it is counted. */
const KINDS = [
  ["deadly", "before it can record anything"],
  ["deadly-later", "each time after it has begun to ask its model"],
].slice(0, trials(1, 2));
/** A neighbour says one thing, and takes its time for it: it is in the middle of that when its holder dies. */
const STEPS = { steps: [{ say: "Done." }] };

let database: TestDatabase | undefined;
let server: TestServer | undefined;
let fleet: HarnessFleet | undefined;
afterEach(async () => {
  await fleet?.stop();
  await server?.stop();
  await database?.drop();
});

async function start() {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
  await server.client(EnvironmentService).createEnvironment({ spec: { name: "here" }, makeDefault: true });
  const agents = server.client(AgentService);
  const sessions = server.client(SessionService);
  return {
    server,
    sessions,
    async newSession(loop: string): Promise<string> {
      const spec = { name: loop, loop, loopSettings: JSON.stringify(STEPS) };
      const { agent } = await agents.createAgent({ spec });
      const request = { agentId: agent?.id ?? "", initialEvents: [message] };
      return (await sessions.createSession(request)).session?.id ?? "";
    },
    async events(sessionId: string): Promise<Event[]> {
      return (await sessions.getEvents({ sessionId, limit: 1_000 })).events;
    },
  };
}

const stopReasons = (events: readonly Event[]) =>
  events
    .filter(({ type }) => type === "session.status_idle")
    .map(({ payload }) => JSON.parse(payload).stop_reason.type);

describe("one session among many that kills its harness", () => {
  test.each(KINDS)(
    `(%s: %s) is given up after fewer than 6 deaths of ${HARNESSES} harnesses, and all others finish (E4)`,
    async (loop) => {
      const { server: own, sessions, newSession, events } = await start();
      const neighbours: string[] = [];
      let poison = "";
      for (let n = 0; n < SESSIONS; n++) {
        if (n === Math.floor(SESSIONS / 3)) poison = await newSession(loop);
        else neighbours.push(await newSession("slow"));
      }
      const key = await own.localKey("harness");
      fleet = await HarnessFleet.start(HARNESSES, { url: own.url, key, capacity: 60, answerMs: 1_500 });
      const isOver = async (sessionId: string) => {
        const { session } = await sessions.getSession({ sessionId });
        return session?.status === SessionStatus.IDLE && !session.hasWork;
      };
      for (const sessionId of [poison, ...neighbours]) {
        await eventually(() => isOver(sessionId), { withinMs: isWholeRun ? 600_000 : 180_000, everyMs: 200 });
      }
      expect(stopReasons(await events(poison))).toEqual(["retries_exhausted"]);
      const error = (await events(poison)).find(({ type }) => type === "session.error");
      expect(JSON.parse(error?.payload ?? "{}")).toMatchObject({
        error: { part: "harness", reason: "HARNESS_DIED", retry_status: { type: "exhausted" } },
      });
      for (const sessionId of neighbours) {
        const log = await events(sessionId);
        expect(stopReasons(log)).toEqual(["end_turn"]);
        expect(log.filter(({ type }) => type === "agent.message")).toHaveLength(1);
        expect(log.map(({ position }) => Number(position))).toEqual(log.map((_, index) => index + 1));
      }
      expect(fleet.deaths).toBeGreaterThanOrEqual(3);
      expect(fleet.deaths).toBeLessThan(6);
      // It stays given up: nobody dies of it any more, and somebody else's next message is served.
      const later = await newSession("slow");
      await eventually(() => isOver(later), { withinMs: 60_000, everyMs: 200 });
      expect(fleet.deaths).toBeLessThan(6);
      const { harnesses } = await own.client(AdminService).getStatus({});
      expect(harnesses.length).toBeGreaterThan(0);
    },
    isWholeRun ? 1_200_000 : 300_000,
  );
});
