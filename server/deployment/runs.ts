/** Makes runs: what their session would be is found out first, then run and session are written together. */
import { contentHash } from "../../kit/canonical-json.ts";
import { isTendonError, messageOf, notFound, TendonError } from "../../kit/errors.ts";
import { failpoint } from "../../kit/failpoint.ts";
import { newId } from "../../kit/ids.ts";
import type { Logger } from "../../kit/log.ts";
import type { Turns } from "../../kit/turns.ts";
import type { AgentSpec } from "../../proto/gen/tendon/v1/agent_pb.js";
import {
  type RunDeploymentRequest,
  RunDeploymentRequestSchema,
} from "../../proto/gen/tendon/v1/deployment_service_pb.js";
import type { Principal } from "../ports/principal.ts";
import { madeOnce } from "../ports/repeated-creation.ts";
import type { SessionCreation } from "../ports/session-creation.ts";
import type { AgentStore } from "../store/agents.ts";
import type {
  DeploymentRunStore,
  NewRun,
  RecordedRun,
  RunRecord,
  RunStart,
} from "../store/deployment-runs.ts";
import type { DeploymentRecord, DeploymentStore } from "../store/deployments.ts";
import { type RequestIdStore, SCOPES } from "../store/request-ids.ts";
import type { NewSession } from "../store/sessions.ts";
import { sessionRequest } from "./rules.ts";
import { isPassing, runFailure, UNKNOWN_FAILURE } from "./run-failures.ts";

export interface RunDeps {
  readonly deployments: Pick<DeploymentStore, "find">;
  readonly agents: Pick<AgentStore, "find">;
  readonly deploymentRuns: Pick<DeploymentRunStore, "record" | "find">;
  readonly requestIds: Pick<RequestIdStore, "madeBy">;
  readonly creation: Pick<SessionCreation, "prepared" | "announce">;
  readonly turns: Turns;
  readonly log: Logger;
}

export class Runs {
  private readonly deps: RunDeps;

  constructor(deps: RunDeps) {
    this.deps = deps;
  }

  /** What a session of it would be now, until the end of `use`. Changes nothing; fails as CreateSession does. */
  prepared<T>(
    { id, workspaceId, spec }: Pick<DeploymentRecord, "id" | "workspaceId" | "spec">,
    use: (session: NewSession) => Promise<T>,
  ): Promise<T> {
    const whose = { principal: callerOf(id, workspaceId), workspaceId };
    return this.deps.creation.prepared(sessionRequest(spec), whose, async (session) => {
      const agent = await this.deps.agents.find(spec.agentId, spec.agentVersion);
      if (agent?.spec !== undefined) await this.checkMembersLive(agent.spec);
      return use({ ...session, deploymentId: id });
    });
  }

  /** Somebody asks for it. Failures that pass are thrown, others are runs. */
  async manual(deployment: DeploymentRecord, request: RunDeploymentRequest): Promise<RunRecord> {
    const { requestId } = request;
    const content = contentHash(RunDeploymentRequestSchema, { ...request, requestId: "" });
    const start = { kind: "manual", request: { requestId, contentHash: content } } as const;
    const claim = { ...start.request, workspaceId: deployment.workspaceId, scope: SCOPES.deploymentRun };
    const { requestIds, deploymentRuns } = this.deps;
    const make = () => this.runNow(deployment, start);
    return madeOnce(requestIds, claim, make, (id) => deploymentRuns.find(id));
  }

  private async runNow(deployment: DeploymentRecord, start: RunStart): Promise<RunRecord> {
    let current: DeploymentRecord | undefined = deployment;
    const recorded = await this.deps.turns.untilDone(deployment.id, async () => {
      current ??= await this.deps.deployments.find(deployment.id);
      if (current === undefined) throw notFound("deployment", deployment.id);
      const attempt = await this.record(current, start);
      current = undefined;
      return attempt;
    });
    return recorded.run;
  }

  /**
   * Undefined when it is not due any more, or the deployment is another meanwhile: then it still is. Failures that pass are
   * thrown, and so are bugs, unless `isLast`: then a run is recorded that says no more than that.
   */
  async scheduled(
    deployment: DeploymentRecord,
    start: Extract<RunStart, { kind: "schedule" }>,
    isLast: boolean,
  ): Promise<RunRecord | undefined> {
    try {
      return (await this.record(deployment, start))?.run;
    } catch (error) {
      if (isTendonError(error) || !isLast) throw error;
      const facts = { deployment: deployment.id, error: messageOf(error) };
      this.deps.log.error(facts, "a deployment's session cannot be made: given up");
      return (await this.write(deployment, start, { failure: UNKNOWN_FAILURE }))?.run;
    }
  }

  private async record(deployment: DeploymentRecord, start: RunStart): Promise<RecordedRun | undefined> {
    try {
      return await this.prepared(deployment, (session) => this.write(deployment, start, { session }));
    } catch (error) {
      if (!isTendonError(error) || isPassing(error) || isAboutRun(error)) throw error;
      return this.write(deployment, start, { failure: runFailure(error) });
    }
  }

  private async write(
    { id: deploymentId, revision }: DeploymentRecord,
    start: RunStart,
    outcome: NewRun["outcome"],
  ): Promise<RecordedRun | undefined> {
    const run = { runId: newId("deploymentRun"), deploymentId, revision, start, outcome };
    const recorded = await this.deps.deploymentRuns.record(run);
    failpoint("server.run_recorded");
    if (recorded?.made !== undefined) this.deps.creation.announce(recorded.made);
    return recorded;
  }

  /** Sessions can do without an agent that theirs may call; a deployment is told, because nobody may look for a long time. */
  private async checkMembersLive({ multiagent }: AgentSpec): Promise<void> {
    for (const { kind } of multiagent?.agents ?? []) {
      if (kind.case !== "agent") continue;
      const { id, version } = kind.value;
      if ((await this.deps.agents.find(id, version))?.archivedAt === undefined) continue;
      throw new TendonError(
        "AGENT_ARCHIVED",
        `the agent "${id}", which the deployment's agent may call, is archived`,
        {
          agent_id: id,
        },
      );
    }
  }
}

/** Of the run itself, not of the session that it would make. */
function isAboutRun({ reason, metadata }: TendonError): boolean {
  if (reason === "NOT_FOUND") return metadata.resource === "deployment";
  return reason === "DEPLOYMENT_ARCHIVED" || reason === "REQUEST_ID_REUSED";
}

/** A session's first events are said by its deployment, with the rights of a client of the workspace. */
function callerOf(deploymentId: string, workspaceId: string): Principal {
  return { kind: "client", keyId: deploymentId, workspaceId };
}
