/** What the log's own columns and its session's row take from an event (pure). Everything else in a payload is the writers' business. */

export interface EventFacts {
  /** Event id of the tool use that this event answers; at most one event answers it (X3). */
  answers: string | undefined;
  /** Event id of the tool use that this event speaks of. */
  call: string | undefined;
  /** Whether it asks for a brain. */
  isWork: boolean;
  fold: EventFold | undefined;
  /** Ids of the inputs that it says were taken in (L6). */
  consumed: readonly string[];
}

export type EventFold =
  | { readonly kind: "status"; readonly status: StatusName; readonly stopReason: string }
  | {
      readonly kind: "usage";
      /** Input, output, read from and written to a cache. */
      readonly tokens: readonly [number, number, number, number];
      /** By list price; undefined when nothing is said, as by an attempt that failed. */
      readonly listCost: { readonly nanoUsd: number } | "unpriced" | undefined;
    }
  /** Searches of the web that a call has made. */
  | { readonly kind: "searches"; readonly count: number; readonly nanoUsd: number };

export type StatusName = "idle" | "running" | "rescheduling" | "terminated";

const STATUSES: Readonly<Record<string, StatusName>> = {
  // A fork begins at rest, whatever its origin was doing.
  "session.forked": "idle",
  "session.status_running": "running",
  "session.status_idle": "idle",
  "session.status_rescheduled": "rescheduling",
  "session.status_terminated": "terminated",
};

/** Where a result's payload names its call. */
export const ANSWER_FIELDS: Readonly<Record<string, string>> = {
  "agent.tool_result": "tool_use_id",
  "user.tool_result": "tool_use_id",
  "user.custom_tool_result": "custom_tool_use_id",
  "agent.mcp_tool_result": "mcp_tool_use_id",
};

/** Asks for a brain, whoever appends it. */
export const CLIENT_WORK: ReadonlySet<string> = new Set([
  "user.message",
  "user.interrupt",
  "user.tool_confirmation",
  "user.custom_tool_result",
  "user.tool_result",
  "user.define_outcome",
]);

/** Work only when the server appends it: a brain knows what it wrote itself. */
export const SERVER_WORK: ReadonlySet<string> = new Set([
  "agent.tool_result",
  "agent.mcp_tool_result",
  "agent.thread_message_received",
  "brain.threads_rested",
]);

const NOTHING: EventFacts = {
  answers: undefined,
  call: undefined,
  isWork: false,
  fold: undefined,
  consumed: [],
};
const WORK: EventFacts = { ...NOTHING, isWork: true };

/** `payload` is JSON text of an object. Fields of another type than expected count as absent. */
export function factsOf(
  event: { readonly type: string; readonly payload: string; readonly threadId?: string },
  byServer: boolean,
): EventFacts {
  // What stands in a root's log for a thread's is neither work nor state of the root.
  if (event.threadId) {
    const { answers, call } = factsOf({ type: event.type, payload: event.payload }, byServer);
    return { ...NOTHING, answers, call };
  }
  const { type } = event;
  const isWork = CLIENT_WORK.has(type) || (byServer && SERVER_WORK.has(type));
  const answerField = ANSWER_FIELDS[type];
  if (answerField !== undefined) {
    const payload = objectOf(event.payload);
    const answers = textOf(payload[answerField]);
    return { ...NOTHING, answers, call: answers, isWork, fold: searchesOf(type, payload) };
  }
  if (type === "user.tool_confirmation") {
    return { ...WORK, call: textOf(objectOf(event.payload).tool_use_id) };
  }
  const status = STATUSES[type];
  if (status !== undefined) {
    const reason = status === "idle" ? record(objectOf(event.payload).stop_reason).type : "";
    return { ...NOTHING, fold: { kind: "status", status, stopReason: textOf(reason) ?? "" } };
  }
  // Who rests because the budget was spent looks whether it may go on.
  if (type === "session.updated")
    return byServer && objectOf(event.payload).budget !== undefined ? WORK : NOTHING;
  if (type === "span.model_request_end") return { ...NOTHING, fold: usageOf(event.payload, "model_usage") };
  // Calls that no model was asked about cost nothing.
  if (type === "brain.call_judged" && event.payload.includes('"model_usage"'))
    return { ...NOTHING, fold: usageOf(event.payload, "model_usage") };
  if (type === "span.outcome_evaluation_end") return { ...NOTHING, fold: graderUsageOf(event.payload) };
  if (type === "brain.inputs_consumed") {
    const ids = objectOf(event.payload).event_ids;
    const consumed = Array.isArray(ids) ? ids.filter((id): id is string => textOf(id) !== undefined) : [];
    return { ...NOTHING, consumed };
  }
  return isWork ? WORK : NOTHING;
}

/** All that was asked for one verdict counts as one request; undefined when nobody answered. */
function graderUsageOf(payload: string): EventFold | undefined {
  return objectOf(payload).list_cost === undefined ? undefined : usageOf(payload, "usage");
}

function usageOf(payload: string, field: "model_usage" | "usage"): EventFold {
  const fields = objectOf(payload);
  const usage = record(fields[field]);
  return {
    kind: "usage",
    listCost: listCostOf(fields.list_cost),
    tokens: [
      countOf(usage.input_tokens),
      countOf(usage.output_tokens),
      countOf(usage.cache_read_input_tokens),
      countOf(usage.cache_creation_input_tokens),
    ],
  };
}

function searchesOf(type: string, payload: Record<string, unknown>): EventFold | undefined {
  if (type !== "agent.tool_result" || payload.server_tool_use === undefined) return undefined;
  const count = countOf(record(payload.server_tool_use).web_search_requests);
  const nanoUsd = countOf(record(payload.list_cost).nano_usd);
  return count === 0 ? undefined : { kind: "searches", count, nanoUsd };
}

/** Null says that the model has no price. */
function listCostOf(cost: unknown): { nanoUsd: number } | "unpriced" | undefined {
  if (cost === undefined) return undefined;
  return cost === null ? "unpriced" : { nanoUsd: countOf(record(cost).nano_usd) };
}

function objectOf(payload: string): Record<string, unknown> {
  return record(JSON.parse(payload));
}

function record(value: unknown): Record<string, unknown> {
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

/** Postgres keeps no NUL in a text; an id never has one. */
function textOf(value: unknown): string | undefined {
  return typeof value === "string" && value !== "" && value.length <= 200 && !value.includes("\0")
    ? value
    : undefined;
}

/** A sum of these stays exact; what no model reports is not counted. */
const MAX_COUNT = 1e12;

function countOf(value: unknown): number {
  return typeof value === "number" && Number.isInteger(value) && value >= 0 && value <= MAX_COUNT ? value : 0;
}
