/**
 * R15, H1: many hands are asked for at once while their agent and their server are killed in the middle of making them.
 * Each request ends in one hand, no hand has two owners, and the agent's disk holds those hands and no others.
 */
import { readdir } from "node:fs/promises";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test, vi } from "vitest";
import { isTendonError } from "../../kit/errors.ts";
import type { FailpointName } from "../../kit/failpoint.ts";
import { HandState } from "../../proto/gen/tendon/v1/hand_pb.js";
import { eventually } from "../kit/eventually.ts";
import { trials } from "../kit/fault-trials.ts";
import { HandOperator } from "../kit/hand-operator.ts";
import { type Platform, startPlatform } from "../kit/platform.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";

vi.setConfig({ testTimeout: 600_000, hookTimeout: 120_000 });

const HANDS = trials(30, 200);
/** Where the programs die, each time after another part of the crowd has got that far. */
const AFTER = Math.round(HANDS / 6);
const DEATHS: Record<"server" | "hand-agent", readonly FailpointName[]> = {
  server: ["server.hand_placed", "server.hand_made"],
  "hand-agent": ["agent.hand_noted", "agent.hand_made", "agent.hand_noted"],
};

let database: TestDatabase;
let platform: Platform;
let operator: HandOperator;

beforeAll(async () => {
  database = await createTestDatabase();
  platform = await startPlatform({
    programs: ["hand-agent"],
    env: {
      server: {
        TENDON_DATABASE_URL: database.url,
        TENDON_DATABASE_POOL: "8",
        TENDON_PROVISION_TIMEOUT_MS: "300000",
      },
      "hand-agent": { TENDON_HAND_AGENT_CAPACITY: String(HANDS + 10) },
    },
  });
  operator = new HandOperator(platform);
});
afterAll(async () => {
  await platform?.stop();
  await database?.drop();
});

/** As a client does who was told nothing: asks again under the same id until there is an answer. */
async function insist<T>(ask: () => Promise<T>): Promise<T> {
  let answer: { value: T } | undefined;
  await eventually(
    async () => {
      try {
        answer = { value: await ask() };
        return true;
      } catch (error) {
        if (!isTendonError(error, "UNAVAILABLE") && !isTendonError(error, "DRAINING")) throw error;
        return false;
      }
    },
    { withinMs: 300_000, everyMs: 200 },
  );
  return answer!.value;
}

/** Starts the program again whenever it has died, to die at the next point; in the end it lives. */
async function dieAndComeBack(name: "server" | "hand-agent"): Promise<void> {
  expect(await platform.program(name).end("SIGTERM")).toBe(0);
  for (const point of DEATHS[name]) {
    const failpoints = { TENDON_FAILPOINTS: `${point}=kill@${AFTER}` };
    // The crowd may get it to that point before it counts as started.
    const doomed = await platform.start(name, failpoints).catch(() => platform.program(name));
    expect(await doomed.ended).toBe("SIGKILL");
  }
  await platform.start(name);
}

async function onDisk(): Promise<string[]> {
  return (await readdir(join(platform.dataDir, "hand-agent", "hands"))).toSorted();
}

async function livingHands(): Promise<string[]> {
  const { rows } = await database
    .pool()
    .query<{ hand_id: string }>(
      "select hand_id from hands where state in ('provisioning', 'ready', 'parked')",
    );
  return rows.map(({ hand_id }) => hand_id).toSorted();
}

test(`${HANDS} hands asked for at once while agent and server die again and again: one each, and on disk no others (R15, H1)`, async () => {
  const ask = (index: number) => insist(() => operator.provision(`crowd-${index}`));
  const indexes = Array.from({ length: HANDS }, (_, index) => index);
  const dying = Promise.all([dieAndComeBack("server"), dieAndComeBack("hand-agent")]);
  const [hands] = await Promise.all([Promise.all(indexes.map(ask)), dying]);
  const ids = hands.map(({ id }) => id);
  expect(new Set(ids).size).toBe(HANDS);
  expect(hands.every(({ state }) => state === HandState.READY)).toBe(true);
  // The same request gives the same hand, also now.
  expect((await Promise.all(indexes.map(ask))).map(({ id }) => id)).toEqual(ids);
  expect(await livingHands()).toEqual(ids.toSorted());
  await eventually(async () => expect(await onDisk()).toEqual(ids.toSorted()), {
    withinMs: 60_000,
    everyMs: 200,
  });

  // They are hands: a few of them are used. Then half of all are given back while the agent dies.
  for (const id of ids.slice(0, 5)) expect((await operator.run(id, "echo works")).output).toBe("works\n");
  const [given, kept] = [ids.slice(0, HANDS / 2), ids.slice(HANDS / 2)];
  const releasing = Promise.all(given.map((id) => insist(() => operator.release(id))));
  await platform.program("hand-agent").end("SIGKILL");
  await platform.start("hand-agent");
  const released = await releasing;
  expect(released.every(({ state }) => state === HandState.RELEASED)).toBe(true);
  expect(await livingHands()).toEqual(kept.toSorted());
  // Within a reaper period, which is a minute.
  await eventually(async () => expect(await onDisk()).toEqual(kept.toSorted()), {
    withinMs: 90_000,
    everyMs: 200,
  });
});
