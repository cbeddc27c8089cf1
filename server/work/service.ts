/** WorkService: parse → decide → store → answer. */
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import type { Clock } from "../../kit/clock.ts";
import { messageOf, notFound } from "../../kit/errors.ts";
import { failpoint } from "../../kit/failpoint.ts";
import { isId } from "../../kit/ids.ts";
import type { Logger } from "../../kit/log.ts";
import { refuseNul } from "../../kit/nul.ts";
import { decodePageToken, encodePageToken, type PageQuery } from "../../kit/page-token.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import { hashSecret, newSecret } from "../../kit/sign/secrets.ts";
import type {
  AckWorkRequest,
  GetWorkRequest,
  GetWorkStatsRequest,
  HeartbeatWorkRequest,
  ListWorkRequest,
  PollWorkRequest,
  StopWorkRequest,
  UpdateWorkRequest,
  WorkService,
} from "../../proto/gen/tendon/v1/work_service_pb.js";
import { maySee, principalOf, WORK_TOKEN_PREFIX } from "../ports/principal.ts";
import type { SessionLog } from "../ports/session-log.ts";
import type { EnvironmentStore } from "../store/environments.ts";
import type { Cursor } from "../store/page.ts";
import type { WorkName, WorkRecord, WorkStore } from "../store/work.ts";
import { acceptance, beatOf, callerOf, stopOf } from "./rules.ts";
import type { WaitingPolls } from "./waiting-polls.ts";
import { STATES, workMessage } from "./work-message.ts";

export interface WorkDeps {
  readonly work: WorkStore;
  readonly environments: Pick<EnvironmentStore, "find">;
  readonly sessionLog: Pick<SessionLog, "announce">;
  readonly clock: Clock;
  readonly log: Logger;
  /** How long a lease lasts without a heartbeat. */
  readonly leaseTtlMs: number;
}

const DEFAULT_PAGE = 20;
const RECLAIM_OLDER_THAN_MS = 5_000;
/** A worker's poll is noted so often; it counts as polling for 30 s. */
const NOTE_POLLER_MS = 10_000;
const MAX_NOTED_POLLERS = 10_000;

export class WorkServiceHandler implements ServiceImplementation<typeof WorkService> {
  private readonly deps: WorkDeps;
  private readonly polls: WaitingPolls;
  /** When the poll of a worker was last noted. */
  private readonly noted = new Map<string, number>();

  constructor(deps: WorkDeps, polls: WaitingPolls) {
    this.deps = deps;
    this.polls = polls;
  }

  async pollWork(request: PollWorkRequest, context: RpcContext) {
    const principal = principalOf(context);
    const { environmentId, blockMs, reclaimOlderThanMs, workerId } = request;
    if (principal.kind !== "worker" || principal.environmentId !== environmentId)
      throw notFound("environment", environmentId);
    refuseNul(workerId, "worker_id");
    await this.notePoller(environmentId, workerId || principal.keyId);
    const token = newSecret(WORK_TOKEN_PREFIX);
    const look = () =>
      this.deps.work.poll({
        environmentId,
        environmentKeyId: principal.keyId,
        tokenHash: Buffer.from(hashSecret(token), "hex"),
        reclaimOlderThanMs: Number(reclaimOlderThanMs ?? RECLAIM_OLDER_THAN_MS),
      });
    const work = await this.polls.find(environmentId, blockMs, context.signal, look);
    if (work === undefined) return {};
    failpoint("server.work_claimed");
    return { work: workMessage(work), token };
  }

  async ackWork(request: AckWorkRequest, context: RpcContext) {
    const name = nameOf(request, context);
    const work = await this.deps.work.ack(name, this.deps.leaseTtlMs, (item) =>
      acceptance(item, name.caller),
    );
    failpoint("server.work_accepted");
    return { work: workMessage(work) };
  }

  async heartbeatWork(request: HeartbeatWorkRequest, context: RpcContext) {
    const wish = { expected: request.expectedLastHeartbeat, ttlMs: Number(request.desiredTtlMs) };
    const { leaseTtlMs } = this.deps;
    let isExtended = false;
    const work = await this.deps.work.heartbeat(nameOf(request, context), (item) => {
      const beat = beatOf(item, wish, leaseTtlMs);
      isExtended = beat !== undefined;
      return beat;
    });
    return {
      lastHeartbeat: work.lastHeartbeat ?? "",
      leaseExtended: isExtended,
      state: STATES[work.state],
      ttlMs: BigInt(work.ttlMs || leaseTtlMs),
    };
  }

  async stopWork(request: StopWorkRequest, context: RpcContext) {
    const name = nameOf(request, context);
    await this.checkEnvironment(request.environmentId, context);
    const { work, advance, isQueued } = await this.deps.work.stop(name, (item) =>
      stopOf(item, name.caller, request.force),
    );
    if (advance !== undefined) this.deps.sessionLog.announce(advance);
    if (isQueued) this.polls.wake(work.environmentId);
    return { work: workMessage(work) };
  }

  async getWork({ environmentId, workId }: GetWorkRequest, context: RpcContext) {
    return { work: workMessage(await this.find(environmentId, workId, context)) };
  }

  async updateWork({ environmentId, workId, metadata }: UpdateWorkRequest, context: RpcContext) {
    for (const [key, value] of Object.entries(metadata)) refuseNul([key, value], "metadata");
    await this.find(environmentId, workId, context);
    const name = { workId, environmentId, caller: callerOf(principalOf(context)) };
    return { work: workMessage(await this.deps.work.update(name, metadata)) };
  }

  async listWork(request: ListWorkRequest, context: RpcContext) {
    const { environmentId } = request;
    await this.checkEnvironment(environmentId, context);
    const query: PageQuery = ["work", environmentId];
    const after = decodePageToken(query, request.pageToken, 2) as Cursor | undefined;
    const page = { size: request.pageSize || DEFAULT_PAGE, after };
    const { items, next } = await this.deps.work.list(environmentId, page);
    return { work: items.map(workMessage), nextPageToken: encodePageToken(query, next) };
  }

  async getWorkStats({ environmentId }: GetWorkStatsRequest, context: RpcContext) {
    await this.checkEnvironment(environmentId, context);
    const { depth, pending, oldestQueuedAt, workersPolling } = await this.deps.work.stats(environmentId);
    return {
      depth: BigInt(depth),
      pending: BigInt(pending),
      ...(oldestQueuedAt && { oldestQueuedAt: timestampFromDate(oldestQueuedAt) }),
      workersPolling: BigInt(workersPolling),
    };
  }

  private async find(environmentId: string, workId: string, context: RpcContext): Promise<WorkRecord> {
    const work = isId("work", workId) ? await this.deps.work.find(workId) : undefined;
    const isVisible = work?.environmentId === environmentId && maySee(principalOf(context), work.workspaceId);
    if (work === undefined || !isVisible) throw notFound("work item", workId);
    return work;
  }

  /** NOT_FOUND for one that is not the caller's. */
  private async checkEnvironment(environmentId: string, context: RpcContext): Promise<void> {
    const principal = principalOf(context);
    if ("environmentId" in principal) {
      if (principal.environmentId === environmentId) return;
    } else if (isId("environment", environmentId)) {
      const environment = await this.deps.environments.find(environmentId);
      if (environment !== undefined && maySee(principal, environment.workspaceId)) return;
    }
    throw notFound("environment", environmentId);
  }

  private async notePoller(environmentId: string, workerId: string): Promise<void> {
    const { clock, work, log } = this.deps;
    const key = `${environmentId} ${workerId}`;
    const nowMs = clock.monotonicMs();
    if (nowMs - (this.noted.get(key) ?? Number.NEGATIVE_INFINITY) < NOTE_POLLER_MS) return;
    if (this.noted.size >= MAX_NOTED_POLLERS) this.noted.clear();
    this.noted.set(key, nowMs);
    try {
      await work.notePoller(environmentId, workerId);
    } catch (error) {
      log.debug({ error: messageOf(error) }, "a worker's poll was not noted");
    }
  }
}

/** NOT_FOUND for an item that the caller's credential cannot be of. */
function nameOf(
  { environmentId, workId }: { environmentId: string; workId: string },
  context: RpcContext,
): WorkName {
  const principal = principalOf(context);
  const isOther =
    ("environmentId" in principal && principal.environmentId !== environmentId) ||
    (principal.kind === "work_item" && principal.workId !== workId);
  if (isOther || !isId("work", workId) || !isId("environment", environmentId))
    throw notFound("work item", workId);
  return { workId, environmentId, caller: callerOf(principal) };
}
