/** Schedules of deployments: two replicas look, by a clock that the test moves; the database is real. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { ByteBudget } from "../../kit/byte-budget.ts";
import { armFailpoints } from "../../kit/failpoint.ts";
import { newId } from "../../kit/ids.ts";
import { createLogger } from "../../kit/log.ts";
import { Turns } from "../../kit/turns.ts";
import { AgentSpecSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { DeploymentSpecSchema } from "../../proto/gen/tendon/v1/deployment_pb.js";
import { RunDeploymentRequestSchema } from "../../proto/gen/tendon/v1/deployment_service_pb.js";
import { EnvironmentSpecSchema } from "../../proto/gen/tendon/v1/environment_pb.js";
import { planAfter } from "../../server/deployment/planning.ts";
import { Runs } from "../../server/deployment/runs.ts";
import { Scheduler } from "../../server/deployment/scheduler.ts";
import type { RunRecord } from "../../server/store/deployment-runs.ts";
import { createAgentStore } from "../../server/store/postgres/agents.ts";
import { createDeploymentRunStore } from "../../server/store/postgres/deployment-runs.ts";
import { createDeploymentStore } from "../../server/store/postgres/deployments.ts";
import { createEnvironmentStore } from "../../server/store/postgres/environments.ts";
import { createEventStore } from "../../server/store/postgres/events.ts";
import { createFileStore } from "../../server/store/postgres/files.ts";
import type { Pool } from "../../server/store/postgres/pool.ts";
import { createRequestIdStore } from "../../server/store/postgres/request-ids.ts";
import { createSessionStore } from "../../server/store/postgres/sessions.ts";
import { createVaultStore } from "../../server/store/postgres/vaults.ts";
import { eventually } from "../kit/eventually.ts";
import { FakeClock } from "../kit/fake-clock.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { createWorld, type SessionReplica, type SessionWorld, startReplica } from "../kit/session-rig.ts";

const log = createLogger("test", "silent");
const NO_REQUEST = { requestId: "", contentHash: new Uint8Array(32) };

let database: TestDatabase;
let pool: Pool;
let world: SessionWorld;
let replicas: SessionReplica[];
/** What both may have in memory of files. */
const ASSEMBLY_BYTES = 1024 * 1024;
let assembly: ByteBudget;
let schedulers: Scheduler[];
let clock: FakeClock;
let deployments: ReturnType<typeof createDeploymentStore>;
let runs: ReturnType<typeof createDeploymentRunStore>;

beforeAll(async () => {
  database = await createTestDatabase();
  pool = database.pool();
  world = await createWorld(pool);
  replicas = [];
  assembly = new ByteBudget(ASSEMBLY_BYTES);
  for (let at = 0; at < 2; at++) replicas.push(await startReplica({ url: database.url, world, assembly }));
  deployments = createDeploymentStore(pool);
  runs = createDeploymentRunStore(pool);
  clock = new FakeClock(Date.parse("2026-11-30T08:30:00Z"));
  schedulers = replicas.map((replica) => {
    const deploymentRuns = createDeploymentRunStore(replica.pool);
    const deps = {
      deployments: createDeploymentStore(replica.pool),
      agents: createAgentStore(replica.pool),
      deploymentRuns,
      requestIds: createRequestIdStore(replica.pool),
      creation: replica.area.creation,
      turns: new Turns("deployment"),
      log,
    };
    const made = { deployments: deps.deployments, deploymentRuns, runs: new Runs(deps) };
    return new Scheduler({ ...made, clock, log });
  });
});
afterAll(async () => {
  for (const replica of replicas ?? []) await replica.stop();
  await database?.drop();
});
/** Each test leaves nothing that is due. */
afterEach(async () => {
  armFailpoints(undefined, log);
  await pool.query("update deployments set archived_at = clock_timestamp() where archived_at is null");
});

const say = (text: string) => ({
  type: "user.message",
  payload: JSON.stringify({ content: [{ type: "text", text }] }),
});

async function newDeployment(
  change: MessageInitShape<typeof DeploymentSpecSchema> = {},
  workspaceId = world.workspaceId,
) {
  const id = newId("deployment");
  const spec = create(DeploymentSpecSchema, {
    name: "hourly",
    agentId: world.agentId,
    agentVersion: 1,
    environmentId: world.environmentId,
    initialEvents: [say("Write the report.")],
    budget: { maxTurns: 7n },
    schedule: { expression: "0 * * * *", timeZone: "UTC" },
    ...(change as object),
  });
  const planned = planAfter(id, spec, clock.nowMs());
  return deployments.create({ id, workspaceId, spec, planned, most: 1_000, request: NO_REQUEST });
}

const round = () => Promise.all(schedulers.map((scheduler) => scheduler.round()));

const runsOf = async (deploymentId: string): Promise<RunRecord[]> => {
  const all = { workspaceId: undefined, hasError: undefined, isScheduled: undefined };
  const times = { createdAtOrAfter: undefined, createdBefore: undefined };
  const { items } = await runs.list({
    ...all,
    ...times,
    deploymentId,
    page: { size: 100, after: undefined },
  });
  return items.reverse();
};
const timesOf = async (deploymentId: string) =>
  (await runsOf(deploymentId)).map(({ scheduledAt }) => scheduledAt?.toISOString().slice(0, 16));

async function sessionsOf(deploymentId: string): Promise<string[]> {
  const { rows } = await pool.query<{ session_id: string }>(
    "select session_id from sessions where deployment_id = $1 order by created_at",
    [deploymentId],
  );
  return rows.map((row) => row.session_id);
}

/** Past the next full hour and all delays. */
async function nextHour(): Promise<void> {
  const hour = 3_600_000;
  clock.skip(hour - (clock.nowMs() % hour) + 10 * 60_000);
}

test("a time that has come makes one session with its events, whoever looks, and none before its delay is over", async () => {
  const made = await newDeployment();
  const { scheduledAt, firesAt } = made.planned!;
  clock.skip(firesAt.getTime() - 1 - clock.nowMs());
  expect(clock.nowMs()).toBeGreaterThan(scheduledAt.getTime());
  await round();
  expect(await runsOf(made.id)).toEqual([]);
  clock.skip(1);
  await round();
  await round();
  const [run, ...others] = await runsOf(made.id);
  expect(others).toEqual([]);
  expect(run).toMatchObject({ agentId: world.agentId, agentVersion: 1, scheduledAt, error: undefined });
  const session = (await createSessionStore(pool).find(run!.sessionId))!;
  expect(session).toMatchObject({ title: "hourly", deploymentId: made.id, hasWork: true, head: 1 });
  expect(JSON.parse(session.budget)).toEqual({ maxTurns: "7" });
  const read = {
    sessionId: session.sessionId,
    afterPosition: 0,
    limit: 10,
    maxBytes: 1e6,
    inlineLimitBytes: 1e6,
  };
  const { events } = await createEventStore(pool).read({ ...read, withInternal: false });
  expect(events).toMatchObject([{ type: "user.message", payload: say("Write the report.").payload }]);
  const after = (await deployments.find(made.id))!;
  expect(after.lastRunAt).toBeDefined();
  expect(after.planned?.scheduledAt.getTime()).toBe(scheduledAt.getTime() + 3_600_000);
});

test("every time of many deployments has one run and one session, however many replicas look at once", async () => {
  const made = await Promise.all(Array.from({ length: 6 }, () => newDeployment()));
  for (let hour = 0; hour < 2; hour++) {
    await nextHour();
    await round();
  }
  for (const { id } of made) {
    const times = await timesOf(id);
    expect([times.length, new Set(times).size]).toEqual([2, 2]);
    expect((await runsOf(id)).map(({ sessionId }) => sessionId)).toEqual(await sessionsOf(id));
  }
});

test("a replica that ends between the run and its session leaves neither, and another makes both", async () => {
  const made = await newDeployment();
  await nextHour();
  armFailpoints("server.run_claimed=error", log);
  await schedulers[0]!.round();
  expect([await runsOf(made.id), await sessionsOf(made.id)]).toEqual([[], []]);
  await schedulers[1]!.round();
  await schedulers[0]!.round();
  expect([(await runsOf(made.id)).length, (await sessionsOf(made.id)).length]).toEqual([1, 1]);
  await nextHour();
  armFailpoints("server.run_recorded=error", log);
  await schedulers[0]!.round();
  await round();
  expect([(await runsOf(made.id)).length, (await sessionsOf(made.id)).length]).toEqual([2, 2]);
});

test("a deployment that is changed while a run is prepared is run, or fails, as it is now", async () => {
  const [replica] = replicas;
  const turns = new Turns("deployment");
  const requestIds = createRequestIdStore(pool);
  const deps = { deployments, agents: createAgentStore(pool), deploymentRuns: runs, requestIds, turns, log };
  const { creation } = replica!.area;
  let meanwhile: (() => Promise<unknown>) | undefined;
  const prepared: typeof creation.prepared = async (request, whose, use) => {
    const change = meanwhile;
    meanwhile = undefined;
    await change?.();
    return creation.prepared(request, whose, use);
  };
  const slow = new Runs({ ...deps, creation: { prepared, announce: (made) => creation.announce(made) } });
  const scheduler = new Scheduler({ deployments, deploymentRuns: runs, runs: slow, clock, log });
  const renamed = (deploymentId: string, name: string) => async () => {
    const { spec, revision } = (await deployments.find(deploymentId))!;
    await deployments.update({ deploymentId, revision, spec: { ...spec, name }, planned: "kept" });
  };
  const titles = async (deploymentId: string) =>
    (
      await pool.query("select title from sessions where deployment_id = $1 order by created_at", [
        deploymentId,
      ])
    ).rows;

  const made = await newDeployment();
  meanwhile = renamed(made.id, "by hand");
  const run = await slow.manual(made, create(RunDeploymentRequestSchema, { deploymentId: made.id }));
  expect(await titles(made.id)).toEqual([{ title: "by hand" }]);
  expect((await runsOf(made.id)).map(({ id }) => id)).toEqual([run.id]);

  await nextHour();
  meanwhile = renamed(made.id, "by schedule");
  await scheduler.round();
  expect(await runsOf(made.id)).toHaveLength(1);
  await scheduler.round();
  expect(await titles(made.id)).toEqual([{ title: "by hand" }, { title: "by schedule" }]);

  const broken = await newDeployment({ environmentId: newId("environment") });
  await nextHour();
  meanwhile = async () => {
    const { spec, revision } = (await deployments.find(broken.id))!;
    const mended = { ...spec, environmentId: world.environmentId };
    await deployments.update({ deploymentId: broken.id, revision, spec: mended, planned: "kept" });
  };
  await pool.query("update deployments set archived_at = clock_timestamp() where deployment_id = $1", [
    made.id,
  ]);
  await scheduler.round();
  expect((await deployments.find(broken.id))?.pausedBy).toBeUndefined();
  await scheduler.round();
  expect((await runsOf(broken.id)).map(({ error }) => error)).toEqual([undefined]);
});

test("the bytes of files that a run's messages name count until the run is written", async () => {
  const upload = { fileId: newId("file"), workspaceId: world.workspaceId, filename: "a.txt", maxBytes: 1e6 };
  const end = () => ({ sha256: "", expiresInSeconds: 0 });
  const bytes = ReadableStream.from([Buffer.alloc(300_000, "a")]);
  const { id } = await createFileStore(pool).create({
    ...upload,
    mimeType: "text/plain",
    bytes,
    end,
    requestId: "",
  });
  const content = [{ type: "document", source: { type: "file", file_id: id } }];
  const made = await newDeployment({
    initialEvents: [{ type: "user.message", payload: JSON.stringify({ content }) }],
  });
  await nextHour();
  const holder = await pool.connect();
  await holder.query("begin");
  await holder.query("select 1 from deployments where deployment_id = $1 for update", [made.id]);
  const running = schedulers[0]!.round();
  const waits = `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
    and query like '%deployments%'`;
  await eventually(async () => (await pool.query(waits)).rowCount > 0);
  const all = () => assembly.take(ASSEMBLY_BYTES);
  expect(all).toThrow("too many large texts");
  await holder.query("commit");
  holder.release();
  await running;
  expect(await runsOf(made.id)).toMatchObject([{ error: undefined }]);
  all();
  assembly.giveBack(ASSEMBLY_BYTES);
});

test("after a while without anybody the newest time is run, and none of those before", async () => {
  const made = await newDeployment();
  clock.skip(Date.parse("2026-12-24T18:20:00Z") - clock.nowMs());
  await round();
  await round();
  expect(await timesOf(made.id)).toEqual(["2026-12-24T18:00"]);
});

test("a paused deployment makes nothing, and goes on with the next time", async () => {
  const made = await newDeployment();
  await deployments.pause(made.id);
  await nextHour();
  await round();
  expect(await runsOf(made.id)).toEqual([]);
  const unpaused = await deployments.unpause(made.id, (spec) => planAfter(made.id, spec, clock.nowMs()));
  await round();
  expect(await runsOf(made.id)).toEqual([]);
  await nextHour();
  await round();
  expect((await runsOf(made.id)).map(({ scheduledAt }) => scheduledAt)).toEqual([
    unpaused.planned?.scheduledAt,
  ]);
});

test("a failure that stays pauses the deployment, and its run says why", async () => {
  const environments = createEnvironmentStore(pool);
  const environment = await environments.create({
    id: newId("environment"),
    workspaceId: world.workspaceId,
    spec: create(EnvironmentSpecSchema, { name: "elsewhere" }),
    makeDefault: false,
    request: NO_REQUEST,
  });
  const vaultId = newId("vault");
  const vault = await createVaultStore(pool).create({
    id: vaultId,
    workspaceId: world.workspaceId,
    displayName: "v",
    metadata: {},
    request: NO_REQUEST,
    audit: { actor: "test", action: "vault.create", subject: vaultId, workspaceId: world.workspaceId },
  });
  const inEnvironment = await newDeployment({ environmentId: environment.id });
  const withVault = await newDeployment({ vaultIds: [vault.id] });
  const withFile = await newDeployment({
    resources: [{ kind: { case: "file", value: { fileId: newId("file") } } }],
  });
  await environments.archive(environment.id, undefined);
  await pool.query("delete from vaults where vault_id = $1", [vault.id]);
  await nextHour();
  await round();
  for (const [{ id }, type] of [
    [inEnvironment, "environment_archived_error"],
    [withVault, "vault_not_found_error"],
    [withFile, "file_not_found_error"],
  ] as const) {
    const [run, ...others] = await runsOf(id);
    expect([run?.error?.type, run?.sessionId, others]).toEqual([type, "", []]);
    expect(run?.error?.message).not.toBe("");
    expect(await deployments.find(id)).toMatchObject({
      pausedBy: "error",
      pausedErrorType: type,
      lastRunAt: undefined,
    });
  }
  await nextHour();
  await round();
  expect(await runsOf(withVault.id)).toHaveLength(1);
});

test("what may pass is a failed run alone: the next time is tried again", async () => {
  const made = await newDeployment({ initialEvents: [{ type: "user.message", payload: '{"content":[]}' }] });
  for (const count of [1, 2]) {
    await nextHour();
    await round();
    const found = await runsOf(made.id);
    expect(found.map(({ error }) => error?.type)).toEqual(
      Array(count).fill("session_creation_rejected_error"),
    );
  }
  expect((await deployments.find(made.id))?.pausedBy).toBeUndefined();
});

test("an agent takes its deployments along when it is archived, and one that it may call pauses them", async () => {
  const agents = createAgentStore(pool);
  const newAgent = (spec: MessageInitShape<typeof AgentSpecSchema>) =>
    agents.create({
      id: newId("agent"),
      workspaceId: world.workspaceId,
      spec: create(AgentSpecSchema, spec),
      request: NO_REQUEST,
    });
  const member = await newAgent({ name: "member" });
  const multiagent = { agents: [{ kind: { case: "agent" as const, value: { id: member.id } } }] };
  const coordinator = await newAgent({ name: "coordinator", multiagent });
  const made = await newDeployment({ agentId: coordinator.id });
  await agents.archive(member.id, undefined);
  await nextHour();
  await round();
  expect((await runsOf(made.id)).map(({ error }) => error?.type)).toEqual(["agent_archived_error"]);
  const other = await newDeployment({ agentId: coordinator.id });
  await agents.archive(coordinator.id, undefined);
  expect((await deployments.find(other.id))?.archivedAt).toBeDefined();
  expect(await deployments.find(made.id)).toMatchObject({
    pausedBy: undefined,
    archivedAt: expect.any(Date),
  });
  await nextHour();
  await round();
  expect([(await runsOf(made.id)).length, await runsOf(other.id)]).toEqual([1, []]);
  await expect(newDeployment({ agentId: coordinator.id })).rejects.toMatchObject({
    reason: "AGENT_ARCHIVED",
  });
});

test("webhooks are told of deployments, and of the runs that a schedule has started, in their order", async () => {
  const home = await createWorld(pool);
  const { agentId, environmentId, workspaceId } = home;
  await pool.query(
    "insert into webhook_endpoints (endpoint_id, workspace_id, url, enabled_events) values ($1, $2, 'https://example.com', '{*}')",
    [newId("webhookEndpoint"), workspaceId],
  );
  const made = await newDeployment({ agentId, environmentId }, workspaceId);
  await nextHour();
  await round();
  const { revision, spec } = (await deployments.find(made.id))!;
  await deployments.update({ deploymentId: made.id, revision, spec, planned: "kept" });
  await createEnvironmentStore(pool).archive(environmentId, undefined);
  await nextHour();
  await round();
  await deployments.unpause(made.id, () => undefined);
  await createAgentStore(pool).archive(agentId, undefined);
  const { rows } = await pool.query<{ type: string; subject_id: string }>(
    "select type, subject_id from webhook_events where lane = $1 order by number",
    [made.id],
  );
  const [run, failed] = await runsOf(made.id);
  const told = rows.map((row) => [row.type.replace("deployment", ""), row.subject_id]);
  expect(told).toEqual([
    [".created", made.id],
    ["_run.started", run!.id],
    ["_run.succeeded", run!.id],
    [".updated", made.id],
    ["_run.started", failed!.id],
    ["_run.failed", failed!.id],
    [".paused", made.id],
    [".unpaused", made.id],
    [".archived", made.id],
  ]);
});

test("in an archived workspace nothing is made", async () => {
  const away = await createWorld(pool);
  const { agentId, environmentId, workspaceId } = away;
  const made = await newDeployment({ agentId, environmentId }, workspaceId);
  await pool.query("update workspaces set archived_at = clock_timestamp() where workspace_id = $1", [
    workspaceId,
  ]);
  await nextHour();
  await round();
  expect((await runsOf(made.id)).map(({ error }) => error?.type)).toEqual(["workspace_archived_error"]);
  expect(await sessionsOf(made.id)).toEqual([]);
});

test("a bug is told of after three rounds, and not more often", async () => {
  const made = await newDeployment();
  await nextHour();
  armFailpoints("server.run_claimed=error,server.run_claimed=error@2,server.run_claimed=error@3", log);
  await schedulers[0]!.round();
  await schedulers[0]!.round();
  expect(await runsOf(made.id)).toEqual([]);
  await schedulers[0]!.round();
  expect((await runsOf(made.id)).map(({ error }) => error?.type)).toEqual(["unknown_error"]);
  expect((await deployments.find(made.id))?.pausedErrorType).toBe("unknown_error");
});

test("no more deployments are made than a workspace may have, and old runs are forgotten with its sessions", async () => {
  const made = await newDeployment();
  const request = { ...made, id: newId("deployment"), planned: undefined, request: NO_REQUEST };
  await expect(deployments.create({ ...request, most: 1 })).rejects.toMatchObject({
    reason: "LIMIT_EXCEEDED",
  });
  await nextHour();
  await round();
  await nextHour();
  await round();
  const [old, young] = await runsOf(made.id);
  await pool.query(
    "update deployment_runs set created_at = created_at - interval '3 days' where run_id = $1",
    [old!.id],
  );
  expect(await runs.prune(10)).toBe(0);
  await pool.query(`update workspaces set limits = '{"retentionDays":"2"}' where workspace_id = $1`, [
    world.workspaceId,
  ]);
  expect(await runs.prune(10)).toBe(1);
  expect((await runsOf(made.id)).map(({ id }) => id)).toEqual([young!.id]);
});
