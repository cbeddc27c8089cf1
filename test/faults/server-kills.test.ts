/**
 * A server process is killed (SIGKILL) right after it acknowledged an append, again and again (R4, L2, E2): nothing that was
 * acknowledged is lost, a retry of what was not gets its one place, and the session is run without another word to it.
 */

import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as delay } from "node:timers/promises";
import { expect, test } from "vitest";
import { type Connection, dial } from "../../kit/dial/dial.ts";
import { isTendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { Pool } from "../../server/store/postgres/pool.ts";
import { SCRIPTED, startBrains } from "../kit/brains.ts";
import { eventually } from "../kit/eventually.ts";
import { trials } from "../kit/fault-trials.ts";
import { type Platform, startPlatform } from "../kit/platform.ts";
import { createTestDatabase } from "../kit/postgres.ts";
import { type SeededRandom, seededRandom } from "../kit/seeded-random.ts";

const KILLS = trials(15, 1_000);
/** Servers side by side, each with a database of its own: a start is mostly waiting. */
const LANES = trials(3, 5);
const SESSIONS_PER_KILL = 4;

/** An append that was sent just before the kill. */
interface Sent {
  readonly sessionId: string;
  readonly events: { id: string; type: string; payload: string }[];
  /** Undefined: no answer came. */
  positions: number[] | undefined;
}

interface Tally {
  kills: number;
  acknowledged: number;
  unanswered: number;
}

async function lane(random: SeededRandom, kills: () => boolean, tally: Tally): Promise<void> {
  const database = await createTestDatabase();
  const platform = await startPlatform({
    programs: [],
    env: {
      server: {
        TENDON_DATABASE_URL: database.url,
        TENDON_DATABASE_POOL: "4",
        // An assignment that died with the server waits for its lease to end.
        TENDON_LEASE_TTL_MS: "1000",
        TENDON_LOG_LEVEL: "info",
      },
    },
  });
  let connection = connect(platform);
  try {
    const { agent } = await connection.client(AgentService).createAgent({ spec: { name: "t", ...SCRIPTED } });
    const harnessKey = (await readFile(join(platform.dataDir, "harness.key"), "utf8")).trim();
    let brains = await startBrains({ url: platform.url, key: harnessKey });
    while (kills()) {
      const sent = await newSessions(connection, agent?.id ?? "", random);
      await killAfterAnswer(platform, connection, sent, random);
      connection.close();
      // The harness of before may come back or not; a new one is there in any case.
      const [again] = await Promise.all([
        platform.start("server").then(() => startBrains({ url: platform.url, key: harnessKey })),
        brains.stop(),
      ]);
      brains = again;
      connection = connect(platform);
      const acknowledged = sent.filter(({ positions }) => positions !== undefined);
      expect(acknowledged.length).toBeGreaterThan(0);
      tally.kills += 1;
      if (tally.kills % 100 === 0) console.log(`${tally.kills} kills, ${tally.acknowledged} acknowledged`);
      tally.acknowledged += acknowledged.length;
      tally.unanswered += sent.length - acknowledged.length;
      for (const one of acknowledged) await expectKeptAndRun(database.pool(), one);
      for (const one of sent) await expectSameOnRetry(connection, database.pool(), one);
    }
    await brains.stop();
  } finally {
    connection.close();
    await platform.stop();
    await database.drop();
  }
}

function connect(platform: Platform): Connection {
  return dial({ url: platform.url, token: () => platform.adminKey, proxy: {} });
}

async function newSessions(connection: Connection, agentId: string, random: SeededRandom): Promise<Sent[]> {
  const sessions = connection.client(SessionService);
  return Promise.all(
    Array.from({ length: SESSIONS_PER_KILL }, async () => {
      const { session } = await sessions.createSession({ agentId });
      const notes = Array.from({ length: random.between(0, 3) }, (_, n) => ({
        id: newId("event"),
        type: "acme.noted",
        payload: JSON.stringify({ n }),
      }));
      const message = {
        id: newId("event"),
        type: "user.message",
        payload: JSON.stringify({ content: [{ type: "text", text: "go" }] }),
      };
      return { sessionId: session?.id ?? "", events: [...notes, message], positions: undefined };
    }),
  );
}

/** All are sent at once; the first answer that comes, or at most some milliseconds more, is the server's end. */
async function killAfterAnswer(
  platform: Platform,
  connection: Connection,
  sent: readonly Sent[],
  random: SeededRandom,
): Promise<void> {
  const sessions = connection.client(SessionService);
  // Mostly at once; else while the session is on its way to a brain, or runs.
  const laterMs = random.chance(0.6) ? 0 : random.between(1, 40);
  const { pid } = platform.program("server");
  let killed: Promise<unknown> | undefined;
  const kill = async () => {
    if (laterMs > 0) await delay(laterMs);
    process.kill(pid, "SIGKILL");
    await platform.program("server").ended;
  };
  await Promise.all(
    sent.map(async (one) => {
      try {
        const { receipts } = await sessions.emitEvents({ sessionId: one.sessionId, events: one.events });
        one.positions = receipts.map(({ position }) => Number(position));
        killed ??= kill();
      } catch (error) {
        if (!isTendonError(error, "UNAVAILABLE")) throw error;
      }
    }),
  );
  await killed;
}

async function logOf(pool: Pool, sessionId: string) {
  const { rows } = await pool.query<{ position: number; event_id: string; type: string; payload: string }>(
    "select position, event_id, type, payload from events where session_id = $1 order by position",
    [sessionId],
  );
  expect(rows.map(({ position }) => position)).toEqual(rows.map((_, index) => index + 1));
  return rows;
}

/** Asked of the database alone: no call wakes the server. */
async function expectKeptAndRun(pool: Pool, { sessionId, events, positions }: Sent): Promise<void> {
  const found = (await logOf(pool, sessionId)).slice(0, events.length);
  expect(found).toEqual(
    events.map(({ id, type, payload }, index) => ({
      position: positions?.[index],
      event_id: id,
      type,
      payload,
    })),
  );
  await eventually(
    async () => {
      const log = await logOf(pool, sessionId);
      if (log.at(-1)?.type !== "session.status_idle")
        throw new Error(`not run: ${JSON.stringify(log.map(({ type }) => type))}`);
      expect(log.filter(({ type }) => type === "agent.message")).toHaveLength(1);
      return true;
    },
    { withinMs: 60_000, everyMs: 50 },
  );
}

async function expectSameOnRetry(connection: Connection, pool: Pool, sent: Sent): Promise<void> {
  const { sessionId, events, positions } = sent;
  const { receipts } = await connection.client(SessionService).emitEvents({ sessionId, events });
  const again = receipts.map(({ position }) => Number(position));
  if (positions !== undefined) expect(again).toEqual(positions);
  const log = await logOf(pool, sessionId);
  expect(again.map((position) => log[position - 1]?.event_id)).toEqual(events.map(({ id }) => id));
  expect(log.filter(({ event_id: id }) => events.some((event) => event.id === id))).toHaveLength(
    events.length,
  );
}

test(
  "R4: killed right after an acknowledged append, the server has lost nothing, and the session is run without a poke",
  async () => {
    const random = seededRandom();
    const tally: Tally = { kills: 0, acknowledged: 0, unanswered: 0 };
    let left = KILLS;
    const goesOn = () => {
      left -= 1;
      return left >= 0;
    };
    const startedMs = performance.now();
    await Promise.all(Array.from({ length: LANES }, () => lane(random.fork(), goesOn, tally)));
    console.log(
      `${tally.kills} kills: ${tally.acknowledged} acknowledged appends kept and run, ${tally.unanswered} unanswered ones retried, ${Math.round((performance.now() - startedMs) / tally.kills)} ms each`,
    );
    expect(tally.kills).toBe(KILLS);
  },
  trials(180_000, 3_600_000),
);
