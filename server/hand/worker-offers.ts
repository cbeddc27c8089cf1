/**
 * Calls of self-hosted environments. A session's first call decides who runs its calls, for good (W1): a hand agent whose
 * label says that it serves the environment and that is there, else workers, who find the call in their queue.
 */
import { create, fromJsonString } from "@bufbuild/protobuf";
import { TendonError } from "../../kit/errors.ts";
import { EnvironmentSpecSchema } from "../../proto/gen/tendon/v1/environment_pb.js";
import { type ExecutionResult, ExecutionResultSchema } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { CallRecord } from "../store/executions.ts";
import type { LeaseClaim } from "../store/hands.ts";
import type { CallEnding, SlotServer } from "../store/work.ts";
import type { Conclusions } from "./conclusions.ts";
import type { HandDeps } from "./deps.ts";
import type { Provisioner } from "./provisioner.ts";
import { resultOfEvent } from "./results.ts";

/** Undefined where hand agents run the call. */
export type Offer =
  | { readonly kind: "offered"; readonly workId: string }
  | { readonly kind: "result"; readonly result: ExecutionResult }
  | undefined;

const INTERRUPTED: CallEnding = {
  outcome: "cancelled",
  reason: "INTERRUPTED",
  text: "Tool execution was interrupted before completion: a worker may have run it in part or in whole, and its answer is not waited for.",
};

export class WorkerOffers {
  private readonly deps: HandDeps;
  private readonly provisioner: Provisioner;
  private readonly conclusions: Conclusions;

  constructor(deps: HandDeps, parts: { provisioner: Provisioner; conclusions: Conclusions }) {
    this.deps = deps;
    this.provisioner = parts.provisioner;
    this.conclusions = parts.conclusions;
  }

  async offer(call: CallRecord, lease: LeaseClaim | undefined): Promise<Offer> {
    const { sessionId, executionId: callId, slot } = call;
    // Workers know no slots: what is not the default one is hands' alone.
    if (sessionId === undefined || !call.answersToolUse || slot !== "") return undefined;
    const { work } = this.deps.store;
    const server = await work.slotServer(sessionId, slot);
    if (server === undefined || server.servedBy === "hand_agent" || !isSelfHosted(server)) return undefined;
    const { environmentId } = server;
    const byHandAgent = server.servedBy === undefined && (await this.hasAgent(server));
    const offered = await work.offer({ sessionId, callId, environmentId, lease, byHandAgent });
    switch (offered.kind) {
      case "offered":
        this.deps.workQueue().queued(offered.environmentId);
        return { kind: "offered", workId: offered.workId };
      case "answered":
        return { kind: "result", result: create(ExecutionResultSchema, resultOfEvent(offered.payload)) };
      case "hand_agent":
      case "exists":
        return undefined;
    }
  }

  /** NOT_CONFIGURED for a slot whose calls workers run, or would run if one was made now. */
  async checkHandsServe(sessionId: string, slot: string): Promise<void> {
    const server = await this.deps.store.work.slotServer(sessionId, slot);
    if (server === undefined || server.servedBy === "hand_agent" || !isSelfHosted(server)) return;
    if (server.servedBy === undefined && (await this.hasAgent(server))) return;
    throw new TendonError(
      "NOT_CONFIGURED",
      "the environment is self-hosted: its workers run the session's calls, and hand agents make no hands for it",
    );
  }

  /** Undefined when workers do not run the session's calls. */
  async cancel(call: CallRecord, lease: LeaseClaim | undefined): Promise<"ended" | "cancelled" | undefined> {
    const { sessionId, executionId: callId, slot, answersToolUse } = call;
    if (sessionId === undefined || !answersToolUse || slot !== "") return undefined;
    const ended = await this.deps.store.work.endCall({ sessionId, callId, lease, ending: INTERRUPTED });
    if (ended?.kind === "stored") this.conclusions.announce(ended.advance);
    return ended && (ended.kind === "stored" ? "cancelled" : "ended");
  }

  private hasAgent({ workspaceId, environmentId, environment }: SlotServer): Promise<boolean> {
    const spec = fromJsonString(EnvironmentSpecSchema, environment, { ignoreUnknownFields: true });
    return this.provisioner.hasAgentFor({ workspaceId, environmentId, spec });
  }
}

export function isSelfHosted({ environment }: Pick<SlotServer, "environment">): boolean {
  return (JSON.parse(environment) as { selfHosted?: boolean }).selfHosted === true;
}
