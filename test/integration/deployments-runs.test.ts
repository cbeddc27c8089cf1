/** What becomes of a deployment's run when something else than its time matters: changes, failures, and bounds. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { armFailpoints } from "../../kit/failpoint.ts";
import { newId } from "../../kit/ids.ts";
import { Turns } from "../../kit/turns.ts";
import { AgentSpecSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { RunDeploymentRequestSchema } from "../../proto/gen/tendon/v1/deployment_service_pb.js";
import { EnvironmentSpecSchema } from "../../proto/gen/tendon/v1/environment_pb.js";
import { Runs } from "../../server/deployment/runs.ts";
import { Scheduler } from "../../server/deployment/scheduler.ts";
import { createAgentStore } from "../../server/store/postgres/agents.ts";
import { createEnvironmentStore } from "../../server/store/postgres/environments.ts";
import { createFileStore } from "../../server/store/postgres/files.ts";
import { createRequestIdStore } from "../../server/store/postgres/request-ids.ts";
import { createVaultStore } from "../../server/store/postgres/vaults.ts";
import { ASSEMBLY_BYTES, DeploymentRig, NO_REQUEST } from "../kit/deployment-rig.ts";
import { eventually } from "../kit/eventually.ts";
import { createWorld } from "../kit/session-rig.ts";

let rig: DeploymentRig;

beforeAll(async () => {
  rig = await DeploymentRig.start();
});
afterEach(() => rig.clear());
afterAll(() => rig?.stop());

test("a deployment that is changed while a run is prepared is run, or fails, as it is now", async () => {
  const { deployments, runs, clock, replicas, log } = rig;
  const [replica] = replicas;
  const turns = new Turns("deployment");
  const requestIds = createRequestIdStore(rig.pool);
  const deps = {
    deployments,
    agents: createAgentStore(rig.pool),
    deploymentRuns: runs,
    requestIds,
    turns,
    log,
  };
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
    const { spec, revision } = (await rig.deployments.find(deploymentId))!;
    await rig.deployments.update({ deploymentId, revision, spec: { ...spec, name }, planned: "kept" });
  };
  const titles = async (deploymentId: string) =>
    (
      await rig.pool.query("select title from sessions where deployment_id = $1 order by created_at", [
        deploymentId,
      ])
    ).rows;

  const made = await rig.newDeployment();
  meanwhile = renamed(made.id, "by hand");
  const run = await slow.manual(made, create(RunDeploymentRequestSchema, { deploymentId: made.id }));
  expect(await titles(made.id)).toEqual([{ title: "by hand" }]);
  expect((await rig.runsOf(made.id)).map(({ id }) => id)).toEqual([run.id]);

  await rig.nextHour();
  meanwhile = renamed(made.id, "by schedule");
  await scheduler.round();
  expect(await rig.runsOf(made.id)).toHaveLength(1);
  await scheduler.round();
  expect(await titles(made.id)).toEqual([{ title: "by hand" }, { title: "by schedule" }]);

  const broken = await rig.newDeployment({ environmentId: newId("environment") });
  await rig.nextHour();
  meanwhile = async () => {
    const { spec, revision } = (await rig.deployments.find(broken.id))!;
    const mended = { ...spec, environmentId: rig.world.environmentId };
    await rig.deployments.update({ deploymentId: broken.id, revision, spec: mended, planned: "kept" });
  };
  await rig.pool.query("update deployments set archived_at = clock_timestamp() where deployment_id = $1", [
    made.id,
  ]);
  await scheduler.round();
  expect((await rig.deployments.find(broken.id))?.pausedBy).toBeUndefined();
  await scheduler.round();
  expect((await rig.runsOf(broken.id)).map(({ error }) => error)).toEqual([undefined]);
});

test("the bytes of files that a run's messages name count until the run is written", async () => {
  const upload = {
    fileId: newId("file"),
    workspaceId: rig.world.workspaceId,
    filename: "a.txt",
    maxBytes: 1e6,
  };
  const end = () => ({ sha256: "", expiresInSeconds: 0 });
  const bytes = ReadableStream.from([Buffer.alloc(300_000, "a")]);
  const { id } = await createFileStore(rig.pool).create({
    ...upload,
    mimeType: "text/plain",
    bytes,
    end,
    requestId: "",
  });
  const content = [{ type: "document", source: { type: "file", file_id: id } }];
  const made = await rig.newDeployment({
    initialEvents: [{ type: "user.message", payload: JSON.stringify({ content }) }],
  });
  await rig.nextHour();
  const holder = await rig.pool.connect();
  await holder.query("begin");
  await holder.query("select 1 from deployments where deployment_id = $1 for update", [made.id]);
  const running = rig.schedulers[0]!.round();
  const waits = `select 1 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'
    and query like '%deployments%'`;
  await eventually(async () => (await rig.pool.query(waits)).rowCount > 0);
  const all = () => rig.assembly.take(ASSEMBLY_BYTES);
  expect(all).toThrow("too many large texts");
  await holder.query("commit");
  holder.release();
  await running;
  expect(await rig.runsOf(made.id)).toMatchObject([{ error: undefined }]);
  all();
  rig.assembly.giveBack(ASSEMBLY_BYTES);
});

test("a failure that stays pauses the deployment, and its run says why", async () => {
  const environments = createEnvironmentStore(rig.pool);
  const environment = await environments.create({
    id: newId("environment"),
    workspaceId: rig.world.workspaceId,
    spec: create(EnvironmentSpecSchema, { name: "elsewhere" }),
    makeDefault: false,
    request: NO_REQUEST,
  });
  const vaultId = newId("vault");
  const vault = await createVaultStore(rig.pool).create({
    id: vaultId,
    workspaceId: rig.world.workspaceId,
    displayName: "v",
    metadata: {},
    request: NO_REQUEST,
    audit: { actor: "test", action: "vault.create", subject: vaultId, workspaceId: rig.world.workspaceId },
  });
  const inEnvironment = await rig.newDeployment({ environmentId: environment.id });
  const withVault = await rig.newDeployment({ vaultIds: [vault.id] });
  const withFile = await rig.newDeployment({
    resources: [{ kind: { case: "file", value: { fileId: newId("file") } } }],
  });
  await environments.archive(environment.id, undefined);
  await rig.pool.query("delete from vaults where vault_id = $1", [vault.id]);
  await rig.nextHour();
  await rig.round();
  for (const [{ id }, type] of [
    [inEnvironment, "environment_archived_error"],
    [withVault, "vault_not_found_error"],
    [withFile, "file_not_found_error"],
  ] as const) {
    const [run, ...others] = await rig.runsOf(id);
    expect([run?.error?.type, run?.sessionId, others]).toEqual([type, "", []]);
    expect(run?.error?.message).not.toBe("");
    expect(await rig.deployments.find(id)).toMatchObject({
      pausedBy: "error",
      pausedErrorType: type,
      lastRunAt: undefined,
    });
  }
  await rig.nextHour();
  await rig.round();
  expect(await rig.runsOf(withVault.id)).toHaveLength(1);
});

test("what may pass is a failed run alone: the next time is tried again", async () => {
  const made = await rig.newDeployment({
    initialEvents: [{ type: "user.message", payload: '{"content":[]}' }],
  });
  for (const count of [1, 2]) {
    await rig.nextHour();
    await rig.round();
    const found = await rig.runsOf(made.id);
    expect(found.map(({ error }) => error?.type)).toEqual(
      Array(count).fill("session_creation_rejected_error"),
    );
  }
  expect((await rig.deployments.find(made.id))?.pausedBy).toBeUndefined();
});

test("an agent takes its deployments along when it is archived, and one that it may call pauses them", async () => {
  const agents = createAgentStore(rig.pool);
  const newAgent = (spec: MessageInitShape<typeof AgentSpecSchema>) =>
    agents.create({
      id: newId("agent"),
      workspaceId: rig.world.workspaceId,
      spec: create(AgentSpecSchema, spec),
      request: NO_REQUEST,
    });
  const member = await newAgent({ name: "member" });
  const multiagent = { agents: [{ kind: { case: "agent" as const, value: { id: member.id } } }] };
  const coordinator = await newAgent({ name: "coordinator", multiagent });
  const made = await rig.newDeployment({ agentId: coordinator.id });
  await agents.archive(member.id, undefined);
  await rig.nextHour();
  await rig.round();
  expect((await rig.runsOf(made.id)).map(({ error }) => error?.type)).toEqual(["agent_archived_error"]);
  const other = await rig.newDeployment({ agentId: coordinator.id });
  await agents.archive(coordinator.id, undefined);
  expect((await rig.deployments.find(other.id))?.archivedAt).toBeDefined();
  expect(await rig.deployments.find(made.id)).toMatchObject({
    pausedBy: undefined,
    archivedAt: expect.any(Date),
  });
  await rig.nextHour();
  await rig.round();
  expect([(await rig.runsOf(made.id)).length, await rig.runsOf(other.id)]).toEqual([1, []]);
  await expect(rig.newDeployment({ agentId: coordinator.id })).rejects.toMatchObject({
    reason: "AGENT_ARCHIVED",
  });
});

test("in an archived workspace nothing is made", async () => {
  const away = await createWorld(rig.pool);
  const { agentId, environmentId, workspaceId } = away;
  const made = await rig.newDeployment({ agentId, environmentId }, workspaceId);
  await rig.pool.query("update workspaces set archived_at = clock_timestamp() where workspace_id = $1", [
    workspaceId,
  ]);
  await rig.nextHour();
  await rig.round();
  expect((await rig.runsOf(made.id)).map(({ error }) => error?.type)).toEqual(["workspace_archived_error"]);
  expect(await rig.sessionsOf(made.id)).toEqual([]);
});

test("a bug is told of after three rounds, and not more often", async () => {
  const made = await rig.newDeployment();
  await rig.nextHour();
  armFailpoints("server.run_claimed=error,server.run_claimed=error@2,server.run_claimed=error@3", rig.log);
  await rig.schedulers[0]!.round();
  await rig.schedulers[0]!.round();
  expect(await rig.runsOf(made.id)).toEqual([]);
  await rig.schedulers[0]!.round();
  expect((await rig.runsOf(made.id)).map(({ error }) => error?.type)).toEqual(["unknown_error"]);
  expect((await rig.deployments.find(made.id))?.pausedErrorType).toBe("unknown_error");
});

test("no more deployments are made than a workspace may have, and old runs are forgotten with its sessions", async () => {
  const made = await rig.newDeployment();
  const request = { ...made, id: newId("deployment"), planned: undefined, request: NO_REQUEST };
  await expect(rig.deployments.create({ ...request, most: 1 })).rejects.toMatchObject({
    reason: "LIMIT_EXCEEDED",
  });
  await rig.nextHour();
  await rig.round();
  await rig.nextHour();
  await rig.round();
  const [old, young] = await rig.runsOf(made.id);
  await rig.pool.query(
    "update deployment_runs set created_at = created_at - interval '3 days' where run_id = $1",
    [old!.id],
  );
  expect(await rig.runs.prune(10)).toBe(0);
  await rig.pool.query(`update workspaces set limits = '{"retentionDays":"2"}' where workspace_id = $1`, [
    rig.world.workspaceId,
  ]);
  expect(await rig.runs.prune(10)).toBe(1);
  expect((await rig.runsOf(made.id)).map(({ id }) => id)).toEqual([young!.id]);
});
