/** A session as the contract shows it. */
import { create, fromJson, fromJsonString, type JsonValue, type MessageInitShape } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { outcomeIdOf } from "../../kit/ids.ts";
import { AgentSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import {
  BudgetSchema,
  OutcomeResult,
  type Session,
  type SessionResource,
  SessionResourceSchema,
  SessionSchema,
  SessionStatus,
  StopReason,
} from "../../proto/gen/tendon/v1/session_pb.js";
import type { StatusName } from "../store/event-facts.ts";
import type { OutcomeRecord, OutcomeResult as ResultName } from "../store/outcomes.ts";
import type { SessionRecord } from "../store/sessions.ts";
import type { TreeSums } from "../store/threads.ts";

const STATUSES: Readonly<Record<StatusName, SessionStatus>> = {
  idle: SessionStatus.IDLE,
  running: SessionStatus.RUNNING,
  rescheduling: SessionStatus.RESCHEDULING,
  terminated: SessionStatus.TERMINATED,
};

/** A reason that this server does not know is shown as unspecified; the event has its name. */
const STOP_REASONS: Readonly<Record<string, StopReason>> = {
  end_turn: StopReason.END_TURN,
  requires_action: StopReason.REQUIRES_ACTION,
  retries_exhausted: StopReason.RETRIES_EXHAUSTED,
  budget_reached: StopReason.BUDGET_REACHED,
  refusal: StopReason.REFUSAL,
  interrupted: StopReason.INTERRUPTED,
  waiting_for_threads: StopReason.WAITING_FOR_THREADS,
};

const OUTCOME_RESULTS: Readonly<Record<ResultName, OutcomeResult>> = {
  pending: OutcomeResult.PENDING,
  running: OutcomeResult.RUNNING,
  evaluating: OutcomeResult.EVALUATING,
  satisfied: OutcomeResult.SATISFIED,
  max_iterations_reached: OutcomeResult.MAX_ITERATIONS_REACHED,
  failed: OutcomeResult.FAILED,
  interrupted: OutcomeResult.INTERRUPTED,
};

/** What is known of a session besides its row. */
export interface SessionMore {
  readonly tree?: TreeSums | undefined;
  readonly outcomes?: readonly OutcomeRecord[] | undefined;
}

export function toSessionMessage(record: SessionRecord, { tree, outcomes = [] }: SessionMore = {}): Session {
  const init: MessageInitShape<typeof SessionSchema> = {
    id: record.sessionId,
    workspaceId: record.workspaceId,
    agent: fromJsonString(AgentSchema, record.agent, { ignoreUnknownFields: true }),
    environmentId: record.environmentId,
    slotEnvironmentIds: { ...record.slotEnvironmentIds },
    title: record.title,
    metadata: { ...record.metadata },
    status: STATUSES[record.status],
    stopReason: STOP_REASONS[record.stopReason] ?? StopReason.UNSPECIFIED,
    head: BigInt(record.head),
    vaultIds: [...record.vaultIds],
    usage: {
      inputTokens: BigInt(record.inputTokens),
      outputTokens: BigInt(record.outputTokens),
      cacheReadInputTokens: BigInt(record.cacheReadInputTokens),
      cacheCreationInputTokens: BigInt(record.cacheCreationInputTokens),
      modelRequests: BigInt(record.modelRequests),
      activeMs: BigInt(record.activeMs),
      listCostNanoUsd: BigInt(record.listCostNanoUsd),
      unpricedRequests: BigInt(record.unpricedRequests),
      webSearchRequests: BigInt(record.webSearchRequests),
    },
    createdAt: timestampFromDate(record.createdAt),
    updatedAt: timestampFromDate(record.updatedAt),
    forkedFromSessionId: record.forkedFromSessionId,
    forkedFromPosition: BigInt(record.forkedFromPosition),
    hasWork: record.hasWork,
    rootSessionId: record.rootSessionId ?? "",
    parentSessionId: record.parentSessionId ?? "",
    deploymentId: record.deploymentId ?? "",
    tamperEvident: record.chain !== undefined,
    resources: resourcesOf(record.resources),
    outcomeEvaluations: outcomes.map(outcomeEvaluation),
  };
  if (record.budget !== "{}") {
    init.budget = fromJsonString(BudgetSchema, record.budget, { ignoreUnknownFields: true });
  }
  if (tree !== undefined) init.tree = treeState(tree);
  if (record.archivedAt) init.archivedAt = timestampFromDate(record.archivedAt);
  return create(SessionSchema, init);
}

function outcomeEvaluation(outcome: OutcomeRecord) {
  const { eventId, description, result, iteration, explanation = "", completedAt } = outcome;
  return {
    outcomeId: outcomeIdOf(eventId),
    eventId,
    description,
    result: OUTCOME_RESULTS[result],
    iteration,
    explanation,
    ...(completedAt && { completedAt: timestampFromDate(completedAt) }),
  };
}

export function resourcesOf(text: string): SessionResource[] {
  if (text === "[]") return [];
  return (JSON.parse(text) as JsonValue[]).map((resource) =>
    fromJson(SessionResourceSchema, resource, { ignoreUnknownFields: true }),
  );
}

function treeState({ threads, liveThreads, running, atBudget, ...sums }: TreeSums) {
  const usage = Object.fromEntries(Object.entries(sums).map(([name, count]) => [name, BigInt(count)]));
  return { threads, liveThreads, running, atBudget, usage };
}

/** The status names that a list filters by; unspecified ones are skipped. */
export function statusNames(statuses: readonly SessionStatus[]): StatusName[] {
  const names = Object.entries(STATUSES) as [StatusName, SessionStatus][];
  return names.filter(([, status]) => statuses.includes(status)).map(([name]) => name);
}
