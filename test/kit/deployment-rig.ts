/** Schedules of deployments: two replicas look, by a clock that the test moves; the database is real. */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { ByteBudget } from "../../kit/byte-budget.ts";
import { armFailpoints } from "../../kit/failpoint.ts";
import { newId } from "../../kit/ids.ts";
import { createLogger } from "../../kit/log.ts";
import { Turns } from "../../kit/turns.ts";
import { DeploymentSpecSchema } from "../../proto/gen/tendon/v1/deployment_pb.js";
import { planAfter } from "../../server/deployment/planning.ts";
import { Runs } from "../../server/deployment/runs.ts";
import { Scheduler } from "../../server/deployment/scheduler.ts";
import type { RunRecord } from "../../server/store/deployment-runs.ts";
import { createAgentStore } from "../../server/store/postgres/agents.ts";
import { createDeploymentRunStore } from "../../server/store/postgres/deployment-runs.ts";
import { createDeploymentStore } from "../../server/store/postgres/deployments.ts";
import { createRequestIdStore } from "../../server/store/postgres/request-ids.ts";
import { FakeClock } from "./fake-clock.ts";
import { createTestDatabase, type TestDatabase } from "./postgres.ts";
import { createWorld, type SessionReplica, type SessionWorld, startReplica } from "./session-rig.ts";

export const NO_REQUEST = { requestId: "", contentHash: new Uint8Array(32) };
/** What both replicas may have in memory of files. */
export const ASSEMBLY_BYTES = 1024 * 1024;

export const say = (text: string) => ({
  type: "user.message",
  payload: JSON.stringify({ content: [{ type: "text", text }] }),
});

export class DeploymentRig {
  readonly log = createLogger("test", "silent");
  readonly clock = new FakeClock(Date.parse("2026-11-30T08:30:00Z"));
  readonly assembly = new ByteBudget(ASSEMBLY_BYTES);
  readonly replicas: SessionReplica[] = [];
  readonly world: SessionWorld;
  readonly pool: ReturnType<TestDatabase["pool"]>;
  readonly deployments: ReturnType<typeof createDeploymentStore>;
  readonly runs: ReturnType<typeof createDeploymentRunStore>;
  schedulers: readonly Scheduler[] = [];
  private readonly database: TestDatabase;

  private constructor(database: TestDatabase, world: SessionWorld) {
    this.database = database;
    this.world = world;
    this.pool = database.pool();
    this.deployments = createDeploymentStore(this.pool);
    this.runs = createDeploymentRunStore(this.pool);
  }

  static async start(): Promise<DeploymentRig> {
    const database = await createTestDatabase();
    const rig = new DeploymentRig(database, await createWorld(database.pool()));
    const { world, assembly, replicas } = rig;
    for (let at = 0; at < 2; at++) replicas.push(await startReplica({ url: database.url, world, assembly }));
    rig.schedulers = replicas.map((replica) => rig.schedulerOf(replica));
    return rig;
  }

  async stop(): Promise<void> {
    for (const replica of this.replicas) await replica.stop();
    await this.database.drop();
  }

  /** After each test: nothing is due. */
  async clear(): Promise<void> {
    armFailpoints(undefined, this.log);
    await this.pool.query("update deployments set archived_at = clock_timestamp() where archived_at is null");
  }

  private schedulerOf({ pool, area }: SessionReplica): Scheduler {
    const { clock, log } = this;
    const deploymentRuns = createDeploymentRunStore(pool);
    const deployments = createDeploymentStore(pool);
    const runs = new Runs({
      deployments,
      deploymentRuns,
      agents: createAgentStore(pool),
      requestIds: createRequestIdStore(pool),
      creation: area.creation,
      turns: new Turns("deployment"),
      log,
    });
    return new Scheduler({ deployments, deploymentRuns, runs, clock, log });
  }

  newDeployment(
    change: MessageInitShape<typeof DeploymentSpecSchema> = {},
    workspaceId = this.world.workspaceId,
  ) {
    const id = newId("deployment");
    const spec = create(DeploymentSpecSchema, {
      name: "hourly",
      agentId: this.world.agentId,
      agentVersion: 1,
      environmentId: this.world.environmentId,
      initialEvents: [say("Write the report.")],
      budget: { maxTurns: 7n },
      schedule: { expression: "0 * * * *", timeZone: "UTC" },
      ...(change as object),
    });
    const planned = planAfter(id, spec, this.clock.nowMs());
    return this.deployments.create({ id, workspaceId, spec, planned, most: 1_000, request: NO_REQUEST });
  }

  /** Both look. */
  async round(): Promise<void> {
    await Promise.all(this.schedulers.map((scheduler) => scheduler.round()));
  }

  /** Past the next full hour and all delays. */
  nextHour(): void {
    const hour = 3_600_000;
    this.clock.skip(hour - (this.clock.nowMs() % hour) + 10 * 60_000);
  }

  /** The oldest first. */
  async runsOf(deploymentId: string): Promise<RunRecord[]> {
    const all = { workspaceId: undefined, hasError: undefined, isScheduled: undefined };
    const times = { createdAtOrAfter: undefined, createdBefore: undefined };
    const page = { size: 100, after: undefined };
    const { items } = await this.runs.list({ ...all, ...times, deploymentId, page });
    return items.reverse();
  }

  async timesOf(deploymentId: string): Promise<(string | undefined)[]> {
    const found = await this.runsOf(deploymentId);
    return found.map(({ scheduledAt }) => scheduledAt?.toISOString().slice(0, 16));
  }

  async sessionsOf(deploymentId: string): Promise<string[]> {
    const { rows } = await this.pool.query<{ session_id: string }>(
      "select session_id from sessions where deployment_id = $1 order by created_at",
      [deploymentId],
    );
    return rows.map((row) => row.session_id);
  }
}
