/** Decides whether a call may be made, and names it: who asks, for which session or hand. */
import { invalidField, notFound, TendonError } from "../../kit/errors.ts";
import type { CancelExecutionRequest, ExecuteRequest } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { actorOf, maySee, type Principal } from "../ports/principal.ts";
import type { CallRecord, ExecutionRecord } from "../store/executions.ts";
import type { HandRecord, LeaseClaim } from "../store/hands.ts";
import type { HandDeps } from "./deps.ts";
import type { CallOrder } from "./executor.ts";
import { checkOperator, visibleHand } from "./hand-access.ts";
import { leaseOf, needsSession } from "./lease-claim.ts";
import { callTimeoutMs, checkToolUse, executionKey, parseInput, refuseBrainCall } from "./rules.ts";

export interface Ordered {
  readonly order: CallOrder;
  /** The call was made before. */
  readonly existing: ExecutionRecord | undefined;
}

/** A brain's call as its request has it; nobody has compared it with the log. */
export interface ClaimedCall {
  readonly call: Omit<CallRecord, "workspaceId"> & { readonly sessionId: string };
  readonly lease: LeaseClaim;
}

export interface CancelTarget {
  readonly executionKey: string;
  readonly lease: LeaseClaim | undefined;
  /** A tool use that may not have been sent yet. */
  readonly call: CallRecord | undefined;
}

export class CallOrders {
  private readonly deps: HandDeps;

  constructor(deps: HandDeps) {
    this.deps = deps;
  }

  /** NOT_FOUND, LEASE_FENCED, INVALID_FIELD, EXECUTION_BOUND_ELSEWHERE, ROLE_NOT_ALLOWED. */
  order(request: ExecuteRequest, principal: Principal): Promise<Ordered> {
    const timeoutMs = callTimeoutMs(request.timeoutMs, parseInput(request.input));
    const bySession =
      request.sessionId !== "" && (request.lease !== undefined || principal.kind === "harness");
    return bySession
      ? this.orderToolUse(request, principal, timeoutMs)
      : this.orderOnHand(request, principal, timeoutMs);
  }

  /** Undefined for calls that are no brain's, or that name their hand. INVALID_FIELD. */
  claimed(request: ExecuteRequest): ClaimedCall | undefined {
    const { sessionId, executionId, slot, name, input, lease } = request;
    if (sessionId === "" || request.handId !== "" || lease === undefined) return undefined;
    const timeoutMs = callTimeoutMs(request.timeoutMs, parseInput(input));
    const key = executionKey(sessionId, executionId);
    const call = { executionKey: key, sessionId, executionId, slot, name, input, timeoutMs };
    return {
      call: { ...call, answersToolUse: true },
      lease: { leaseId: lease.leaseId, epoch: lease.epoch },
    };
  }

  /** A brain's call: the log has it, and the lease is the newest (E1). */
  private async orderToolUse(
    request: ExecuteRequest,
    principal: Principal,
    timeoutMs: number,
  ): Promise<Ordered> {
    const { sessionId, executionId, slot } = request;
    const lease = leaseOf(principal, request.lease);
    const key = executionKey(sessionId, executionId);
    const [use, existing] = await Promise.all([
      this.deps.store.executions.toolUse(sessionId, executionId),
      this.deps.store.executions.find(key),
    ]);
    if (use === undefined || !maySee(principal, use.workspaceId)) throw notFound("tool use", executionId);
    checkToolUse(use, request);
    if (lease && (lease.leaseId !== use.leaseId || lease.epoch !== BigInt(use.leaseEpoch))) {
      throw new TendonError("LEASE_FENCED", `epoch ${lease.epoch} is not the session's newest`, {
        epoch: String(use.leaseEpoch),
      });
    }
    const call: CallRecord = {
      executionKey: key,
      workspaceId: use.workspaceId,
      sessionId,
      executionId,
      slot,
      name: request.name,
      input: request.input,
      timeoutMs,
      answersToolUse: true,
    };
    if (existing === undefined && request.handId !== "") {
      const hand = await visibleHand(this.deps.store.hands, request.handId, principal);
      if (hand.sessionId !== sessionId) throw notFound("hand of the session", request.handId);
    }
    checkSameHand(request, existing);
    const order = {
      call,
      handId: request.handId,
      lease,
      operator: undefined,
      fromOffset: Number(request.fromOffset),
      declaredSlotsOnly: request.declaredSlotsOnly,
    };
    return { order, existing };
  }

  /** A client's call on a hand outside sessions, or an operator's on a session's hand. */
  private async orderOnHand(
    request: ExecuteRequest,
    principal: Principal,
    timeoutMs: number,
  ): Promise<Ordered> {
    if (principal.kind === "harness") throw needsSession();
    const hand = await this.handFor(request, principal);
    if (hand.sessionId !== undefined) checkOperator(principal, request.reason);
    const key = executionKey(hand.workspaceId, request.executionId);
    const existing = await this.deps.store.executions.find(key);
    if (existing !== undefined && (existing.name !== request.name || existing.input !== request.input)) {
      throw invalidField(
        "execution_id",
        `"${request.executionId}" names another call: its tool or input differ`,
      );
    }
    checkSameHand({ handId: hand.handId }, existing);
    const call: CallRecord = {
      executionKey: key,
      workspaceId: hand.workspaceId,
      sessionId: undefined,
      executionId: request.executionId,
      slot: hand.slot,
      name: request.name,
      input: request.input,
      timeoutMs,
      answersToolUse: false,
    };
    const operator =
      hand.sessionId === undefined ? undefined : { actor: actorOf(principal), reason: request.reason };
    const fromOffset = Number(request.fromOffset);
    const onHand = { call, handId: hand.handId, lease: undefined, operator, fromOffset };
    return { order: { ...onHand, declaredSlotsOnly: true }, existing };
  }

  private async handFor(request: ExecuteRequest, principal: Principal): Promise<HandRecord> {
    if (request.handId !== "") {
      const hand = await visibleHand(this.deps.store.hands, request.handId, principal);
      if (request.sessionId !== "" && hand.sessionId !== request.sessionId) {
        throw notFound("hand of the session", request.handId);
      }
      return hand;
    }
    if (request.sessionId === "") throw invalidField("hand_id", "name a hand, or a session");
    const workspaceId = await this.deps.store.hands.workspaceOfSession(request.sessionId);
    if (workspaceId === undefined || !maySee(principal, workspaceId))
      throw notFound("session", request.sessionId);
    checkOperator(principal, request.reason);
    const hand = await this.deps.store.hands.usable(request.sessionId, request.slot);
    if (hand === undefined) {
      throw new TendonError(
        "NOT_FOUND",
        `session "${request.sessionId}" has no hand in the slot "${request.slot}" now`,
      );
    }
    return hand;
  }

  async cancelTarget(request: CancelExecutionRequest, principal: Principal): Promise<CancelTarget> {
    const { sessionId, executionId } = request;
    if (sessionId === "") return this.cancelOutside(executionId, principal);
    const lease = leaseOf(principal, request.lease);
    const use = await this.deps.store.executions.toolUse(sessionId, executionId);
    if (use === undefined || !maySee(principal, use.workspaceId)) throw notFound("execution", executionId);
    if (use.type !== "agent.tool_use")
      throw invalidField("execution_id", `names an event of type ${use.type}`);
    refuseBrainCall(use.payload);
    const payload = JSON.parse(use.payload) as { name?: string; input?: unknown; hand?: string };
    const call: CallRecord = {
      executionKey: executionKey(sessionId, executionId),
      workspaceId: use.workspaceId,
      sessionId,
      executionId,
      slot: payload.hand ?? "",
      name: payload.name ?? "",
      input: writtenInput(payload.input),
      timeoutMs: 0,
      answersToolUse: true,
    };
    return { executionKey: call.executionKey, lease, call };
  }

  private async cancelOutside(executionId: string, principal: Principal): Promise<CancelTarget> {
    if (principal.kind === "harness") throw needsSession();
    const scope = "workspaceId" in principal ? principal.workspaceId : undefined;
    const key = executionKey(scope ?? this.deps.defaultWorkspaceId, executionId);
    return { executionKey: key, lease: undefined, call: undefined };
  }
}

/** Of a call that never runs; what is nested too deeply to be written would have been refused. */
function writtenInput(input: unknown): string {
  try {
    return JSON.stringify(input ?? {});
  } catch {
    return "{}";
  }
}

function checkSameHand(request: { handId: string }, existing: ExecutionRecord | undefined): void {
  if (existing?.handId === undefined || request.handId === "" || existing.handId === request.handId) return;
  throw new TendonError(
    "EXECUTION_BOUND_ELSEWHERE",
    `execution "${existing.executionId}" is bound to hand "${existing.handId}"`,
    { hand_id: existing.handId },
  );
}
