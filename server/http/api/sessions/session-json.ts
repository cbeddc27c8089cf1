/** A session as existing clients know it (pure). */
import { timestampMs } from "@bufbuild/protobuf/wkt";
import {
  type Budget,
  type OutcomeEvaluation,
  OutcomeResult,
  type Session,
  SessionStatus,
  StopReason,
  type Usage,
} from "../../../../proto/gen/tendon/v1/session_pb.js";
import { sessionAgentJson } from "../agents/agent-json.ts";
import type { FindMember } from "../agents/roster.ts";
import { timeJson } from "../time-json.ts";
import { resourceJson } from "./resource-json.ts";

const NANO_USD_PER_CENT = 10_000_000n;

/** `status`: where its log says more of that than the session itself. */
export function sessionJson(session: Session, nowMs: number, find: FindMember, status?: string) {
  const usage = usageJson(session.tree?.usage ?? session.usage);
  const durationS = durationSeconds(session, nowMs);
  return {
    type: "session",
    id: session.id,
    title: session.title || null,
    status: status ?? statusJson(session),
    agent: sessionAgentJson(session.agent!, find),
    environment_id: session.environmentId,
    vault_ids: session.vaultIds,
    resources: session.resources.map((resource) => resourceJson(resource)),
    metadata: session.metadata,
    outcome_evaluations: session.outcomeEvaluations.map(outcomeJson),
    // The sum counts threads that worked at the same time once each; the session's age bounds it.
    usage: { ...usage, active_seconds: Math.min(usage.active_seconds, durationS) },
    stats: { active_seconds: usage.active_seconds, duration_seconds: durationS },
    ...budgetJson(session.budget),
    deployment_id: session.deploymentId || null,
    created_at: timeJson(session.createdAt),
    updated_at: timeJson(session.updatedAt),
    archived_at: timeJson(session.archivedAt),
  };
}

/** By status word; every one that a client may ask for is here. */
export const STATUSES: Readonly<Record<string, SessionStatus>> = {
  idle: SessionStatus.IDLE,
  running: SessionStatus.RUNNING,
  rescheduling: SessionStatus.RESCHEDULING,
  terminated: SessionStatus.TERMINATED,
};

function outcomeJson(outcome: OutcomeEvaluation) {
  const { outcomeId, description, result, iteration, explanation, completedAt } = outcome;
  return {
    type: "outcome_evaluation",
    outcome_id: outcomeId,
    description,
    result: OutcomeResult[result]!.toLowerCase(),
    iteration,
    explanation: explanation || null,
    completed_at: timeJson(completedAt),
  };
}

/** Something of a session that waits for its threads works. */
export function statusJson({ status, stopReason }: Pick<Session, "status" | "stopReason">): string {
  if (status === SessionStatus.IDLE && stopReason === StopReason.WAITING_FOR_THREADS) return "running";
  return Object.keys(STATUSES).find((word) => STATUSES[word] === status) ?? "idle";
}

/** Since it was made, until it was archived. */
export function durationSeconds({ createdAt, archivedAt }: Session, nowMs: number): number {
  const startMs = createdAt === undefined ? nowMs : timestampMs(createdAt);
  const untilMs = archivedAt === undefined ? nowMs : timestampMs(archivedAt);
  return seconds(Math.max(0, untilMs - startMs));
}

export function usageJson(usage: Usage | undefined) {
  const count = (value: bigint | undefined) => Number(value ?? 0n);
  return {
    input_tokens: count(usage?.inputTokens),
    output_tokens: count(usage?.outputTokens),
    cache_read_input_tokens: count(usage?.cacheReadInputTokens),
    cache_creation: {
      ephemeral_5m_input_tokens: count(usage?.cacheCreationInputTokens),
      ephemeral_1h_input_tokens: 0,
    },
    active_seconds: seconds(count(usage?.activeMs)),
    list_cost: { amount: String(centsOf(usage?.listCostNanoUsd ?? 0n)), currency: "USD" },
    server_tool_use: toolUseJson(count(usage?.webSearchRequests)),
  };
}

function centsOf(nanoUsd: bigint): bigint {
  return (nanoUsd + NANO_USD_PER_CENT / 2n) / NANO_USD_PER_CENT;
}

/** Reading pages costs nothing and is not counted. */
function toolUseJson(searches: number) {
  return searches === 0 ? null : { web_search_requests: searches, web_fetch_requests: 0 };
}

/** Only a limit of list price is one that clients know; the others are beside it, and without it where they do not look. */
export function budgetJson(budget: Budget | undefined) {
  const { maxListCostCents = 0n, maxTokens = 0n, maxTurns = 0n, maxWallClockMs = 0n } = budget ?? {};
  const own = {
    ...(maxTokens > 0n && { max_tokens: Number(maxTokens) }),
    ...(maxTurns > 0n && { max_turns: Number(maxTurns) }),
    ...(maxWallClockMs > 0n && { max_wall_clock_ms: Number(maxWallClockMs) }),
  };
  if (maxListCostCents === 0n)
    return { budget: null, ...(Object.keys(own).length > 0 && { tendon_budget: own }) };
  const max_list_cost = { amount: String(maxListCostCents), currency: "USD" };
  return { budget: { type: "limit", max_list_cost, ...own } };
}

function seconds(ms: number): number {
  return Math.round(ms) / 1000;
}
