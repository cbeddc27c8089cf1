/** Servers that are killed while they run a deployment: the time has one run and one session all the same. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { create } from "@bufbuild/protobuf";
import { afterAll, beforeAll, expect, test } from "vitest";
import type { FailpointName } from "../../kit/failpoint.ts";
import { newId } from "../../kit/ids.ts";
import { DeploymentSpecSchema } from "../../proto/gen/tendon/v1/deployment_pb.js";
import { createDeploymentStore } from "../../server/store/postgres/deployments.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { startProgram } from "../kit/program.ts";
import { createWorld } from "../kit/session-rig.ts";

let database: TestDatabase;
let folder: string;
beforeAll(async () => {
  database = await createTestDatabase();
  folder = await mkdtemp(join(tmpdir(), "tendon-killed-"));
});
afterAll(async () => {
  await database?.drop();
  await rm(folder, { recursive: true, force: true });
});

/** A deployment whose time has come, and nobody is there to see it. */
async function dueDeployment(): Promise<string> {
  const { workspaceId, agentId, environmentId } = await createWorld(database.pool());
  const payload = '{"content":[{"type":"text","text":"go"}]}';
  const spec = create(DeploymentSpecSchema, {
    name: "report",
    agentId,
    agentVersion: 1,
    environmentId,
    initialEvents: [{ type: "user.message", payload }],
    schedule: { expression: "0 0 1 1 *", timeZone: "UTC" },
  });
  const due = new Date("2026-01-01T00:00:00Z");
  const { id } = await createDeploymentStore(database.pool()).create({
    id: newId("deployment"),
    workspaceId,
    spec,
    planned: { scheduledAt: due, firesAt: due },
    most: 1,
    request: { requestId: "", contentHash: new Uint8Array(32) },
  });
  return id;
}

async function stateOf(id: string) {
  const { rows } = await database
    .pool()
    .query<{ runs: number; sessions: number; events: number; due: boolean }>(
      `select (select count(*)::integer from deployment_runs where deployment_id = $1) as runs,
       (select count(*)::integer from sessions where deployment_id = $1) as sessions,
       (select count(*)::integer from events e join sessions s using (session_id) where s.deployment_id = $1) as events,
       fires_at <= clock_timestamp() as due
     from deployments where deployment_id = $1`,
      [id],
    );
  return rows[0]!;
}

async function killedAt(point: FailpointName): Promise<void> {
  const dying = startProgram("server", {
    TENDON_DATABASE_URL: database.url,
    TENDON_DATA_DIR: join(folder, "data"),
    TENDON_PORT: "0",
    TENDON_FAILPOINTS: `${point}=kill`,
  });
  expect(await dying.ended).toBe("SIGKILL");
}

test("a server that is killed between a run and its session leaves neither, the next makes both, and the time is done with", async () => {
  const id = await dueDeployment();
  await killedAt("server.run_claimed");
  expect(await stateOf(id)).toEqual({ runs: 0, sessions: 0, events: 0, due: true });
  // It dies before it has told anybody: what it made is there all the same.
  await killedAt("server.run_recorded");
  expect(await stateOf(id)).toEqual({ runs: 1, sessions: 1, events: 1, due: false });
});
