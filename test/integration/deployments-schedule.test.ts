/** When a deployment's times make sessions: once each, whoever looks and whoever ends meanwhile. */
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { armFailpoints } from "../../kit/failpoint.ts";
import { newId } from "../../kit/ids.ts";
import { planAfter } from "../../server/deployment/planning.ts";
import { createAgentStore } from "../../server/store/postgres/agents.ts";
import { createEnvironmentStore } from "../../server/store/postgres/environments.ts";
import { createEventStore } from "../../server/store/postgres/events.ts";
import { createSessionStore } from "../../server/store/postgres/sessions.ts";
import { DeploymentRig, say } from "../kit/deployment-rig.ts";
import { createWorld } from "../kit/session-rig.ts";

let rig: DeploymentRig;

beforeAll(async () => {
  rig = await DeploymentRig.start();
});
afterEach(() => rig.clear());
afterAll(() => rig?.stop());

test("a time that has come makes one session with its events, whoever looks, and none before its delay is over", async () => {
  const made = await rig.newDeployment();
  const { scheduledAt, firesAt } = made.planned!;
  rig.clock.skip(firesAt.getTime() - 1 - rig.clock.nowMs());
  expect(rig.clock.nowMs()).toBeGreaterThan(scheduledAt.getTime());
  await rig.round();
  expect(await rig.runsOf(made.id)).toEqual([]);
  rig.clock.skip(1);
  await rig.round();
  await rig.round();
  const [run, ...others] = await rig.runsOf(made.id);
  expect(others).toEqual([]);
  expect(run).toMatchObject({ agentId: rig.world.agentId, agentVersion: 1, scheduledAt, error: undefined });
  const session = (await createSessionStore(rig.pool).find(run!.sessionId))!;
  expect(session).toMatchObject({ title: "hourly", deploymentId: made.id, hasWork: true, head: 1 });
  expect(JSON.parse(session.budget)).toEqual({ maxTurns: "7" });
  const read = {
    sessionId: session.sessionId,
    afterPosition: 0,
    limit: 10,
    maxBytes: 1e6,
    inlineLimitBytes: 1e6,
  };
  const { events } = await createEventStore(rig.pool).read({ ...read, withInternal: false });
  expect(events).toMatchObject([{ type: "user.message", payload: say("Write the report.").payload }]);
  const after = (await rig.deployments.find(made.id))!;
  expect(after.lastRunAt).toBeDefined();
  expect(after.planned?.scheduledAt.getTime()).toBe(scheduledAt.getTime() + 3_600_000);
});

test("every time of many deployments has one run and one session, however many replicas look at once", async () => {
  const made = await Promise.all(Array.from({ length: 6 }, () => rig.newDeployment()));
  for (let hour = 0; hour < 2; hour++) {
    await rig.nextHour();
    await rig.round();
  }
  for (const { id } of made) {
    const times = await rig.timesOf(id);
    expect([times.length, new Set(times).size]).toEqual([2, 2]);
    expect((await rig.runsOf(id)).map(({ sessionId }) => sessionId)).toEqual(await rig.sessionsOf(id));
  }
});

test("a replica that ends between the run and its session leaves neither, and another makes both", async () => {
  const made = await rig.newDeployment();
  await rig.nextHour();
  armFailpoints("server.run_claimed=error", rig.log);
  await rig.schedulers[0]!.round();
  expect([await rig.runsOf(made.id), await rig.sessionsOf(made.id)]).toEqual([[], []]);
  await rig.schedulers[1]!.round();
  await rig.schedulers[0]!.round();
  expect([(await rig.runsOf(made.id)).length, (await rig.sessionsOf(made.id)).length]).toEqual([1, 1]);
  await rig.nextHour();
  armFailpoints("server.run_recorded=error", rig.log);
  await rig.schedulers[0]!.round();
  await rig.round();
  expect([(await rig.runsOf(made.id)).length, (await rig.sessionsOf(made.id)).length]).toEqual([2, 2]);
});

test("after a while without anybody the newest time is run, and none of those before", async () => {
  const made = await rig.newDeployment();
  rig.clock.skip(Date.parse("2026-12-24T18:20:00Z") - rig.clock.nowMs());
  await rig.round();
  await rig.round();
  expect(await rig.timesOf(made.id)).toEqual(["2026-12-24T18:00"]);
});

test("a paused deployment makes nothing, and goes on with the next time", async () => {
  const made = await rig.newDeployment();
  await rig.deployments.pause(made.id);
  await rig.nextHour();
  await rig.round();
  expect(await rig.runsOf(made.id)).toEqual([]);
  const unpaused = await rig.deployments.unpause(made.id, (spec) =>
    planAfter(made.id, spec, rig.clock.nowMs()),
  );
  await rig.round();
  expect(await rig.runsOf(made.id)).toEqual([]);
  await rig.nextHour();
  await rig.round();
  expect((await rig.runsOf(made.id)).map(({ scheduledAt }) => scheduledAt)).toEqual([
    unpaused.planned?.scheduledAt,
  ]);
});

test("webhooks are told of deployments, and of the runs that a schedule has started, in their order", async () => {
  const home = await createWorld(rig.pool);
  const { agentId, environmentId, workspaceId } = home;
  await rig.pool.query(
    "insert into webhook_endpoints (endpoint_id, workspace_id, url, enabled_events) values ($1, $2, 'https://example.com', '{*}')",
    [newId("webhookEndpoint"), workspaceId],
  );
  const made = await rig.newDeployment({ agentId, environmentId }, workspaceId);
  await rig.nextHour();
  await rig.round();
  const { revision, spec } = (await rig.deployments.find(made.id))!;
  await rig.deployments.update({ deploymentId: made.id, revision, spec, planned: "kept" });
  await createEnvironmentStore(rig.pool).archive(environmentId, undefined);
  await rig.nextHour();
  await rig.round();
  await rig.deployments.unpause(made.id, () => undefined);
  await createAgentStore(rig.pool).archive(agentId, undefined);
  const { rows } = await rig.pool.query<{ type: string; subject_id: string }>(
    "select type, subject_id from webhook_events where lane = $1 order by number",
    [made.id],
  );
  const [run, failed] = await rig.runsOf(made.id);
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
