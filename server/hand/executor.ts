/** Runs calls at most once: finds the hand, binds, sends, and follows to the one result (X1–X3). */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { abortable } from "../../kit/abortable.ts";
import { TendonError } from "../../kit/errors.ts";
import { failpoint } from "../../kit/failpoint.ts";
import { type ExecutionResult, ExecutionResultSchema } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { ExecuteResponseSchema } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import type { Bound, CallRecord, Concluded, ExecutionRecord } from "../store/executions.ts";
import type { HandRecord, LeaseClaim } from "../store/hands.ts";
import type { AgentLink, AgentLinks } from "./agent-link.ts";
import { agentOffline, noHand, noHandInSlot, tooManyHands, unknownTool } from "./call-failures.ts";
import type { ClaimedCall } from "./call-orders.ts";
import type { Conclusions } from "./conclusions.ts";
import type { HandDeps } from "./deps.ts";
import type { ExecutionHub } from "./execution-hub.ts";
import { startMessage, stopMessage } from "./execution-messages.ts";
import { handLostResult, NOTICE_AFTER_HAND_OVER, NOTICE_AFTER_RELEASE } from "./hand-endings.ts";
import { operatedEvent } from "./hand-events.ts";
import { type HandLinkParts, linkOfHand } from "./hand-link.ts";
import { KnownHands } from "./known-hands.ts";
import type { LiveExecution } from "./live-execution.ts";
import type { Provisioner } from "./provisioner.ts";
import { cancelledResult, failureResult, fromStoredText, resultOfEvent } from "./results.ts";
import type { ToolLists } from "./tool-lists.ts";
import { isSelfHosted, type WorkerOffers } from "./worker-offers.ts";

export type ExecuteMessage = MessageInitShape<typeof ExecuteResponseSchema>;

/** A call that may be made, and on which hand. */
export interface CallOrder {
  readonly call: CallRecord;
  /** Empty: the session's hand of the call's slot. */
  readonly handId: string;
  readonly lease: LeaseClaim | undefined;
  /** Who operates on a session's hand, and why. */
  readonly operator: { readonly actor: string; readonly reason: string } | undefined;
  readonly fromOffset: number;
  /** W3C `traceparent` of what the call is a part of; empty for nothing. */
  readonly traceParent?: string;
  /** A slot that the session does not declare gets no new hand. */
  readonly declaredSlotsOnly: boolean;
}

const NOTICE_AFTER_LOSS =
  "Note: the environment that earlier calls ran in was lost, with all files in it. This call ran in a new, empty one.";

/** How often a bind that lost a race with a change of its hand or agent is tried again. */
const BIND_ATTEMPTS = 5;

/** A call that has been sent, or has its result already. */
export type Sent =
  | {
      readonly kind: "follow";
      readonly execution: ExecutionRecord;
      readonly attached: boolean;
      /** Entered before the call was sent: a fast agent may have finished by now. */
      readonly live?: LiveExecution;
    }
  | { readonly kind: "result"; readonly result: ExecutionResult }
  /** It waits for a worker, and its result comes by the log. */
  | { readonly kind: "offered"; readonly workId: string };

/** The hand that a call is to run in, why there is none, or what becomes of a call that no hand runs. */
type FoundHand =
  | { readonly hand: HandRecord }
  | { readonly failure: ExecutionResult }
  | { readonly elsewhere: Sent };

export class Executor implements HandLinkParts {
  private readonly deps: HandDeps;
  readonly links: AgentLinks;
  private readonly hub: ExecutionHub;
  private readonly conclusions: Conclusions;
  readonly provisioner: Provisioner;
  private readonly offers: WorkerOffers;
  private readonly toolLists: ToolLists;
  private readonly knownHands = new KnownHands();
  /** Calls that wait for a hand: a cancel wakes them. */
  private readonly waiting = new Map<string, Set<AbortController>>();

  constructor(
    deps: HandDeps,
    parts: {
      links: AgentLinks;
      hub: ExecutionHub;
      conclusions: Conclusions;
      provisioner: Provisioner;
      offers: WorkerOffers;
      toolLists: ToolLists;
    },
  ) {
    this.deps = deps;
    this.links = parts.links;
    this.hub = parts.hub;
    this.conclusions = parts.conclusions;
    this.provisioner = parts.provisioner;
    this.offers = parts.offers;
    this.toolLists = parts.toolLists;
  }

  /** The call's output and its one result. The call goes on when `signal` aborts. */
  async *run(
    order: CallOrder,
    existing: ExecutionRecord | undefined,
    signal: AbortSignal,
  ): AsyncGenerator<ExecuteMessage> {
    const sent: Sent =
      existing === undefined
        ? await this.start(order, signal)
        : { kind: "follow", execution: existing, attached: true };
    yield* this.watch(sent, order.fromOffset, signal);
  }

  /**
   * The short way, in one statement: the call of a brain on the hand that its slot had the last time. Undefined when
   * that is not how things are; then nothing was sent.
   */
  async sendKnown(
    { call, lease }: ClaimedCall,
    mayUse: (workspaceId: string) => boolean,
    traceParent = "",
  ): Promise<Sent | undefined> {
    const hand = this.knownHands.find(call.sessionId, call.slot);
    if (hand === undefined || !mayUse(hand.workspaceId)) return undefined;
    const { handId, handAgentId, workspaceId } = hand;
    const link = this.links.find(handAgentId);
    const tools = await this.toolLists.names(hand.toolsDigest);
    if (link === undefined || link.draining || (tools !== undefined && !tools.has(call.name)))
      return undefined;
    const { journalId } = link;
    const known = { call: { ...call, workspaceId }, handId, handAgentId, journalId, lease };
    failpoint("server.before_bind");
    const execution = await this.deps.store.executions.bindKnown(known);
    if (execution === undefined) {
      this.knownHands.forget(call.sessionId, call.slot);
      return undefined;
    }
    return this.afterBind({ kind: "bound", execution, advance: undefined }, link, traceParent);
  }

  /** The call's output and its one result. */
  async *watch(sent: Sent, fromOffset: number, signal: AbortSignal): AsyncGenerator<ExecuteMessage> {
    if (sent.kind === "result") {
      yield { kind: { case: "result", value: sent.result } };
      return;
    }
    if (sent.kind === "offered") {
      yield { kind: { case: "offered", value: { workId: sent.workId } } };
      return;
    }
    yield* this.follow(sent, fromOffset, signal);
  }

  private async *follow(
    { execution, attached, live: entered }: Sent & { kind: "follow" },
    fromOffset: number,
    signal: AbortSignal,
  ): AsyncGenerator<ExecuteMessage> {
    if (execution.handId !== undefined) {
      yield { kind: { case: "bound", value: { handId: execution.handId, attached } } };
    }
    if (execution.result !== undefined) {
      yield { kind: { case: "result", value: fromStoredText(execution.result) } };
      return;
    }
    const live = entered ?? this.hub.enter(execution);
    try {
      for await (const { offset, data } of live.read(fromOffset, signal)) {
        yield { kind: { case: "output", value: { offset: BigInt(offset), data } } };
      }
      yield { kind: { case: "result", value: await live.done } };
    } finally {
      this.hub.leave(live);
    }
  }

  private async start(order: CallOrder, signal: AbortSignal): Promise<Sent> {
    const wake = new AbortController();
    const waiters = this.waiting.get(order.call.executionKey) ?? new Set();
    this.waiting.set(order.call.executionKey, waiters.add(wake));
    try {
      const either = AbortSignal.any([signal, wake.signal]);
      return await this.bindAndSend(order, either);
    } catch (error) {
      if (!wake.signal.aborted || signal.aborted) throw error;
      // Cancelled while it waited: the result stands in the store.
      const execution = await this.deps.store.executions.find(order.call.executionKey);
      if (execution === undefined) throw error;
      return { kind: "follow", execution, attached: true };
    } finally {
      waiters.delete(wake);
      if (waiters.size === 0) this.waiting.delete(order.call.executionKey);
    }
  }

  private async bindAndSend(order: CallOrder, signal: AbortSignal): Promise<Sent> {
    const { call, lease } = order;
    for (let attempt = 1; ; attempt += 1) {
      const found = await abortable(this.findHand(order), signal);
      if ("elsewhere" in found) return found.elsewhere;
      if ("failure" in found) return this.refuse(call, found.failure, lease);
      const { hand } = found;
      const known = await this.toolLists.names(hand.toolsDigest);
      if (known !== undefined && !known.has(call.name)) {
        return this.refuse(call, failureResult(unknownTool(call.name, known)), lease);
      }
      const link = await linkOfHand(this.deps, this, hand, signal);
      if (link === undefined) return this.refuse(call, failureResult(agentOffline(hand)), lease);
      const event =
        order.operator && hand.sessionId !== undefined
          ? operatedEvent(hand, {
              ...order.operator,
              executionId: call.executionId,
              name: call.name,
              input: call.input,
            })
          : undefined;
      failpoint("server.before_bind");
      const bound = await this.deps.store.executions.bind({
        call: event === undefined ? call : { ...call, sessionId: hand.sessionId },
        handId: hand.handId,
        handAgentId: link.handAgentId,
        journalId: link.journalId,
        lease,
        event,
      });
      const sent = this.afterBind(bound, link, order.traceParent);
      if (sent !== undefined) {
        if (call.answersToolUse && order.handId === "") this.knownHands.remember(hand);
        return sent;
      }
      if (attempt >= BIND_ATTEMPTS) {
        throw new TendonError(
          "UNAVAILABLE",
          "the hand or its agent kept changing while the call was sent; try again",
        );
      }
      if (bound.kind === "agent_gone")
        await abortable(this.provisioner.changed(this.deps.timing.lookAgainMs), signal);
    }
  }

  /** Undefined: look for the hand again. */
  private afterBind(bound: Bound, link: AgentLink, traceParent = ""): Sent | undefined {
    switch (bound.kind) {
      case "bound": {
        failpoint("server.bound");
        this.conclusions.announce(bound.advance);
        const live = this.hub.enter(bound.execution);
        // A link that has just ended is followed by a greeting, which sends what the agent's journal lacks.
        if (!link.post(startMessage(bound.execution, traceParent))) this.redispatch(bound.execution);
        return { kind: "follow", execution: bound.execution, attached: false, live };
      }
      case "exists":
        return { kind: "follow", execution: bound.execution, attached: true };
      case "answered":
        return { kind: "result", result: create(ExecutionResultSchema, resultOfEvent(bound.payload)) };
      case "hand_gone":
      case "agent_gone":
        return undefined;
    }
  }

  /** Its connection ended between binding and sending: a newer one may have been greeted before the bind was visible. */
  private redispatch(execution: ExecutionRecord): void {
    const link = this.links.find(execution.handAgentId ?? "");
    if (link?.journalId === execution.journalId) link?.post(startMessage(execution));
  }

  private async findHand(order: CallOrder): Promise<FoundHand> {
    const { call, handId, lease } = order;
    const { hands } = this.deps.store;
    if (handId !== "") return this.namedHand(handId);
    const usable = call.sessionId === undefined ? undefined : await hands.usable(call.sessionId, call.slot);
    // A hand of a self-hosted environment may be a guess, which has not decided who runs its calls: the first call does.
    if (usable?.state === "ready" && !isSelfHosted(usable)) return { hand: usable };
    const offer = await this.offers.offer(call, lease);
    if (offer !== undefined) return { elsewhere: offer };
    const opened = await hands.open({
      workspaceId: call.workspaceId,
      sessionId: call.sessionId,
      slot: call.slot,
      environmentId: "",
      resources: "[]",
      requestId: undefined,
      lease,
      noticeAfterLoss: NOTICE_AFTER_LOSS,
      noticeAfterRelease: NOTICE_AFTER_RELEASE,
      noticeAfterHandOver: NOTICE_AFTER_HAND_OVER,
      toolUseId: call.answersToolUse ? call.executionId : undefined,
      declaredSlotsOnly: order.declaredSlotsOnly,
      speculative: false,
    });
    if (opened.kind === "not_declared") return { failure: failureResult(noHandInSlot(call.slot)) };
    if (opened.kind === "too_many") return { failure: failureResult(tooManyHands(opened.most)) };
    if (opened.kind === "loss_not_told") return { failure: handLostResult(opened.hand.stateDetail) };
    const provisioned = await this.provisioner.ensure(opened.hand);
    if (provisioned.kind === "ready") return { hand: provisioned.hand };
    return { failure: failureResult(noHand(provisioned)) };
  }

  private async namedHand(handId: string): Promise<FoundHand> {
    const hand = await this.deps.store.hands.find(handId);
    if (hand === undefined || hand.state === "released") {
      throw new TendonError("HAND_RELEASED", `hand "${handId}" was released`);
    }
    if (hand.state === "lost")
      throw new TendonError("HAND_LOST", `hand "${handId}" is lost: ${hand.stateDetail}`);
    const provisioned = await this.provisioner.ensure(hand);
    if (provisioned.kind === "ready") return { hand: provisioned.hand };
    return { failure: failureResult(noHand(provisioned)) };
  }

  private async refuse(
    call: CallRecord,
    result: ExecutionResult,
    lease: LeaseClaim | undefined,
  ): Promise<Sent> {
    const concluded = await this.conclusions.refuse(call, result, lease);
    return this.afterRefusal(call, concluded, result);
  }

  private async afterRefusal(call: CallRecord, concluded: Concluded, result: ExecutionResult): Promise<Sent> {
    if (concluded.kind === "stored") return { kind: "result", result };
    if (concluded.kind === "existing" && concluded.payload !== undefined) {
      return { kind: "result", result: create(ExecutionResultSchema, resultOfEvent(concluded.payload)) };
    }
    const execution = await this.deps.store.executions.find(call.executionKey);
    if (execution === undefined) return { kind: "result", result };
    return { kind: "follow", execution, attached: true };
  }

  /** Makes sure that a call which is not bound never will be. True when it had ended before. */
  async cancelUnbound(
    call: CallRecord,
    reason: string,
    lease: LeaseClaim | undefined,
  ): Promise<"ended" | "cancelled" | "bound"> {
    const ofWorker = await this.offers.cancel(call, lease);
    if (ofWorker !== undefined) return ofWorker;
    const concluded = await this.conclusions.refuse(call, cancelledResult(reason), lease);
    if (concluded.kind === "bound") return "bound";
    for (const wake of this.waiting.get(call.executionKey) ?? []) {
      wake.abort(new TendonError("CANCELLED", "the call was cancelled"));
    }
    return concluded.kind === "stored" ? "cancelled" : "ended";
  }

  /** The server stops: callers go elsewhere, what runs goes on. */
  sendAway(error: TendonError): void {
    for (const waiters of this.waiting.values()) for (const wake of waiters) wake.abort(error);
    this.hub.sendAway(error);
  }

  /** Tells the agent to end a bound execution; an agent that is not connected is told when it comes back. */
  async stop(
    executionKey: string,
    reason: string,
    lease: LeaseClaim | undefined,
  ): Promise<ExecutionRecord | undefined> {
    const execution = await this.deps.store.executions.requestStop({ executionKey, reason, lease });
    if (execution !== undefined && execution.result === undefined) {
      const link = await this.links.locate(execution.handAgentId ?? "");
      link?.post(stopMessage(execution, reason));
    }
    return execution;
  }
}
