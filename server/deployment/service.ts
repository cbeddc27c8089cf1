/** DeploymentService. */
import { create } from "@bufbuild/protobuf";
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { canonicalJson, contentHash } from "../../kit/canonical-json.ts";
import type { Clock } from "../../kit/clock.ts";
import { invalidField, notFound } from "../../kit/errors.ts";
import { isId, newId } from "../../kit/ids.ts";
import { decodePageToken, encodePageToken, type PageQuery } from "../../kit/page-token.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import type { Turns } from "../../kit/turns.ts";
import {
  CronScheduleSchema,
  type DeploymentSpec,
  DeploymentSpecSchema,
  DeploymentStatus,
  DeploymentTrigger,
} from "../../proto/gen/tendon/v1/deployment_pb.js";
import type {
  ArchiveDeploymentRequest,
  CreateDeploymentRequest,
  DeploymentService,
  GetDeploymentRequest,
  GetDeploymentRunRequest,
  ListDeploymentRunsRequest,
  ListDeploymentsRequest,
  PauseDeploymentRequest,
  RunDeploymentRequest,
  UnpauseDeploymentRequest,
  UpdateDeploymentRequest,
} from "../../proto/gen/tendon/v1/deployment_service_pb.js";
import { actorOf, maySee, principalOf, scopeOf, workspaceOf } from "../ports/principal.ts";
import { madeOnce } from "../ports/repeated-creation.ts";
import type { SessionCreation } from "../ports/session-creation.ts";
import type { DeploymentRunStore } from "../store/deployment-runs.ts";
import type { DeploymentRecord, DeploymentStore, PlannedRun } from "../store/deployments.ts";
import type { Cursor } from "../store/page.ts";
import { deploymentArchived } from "../store/refusals.ts";
import { type RequestIdStore, SCOPES } from "../store/request-ids.ts";
import type { OwnVault } from "../store/session-vaults.ts";
import { toDeploymentMessage, toRunMessage } from "./deployment-message.ts";
import { planAfter } from "./planning.ts";
import { changedSpec, checkDeploymentSpec, inSpec, MAX_DEPLOYMENTS, withoutTokens } from "./rules.ts";
import type { Runs } from "./runs.ts";

export interface DeploymentServiceDeps {
  readonly deployments: DeploymentStore;
  readonly deploymentRuns: DeploymentRunStore;
  readonly requestIds: Pick<RequestIdStore, "madeBy">;
  readonly runs: Runs;
  readonly creation: Pick<SessionCreation, "sealTokens">;
  readonly turns: Turns;
  readonly defaultWorkspaceId: string;
  readonly clock: Clock;
}

const DEFAULT_PAGE = 20;
const MAX_PAGE_BYTES = 2 * 1024 * 1024;

export class DeploymentServiceHandler implements ServiceImplementation<typeof DeploymentService> {
  private readonly deps: DeploymentServiceDeps;

  constructor(deps: DeploymentServiceDeps) {
    this.deps = deps;
  }

  async createDeployment({ requestId, spec: said }: CreateDeploymentRequest, context: RpcContext) {
    const wanted = said ?? create(DeploymentSpecSchema);
    const workspaceId = workspaceOf(principalOf(context), this.deps.defaultWorkspaceId);
    // Of all but the tokens: a hash of one would let whoever has the database guess it.
    const request = { requestId, contentHash: contentHash(DeploymentSpecSchema, withoutTokens(wanted)) };
    const { deployments, requestIds } = this.deps;
    const make = async () => {
      const id = newId("deployment");
      const spec = await this.checked({ id, workspaceId, spec: wanted });
      return deployments.create({
        id,
        workspaceId,
        spec,
        planned: planAfter(id, spec, this.nowMs()),
        most: MAX_DEPLOYMENTS,
        tokens: await this.sealed(wanted, { workspaceId, actor: actorOf(principalOf(context)) }),
        request,
      });
    };
    const claim = { ...request, workspaceId, scope: SCOPES.deployment };
    return this.answer(await madeOnce(requestIds, claim, make, (id) => deployments.find(id)));
  }

  async getDeployment({ deploymentId }: GetDeploymentRequest, context: RpcContext) {
    return this.answer(await this.find(deploymentId, context));
  }

  async listDeployments(request: ListDeploymentsRequest, context: RpcContext) {
    const { agentId, status, includeArchived, createdAtOrAfter, createdBefore } = request;
    if (status !== DeploymentStatus.UNSPECIFIED && includeArchived)
      throw invalidField("status", "cannot be combined with include_archived");
    const workspaceId = scopeOf(principalOf(context));
    const from = createdAtOrAfter && timestampDate(createdAtOrAfter);
    const before = createdBefore && timestampDate(createdBefore);
    const times = [from?.toISOString(), before?.toISOString()];
    const query: PageQuery = ["deployments", workspaceId, agentId, status, includeArchived, ...times];
    const after = decodePageToken(query, request.pageToken, 2) as Cursor | undefined;
    if (agentId.includes("\0")) return { deployments: [], nextPageToken: "" };
    const { items, next } = await this.deps.deployments.list({
      workspaceId,
      agentId,
      isPaused: status === DeploymentStatus.UNSPECIFIED ? undefined : status === DeploymentStatus.PAUSED,
      includeArchived,
      createdAtOrAfter: from,
      createdBefore: before,
      page: { size: request.pageSize || DEFAULT_PAGE, after },
      maxBytes: MAX_PAGE_BYTES,
    });
    return {
      deployments: items.map((item) => toDeploymentMessage(item, this.nowMs())),
      nextPageToken: encodePageToken(query, next),
    };
  }

  /** Read, changed, checked and written, unless somebody else has written it meanwhile: then again, in turn. */
  async updateDeployment(request: UpdateDeploymentRequest, context: RpcContext) {
    const { deploymentId } = request;
    const record = await this.deps.turns.untilDone(deploymentId, async () => {
      const before = await this.find(deploymentId, context);
      if (before.archivedAt !== undefined) throw deploymentArchived(deploymentId);
      return this.update(before, request, actorOf(principalOf(context)));
    });
    return this.answer(record);
  }

  /** Undefined when it is another by now. */
  private async update(before: DeploymentRecord, request: UpdateDeploymentRequest, actor: string) {
    const { id: deploymentId, revision, workspaceId } = before;
    const wanted = request.spec ?? create(DeploymentSpecSchema);
    const changed = changedSpec(before.spec, wanted, request.updateMask);
    const spec = await this.checked({ ...before, spec: changed });
    const tokens = request.updateMask?.paths.includes("resources")
      ? await this.tokensAfter(deploymentId, changed, { workspaceId, actor })
      : undefined;
    if (textOf(spec) === textOf(before.spec) && tokens === undefined) return before;
    const planned = this.plannedAfter(before, spec);
    return this.deps.deployments.update({ deploymentId, revision, spec, planned, tokens });
  }

  /** Those that come with the resources are all that there are: these are replaced as a whole. Undefined: as before. */
  private async tokensAfter(
    deploymentId: string,
    spec: DeploymentSpec,
    whose: { readonly workspaceId: string; readonly actor: string },
  ): Promise<OwnVault | undefined> {
    const there = await this.deps.deployments.ownVault(deploymentId);
    const sealed = await this.sealed(spec, { ...whose, vaultId: there?.vaultId });
    if (sealed !== undefined) return sealed;
    return there?.hasTokens ? { vaultId: there.vaultId, credentials: [], actor: whose.actor } : undefined;
  }

  async archiveDeployment({ deploymentId }: ArchiveDeploymentRequest, context: RpcContext) {
    const { id } = await this.find(deploymentId, context);
    return this.answer(await this.deps.deployments.archive(id));
  }

  async pauseDeployment({ deploymentId }: PauseDeploymentRequest, context: RpcContext) {
    const { id } = await this.find(deploymentId, context);
    return this.answer(await this.deps.deployments.pause(id));
  }

  async unpauseDeployment({ deploymentId }: UnpauseDeploymentRequest, context: RpcContext) {
    const { id } = await this.find(deploymentId, context);
    const plan = (spec: DeploymentSpec) => planAfter(id, spec, this.nowMs());
    return this.answer(await this.deps.deployments.unpause(id, plan));
  }

  async runDeployment(request: RunDeploymentRequest, context: RpcContext) {
    const deployment = await this.find(request.deploymentId, context);
    return { run: toRunMessage(await this.deps.runs.manual(deployment, request)) };
  }

  async getDeploymentRun({ runId }: GetDeploymentRunRequest, context: RpcContext) {
    const run = isId("deploymentRun", runId) ? await this.deps.deploymentRuns.find(runId) : undefined;
    if (run === undefined || !maySee(principalOf(context), run.workspaceId))
      throw notFound("deployment run", runId);
    return { run: toRunMessage(run) };
  }

  async listDeploymentRuns(request: ListDeploymentRunsRequest, context: RpcContext) {
    const { deploymentId, hasError, trigger, createdAtOrAfter, createdBefore } = request;
    const workspaceId = scopeOf(principalOf(context));
    const from = createdAtOrAfter && timestampDate(createdAtOrAfter);
    const before = createdBefore && timestampDate(createdBefore);
    const filters = [deploymentId, hasError, trigger, from?.toISOString(), before?.toISOString()];
    const query: PageQuery = ["deployment runs", workspaceId, ...filters];
    const after = decodePageToken(query, request.pageToken, 2) as Cursor | undefined;
    if (deploymentId.includes("\0")) return { runs: [], nextPageToken: "" };
    const { items, next } = await this.deps.deploymentRuns.list({
      workspaceId,
      deploymentId,
      hasError,
      isScheduled:
        trigger === DeploymentTrigger.UNSPECIFIED ? undefined : trigger === DeploymentTrigger.SCHEDULE,
      createdAtOrAfter: from,
      createdBefore: before,
      page: { size: request.pageSize || DEFAULT_PAGE, after },
    });
    return { runs: items.map(toRunMessage), nextPageToken: encodePageToken(query, next) };
  }

  /** As it is kept: without tokens, with the agent's version and the environment that its sessions would get now. */
  private async checked(deployment: Pick<DeploymentRecord, "id" | "workspaceId" | "spec">) {
    checkDeploymentSpec(deployment.spec);
    const spec = withoutTokens(deployment.spec);
    try {
      return await this.deps.runs.prepared({ ...deployment, spec }, async ({ agentVersion, environmentId }) =>
        Object.assign(spec, { agentVersion, environmentId }),
      );
    } catch (error) {
      throw inSpec(error);
    }
  }

  private async sealed(
    { resources }: DeploymentSpec,
    whose: Parameters<SessionCreation["sealTokens"]>[1],
  ): Promise<OwnVault | undefined> {
    try {
      return await this.deps.creation.sealTokens(resources, whose);
    } catch (error) {
      throw inSpec(error);
    }
  }

  /** The same schedule goes on, with what is due right now. */
  private plannedAfter(
    { id, spec: before }: DeploymentRecord,
    after: DeploymentSpec,
  ): PlannedRun | "kept" | undefined {
    if (scheduleText(before) === scheduleText(after)) return "kept";
    return planAfter(id, after, this.nowMs());
  }

  private answer(record: DeploymentRecord) {
    return { deployment: toDeploymentMessage(record, this.nowMs()) };
  }

  private nowMs(): number {
    return this.deps.clock.nowMs();
  }

  private async find(deploymentId: string, context: RpcContext): Promise<DeploymentRecord> {
    const found = isId("deployment", deploymentId)
      ? await this.deps.deployments.find(deploymentId)
      : undefined;
    if (found === undefined || !maySee(principalOf(context), found.workspaceId))
      throw notFound("deployment", deploymentId);
    return found;
  }
}

function textOf(spec: DeploymentSpec): string {
  return canonicalJson(DeploymentSpecSchema, spec);
}

function scheduleText({ schedule }: DeploymentSpec): string {
  return schedule === undefined ? "" : canonicalJson(CronScheduleSchema, schedule);
}
