/**
 * R10: the server of a thousand hand agents dies and comes back. Each agent is the product's own, enrolled, with a socket of
 * its own and its own patience.
 */
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { systemClock } from "../../kit/clock.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { type AgentSwarm, startAgentSwarm } from "../kit/agent-swarm.ts";
import { eventually } from "../kit/eventually.ts";
import { trials } from "../kit/fault-trials.ts";
import { type Platform, startPlatform } from "../kit/platform.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { residentBytes } from "../kit/process-tree.ts";
import { promised } from "../kit/promised.ts";

vi.setConfig({ testTimeout: 300_000, hookTimeout: 600_000 });

const AGENTS = trials(100, 1_000);
const ONLINE_WITHIN_MS = 60_000;
/** Connections of the server's pool, and the one that listens. */
const POOL = 10;

let database: TestDatabase;
let platform: Platform;
let swarm: AgentSwarm;

beforeAll(async () => {
  database = await createTestDatabase();
  platform = await startPlatform({
    programs: [],
    env: {
      server: {
        TENDON_DATABASE_URL: database.url,
        TENDON_DATABASE_POOL: String(POOL),
      },
    },
  });
  swarm = await startAgentSwarm({ count: AGENTS, url: platform.url, admin: platform.client(AdminService) });
  await online(new Map());
});
afterAll(async () => {
  await swarm?.stop();
  await platform?.stop();
  await database?.drop();
});

async function countOnline(): Promise<number> {
  return (await platform.client(AdminService).getStatus({}, { deadlineMs: 10_000 })).handAgentsOnline;
}

/** Every agent has had more connections than then, and the server counts it as online. */
async function online(before: ReadonlyMap<string, number>): Promise<void> {
  await eventually(
    async () => {
      const now = [...(await connections())];
      return now.every(([id, count]) => count > (before.get(id) ?? 0)) && (await countOnline()) === AGENTS;
    },
    { withinMs: ONLINE_WITHIN_MS, everyMs: 50 },
  );
}

/** Postgres's processes for the server. */
async function databaseConnections(): Promise<number[]> {
  const { rows } = await database
    .pool()
    .query<{ pid: number }>(
      "select pid from pg_stat_activity where datname = current_database() and backend_type = 'client backend' and application_name <> 'test'",
    );
  return rows.map(({ pid }) => pid);
}

/** How many connections each agent had so far that the server took in. */
async function connections(): Promise<Map<string, number>> {
  const { rows } = await database
    .pool()
    .query<{ id: string; generation: string }>("select hand_agent_id as id, generation from hand_agents");
  return new Map(rows.map(({ id, generation }) => [id, Number(generation)]));
}

test.each([
  ["is killed", "SIGKILL"],
  ["stops in good order", "SIGTERM"],
] as const)(
  `${AGENTS} agents are online again within 60 s when their server %s and another one starts, in one handshake each, within the pool (R10)`,
  async (_, signal) => {
    const before = await connections();
    await platform.program("server").end(signal);
    const downMs = performance.now();
    // On a busy machine those of the server that is gone end while the next one has begun.
    const ending = await databaseConnections();
    const starting = platform.start("server");
    let mostConnections = 0;
    let watching = true;
    const watch = (async () => {
      while (watching) {
        const there = (await databaseConnections()).filter((pid) => !ending.includes(pid));
        mostConnections = Math.max(mostConnections, there.length);
        await systemClock.sleep(20);
      }
    })();
    await starting;
    const upMs = performance.now();
    await online(before);
    const allMs = performance.now();
    watching = false;
    await watch;
    console.log(
      `${AGENTS} agents after ${signal}: server up after ${Math.round(upMs - downMs)} ms, all online ${Math.round(allMs - upMs)} ms later; ` +
        `RSS of the server ${Math.round(residentBytes(platform.program("server").pid) / 1024 ** 2)} MiB, ` +
        `of ${swarm.pids.length} agent processes ${swarm.pids.map((pid) => Math.round(residentBytes(pid) / 1024 ** 2)).join(" and ")} MiB; ` +
        `database connections at most ${mostConnections}`,
    );
    expect(allMs - downMs).toBeLessThan(promised(ONLINE_WITHIN_MS));
    expect(mostConnections).toBeLessThanOrEqual(POOL + 1);
    // Nearly all with the first handshake that the server answered: nobody goes round in circles.
    const needed = [...(await connections())].map(([id, count]) => count - (before.get(id) ?? 0));
    expect(needed).toHaveLength(AGENTS);
    expect(Math.max(...needed)).toBeLessThanOrEqual(2);
    expect(needed.reduce((sum, count) => sum + count, 0)).toBeLessThanOrEqual(AGENTS * 1.1);
    expect(platform.program("server").log()).not.toContain("could not be compared");
  },
);
