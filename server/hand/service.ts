/** What clients and harnesses call. */
import { toJson } from "@bufbuild/protobuf";
import { notFound, TendonError } from "../../kit/errors.ts";
import { refuseNul } from "../../kit/nul.ts";
import { decodePageToken, encodePageToken } from "../../kit/page-token.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import { formatTraceParent, traceOf } from "../../kit/trace.ts";
import { HandResourceSchema } from "../../proto/gen/tendon/v1/hand_pb.js";
import type {
  CancelExecutionRequest,
  CopyInRequest,
  CopyOutRequest,
  ExecuteRequest,
  HandOverRequest,
  HandService,
  ListHandAgentsRequest,
  ListHandsRequest,
  ProvisionRequest,
  ReleaseHandRequest,
} from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { maySee, type Principal, principalOf, workspaceOf } from "../ports/principal.ts";
import type { HandRecord } from "../store/hands.ts";
import type { Cursor, PageRequest } from "../store/page.ts";
import { tooManyHandsText } from "./call-failures.ts";
import type { CallOrders } from "./call-orders.ts";
import type { Copies } from "./copies.ts";
import type { HandDeps } from "./deps.ts";
import type { Executor } from "./executor.ts";
import { visibleHand } from "./hand-access.ts";
import { type HandEndings, NOTICE_AFTER_HAND_OVER, NOTICE_AFTER_RELEASE } from "./hand-endings.ts";
import { handAgentMessage, handMessage } from "./hand-messages.ts";
import type { HandOvers } from "./hand-over.ts";
import { leaseOf, needsSession } from "./lease-claim.ts";
import { type Provisioner, provisionError } from "./provisioner.ts";
import { checkSlot } from "./rules.ts";
import { missingStoredFile } from "./stored-resources.ts";
import type { ToolLists } from "./tool-lists.ts";
import type { WorkerOffers } from "./worker-offers.ts";

export interface HandServiceParts {
  readonly orders: CallOrders;
  readonly executor: Executor;
  readonly endings: HandEndings;
  readonly copies: Copies;
  readonly handOvers: HandOvers;
  readonly provisioner: Provisioner;
  readonly offers: WorkerOffers;
  readonly toolLists: ToolLists;
}

const DEFAULT_PAGE_SIZE = 20;

export class HandServiceHandler implements ServiceImplementation<typeof HandService> {
  private readonly deps: HandDeps;
  private readonly parts: HandServiceParts;

  constructor(deps: HandDeps, parts: HandServiceParts) {
    this.deps = deps;
    this.parts = parts;
  }

  async provision(request: ProvisionRequest, context: RpcContext) {
    const principal = principalOf(context);
    checkSlot(request.slot, "slot");
    const lease = request.sessionId === "" ? undefined : leaseOf(principal, request.lease);
    if (request.sessionId === "" && principal.kind === "harness") throw needsSession();
    const workspaceId = await this.workspaceFor(request, principal);
    refuseNul(request.resources, "resources");
    const refusal = await missingStoredFile(this.deps.store.blobs, workspaceId, request.resources);
    if (request.sessionId !== "" && request.environmentId === "")
      await this.parts.offers.checkHandsServe(request.sessionId, request.slot);
    const opened = await this.deps.store.hands.open({
      workspaceId,
      sessionId: request.sessionId || undefined,
      slot: request.slot,
      environmentId: request.environmentId,
      resources: JSON.stringify(request.resources.map((resource) => toJson(HandResourceSchema, resource))),
      requestId: request.requestId,
      lease,
      noticeAfterLoss: "",
      noticeAfterRelease: NOTICE_AFTER_RELEASE,
      noticeAfterHandOver: NOTICE_AFTER_HAND_OVER,
      toolUseId: undefined,
      declaredSlotsOnly: false,
      speculative: request.speculative,
      refusal,
    });
    if (opened.kind === "not_declared") throw new Error("no slot was to be refused");
    if (opened.kind === "too_many")
      throw new TendonError("LIMIT_EXCEEDED", tooManyHandsText(opened.most), {
        limit: "hands",
        most: String(opened.most),
      });
    const { hand } = opened;
    if (hand.state === "released")
      throw new TendonError("HAND_RELEASED", `hand "${hand.handId}" was released`);
    if (hand.state === "lost")
      throw new TendonError("HAND_LOST", `hand "${hand.handId}" is lost: ${hand.stateDetail}`);
    const provisioned = await this.parts.provisioner.ensure(hand);
    if (provisioned.kind === "failed") throw provisionError(provisioned);
    return { hand: await this.message(provisioned.hand) };
  }

  async *execute(request: ExecuteRequest, context: RpcContext) {
    const { orders, executor } = this.parts;
    const principal = principalOf(context);
    const claimed = orders.claimed(request);
    const trace = traceOf(context);
    const traceParent = trace === undefined ? "" : formatTraceParent(trace);
    const sent = claimed && (await executor.sendKnown(claimed, (id) => maySee(principal, id), traceParent));
    if (sent !== undefined) {
      yield* executor.watch(sent, Number(request.fromOffset), context.signal);
      return;
    }
    const { order, existing } = await orders.order(request, principal);
    yield* executor.run({ ...order, traceParent }, existing, context.signal);
  }

  async cancelExecution(request: CancelExecutionRequest, context: RpcContext) {
    const principal = principalOf(context);
    const reason = principal.kind === "harness" ? "" : "on a client's request";
    const target = await this.parts.orders.cancelTarget(request, principal);
    for (;;) {
      const execution = await this.parts.executor.stop(target.executionKey, reason, target.lease);
      if (execution !== undefined) return { alreadyEnded: execution.result !== undefined };
      if (target.call === undefined) throw notFound("execution", request.executionId);
      const outcome = await this.parts.executor.cancelUnbound(target.call, reason, target.lease);
      // It was bound in between: stop it where it runs.
      if (outcome !== "bound") return { alreadyEnded: outcome === "ended" };
    }
  }

  async getHand({ handId }: { handId: string }, context: RpcContext) {
    return { hand: await this.message(await this.visibleHand(handId, principalOf(context))) };
  }

  async listHands(request: ListHandsRequest, context: RpcContext) {
    const { workspaceId } = scopeOf(principalOf(context));
    const query = ["hands", workspaceId, request.sessionId, request.includeEnded];
    const { items, next } = await this.deps.store.hands.list({
      workspaceId,
      sessionId: request.sessionId,
      includeEnded: request.includeEnded,
      page: pageOf(request, query),
    });
    const hands = await Promise.all(items.map((hand) => this.message(hand)));
    return { hands, nextPageToken: encodePageToken(query, next) };
  }

  async listHandAgents(request: ListHandAgentsRequest, context: RpcContext) {
    const { workspaceId } = scopeOf(principalOf(context));
    const query = ["hand_agents", workspaceId, request.includeRevoked];
    const { items, next } = await this.deps.store.handAgents.list({
      workspaceId,
      includeRevoked: request.includeRevoked,
      page: pageOf(request, query),
    });
    const digests = new Set(items.flatMap((agent) => agent.drivers.map((driver) => driver.toolsDigest)));
    const tools = new Map(
      await Promise.all(
        [...digests].map(async (digest) => [digest, await this.parts.toolLists.tools(digest)] as const),
      ),
    );
    return {
      handAgents: items.map((agent) => handAgentMessage(agent, (digest) => tools.get(digest) ?? [])),
      nextPageToken: encodePageToken(query, next),
    };
  }

  async releaseHand(request: ReleaseHandRequest, context: RpcContext) {
    const principal = principalOf(context);
    const hand = await this.visibleHand(request.handId, principal);
    if (hand.sessionId === undefined && principal.kind === "harness") throw needsSession();
    const lease = hand.sessionId === undefined ? undefined : leaseOf(principal, request.lease);
    const by = principal.kind === "harness" ? "its session" : withArticle(principal.kind);
    const why = `released by ${by}`;
    return { hand: await this.message(await this.parts.endings.release(hand, why, lease)) };
  }

  async handOver(request: HandOverRequest, context: RpcContext) {
    return { hand: await this.message(await this.parts.handOvers.handOver(request, principalOf(context))) };
  }

  copyIn(requests: AsyncIterable<CopyInRequest>, context: RpcContext) {
    return this.parts.copies.copyIn(requests, principalOf(context), context.signal);
  }

  copyOut(request: CopyOutRequest, context: RpcContext) {
    return this.parts.copies.copyOut(request, principalOf(context), context.signal);
  }

  private visibleHand(handId: string, principal: Principal): Promise<HandRecord> {
    return visibleHand(this.deps.store.hands, handId, principal);
  }

  private async workspaceFor(request: ProvisionRequest, principal: Principal): Promise<string> {
    if (request.sessionId === "") return workspaceOf(principal, this.deps.defaultWorkspaceId);
    const workspaceId = await this.deps.store.hands.workspaceOfSession(request.sessionId);
    if (workspaceId === undefined || !maySee(principal, workspaceId))
      throw notFound("session", request.sessionId);
    return workspaceId;
  }

  private async message(hand: HandRecord) {
    return handMessage(hand, await this.parts.toolLists.tools(hand.toolsDigest));
  }
}

function withArticle(noun: string): string {
  return `${/^[aeiou]/.test(noun) ? "an" : "a"} ${noun}`;
}

function scopeOf(principal: Principal): { workspaceId: string | undefined } {
  return { workspaceId: "workspaceId" in principal ? principal.workspaceId : undefined };
}

function pageOf(
  request: { pageSize: number; pageToken: string },
  query: (string | boolean | undefined)[],
): PageRequest {
  const after = decodePageToken(query, request.pageToken, 2);
  return { size: request.pageSize || DEFAULT_PAGE_SIZE, after: after as Cursor | undefined };
}
