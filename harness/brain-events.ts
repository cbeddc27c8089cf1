/** The events that a brain appends, as the log keeps them. Pure, except that ids come from outside. */
import { create } from "@bufbuild/protobuf";
import type { FailureOrigin } from "../kit/errors.ts";
import { formatTraceParent, type TraceContext } from "../kit/trace.ts";
import { type EventInput, EventInputSchema } from "../proto/gen/tendon/v1/event_pb.js";
import { type CallTarget, callTarget } from "./call-target.ts";
import { listCostOf } from "./list-price.ts";
import {
  type ContextChange,
  type ModelFailure,
  type ModelUsage,
  NO_USAGE,
  type ProposedCall,
  type ProposedEvent,
  type ProposedResponse,
  type ResponseStop,
} from "./loops/loop.ts";
import { type CallVerdict, evaluationText, isAsked } from "./permission/call-verdict.ts";
import type { RetryVerdict } from "./retry-policy.ts";
import type { OpenCall, SessionState } from "./session-state.ts";
import type { AnswerTerms, ToolCatalogue } from "./tool-catalogue.ts";

/** For calls that an agent wants left alone. */
export const LEFT_RUNNING_TEXT =
  "Interrupted: nobody waits for this call any more. If it had begun it goes on by itself, and what comes of it is not shown.";
/** A call that the model made up, or whose input is none. */
const INVALID_CALL: FailureOrigin = { part: "model", reason: "INVALID_TOOL_CALL" };
/** A client ended what was going on. */
export const INTERRUPTED: FailureOrigin = { part: "client", reason: "INTERRUPTED" };
/** Whoever asked the model died, or gave the session away, before the answer was in the log. */
export const HARNESS_GONE: FailureOrigin = { part: "harness", reason: "HARNESS_GONE" };
/** A tool that runs in the harness says no. */
const OWN_TOOL_FAILED: FailureOrigin = { part: "harness", reason: "TOOL_FAILED" };
export const INTERRUPTED_TEXT = "Tool execution was interrupted before completion. Please retry.";

const NANO_USD_PER_CENT = 10_000_000;

type NewId = () => string;

const NO_VERDICTS: ReadonlyMap<string, CallVerdict> = new Map();

/** An event whose payload is this value. */
export function brainEvent(id: string, type: string, payload: object, internal?: object): EventInput {
  return rawEvent(id, type, JSON.stringify(payload), internal === undefined ? "" : JSON.stringify(internal));
}

function rawEvent(id: string, type: string, payload: string, internal: string): EventInput {
  return create(EventInputSchema, { id, type, payload, internal });
}

/** The batch that begins a model request (L6): what the model sees for the first time is consumed together with it. */
export function requestEvents(
  state: SessionState,
  ask: { readonly turn: number; readonly inputs: readonly { readonly eventId: string }[] },
  model: string,
  newId: NewId,
  trace?: TraceContext,
): EventInput[] {
  const events: EventInput[] = [];
  if (state.status !== "running") events.push(brainEvent(newId(), "session.status_running", {}));
  const turn = Math.max(1, ask.turn);
  if (ask.inputs.length > 0) {
    const payload = {
      event_ids: ask.inputs.map(({ eventId }) => eventId),
      turn,
      ...(trace && { trace_id: trace.traceId }),
    };
    const internal = trace && { v: 1, trace_parent: formatTraceParent(trace) };
    events.push(brainEvent(newId(), "brain.inputs_consumed", payload, internal));
  }
  events.push(brainEvent(newId(), "span.model_request_start", { model, turn }));
  return events;
}

/**
 * The batch of one whole answer: its parts, the end of its span, and results of the calls that cannot run. `verdicts` are on
 * calls whose policy is `auto`, by their event ids; one without is held for a client.
 */
export function responseEvents(
  response: ProposedResponse,
  spanId: string,
  catalogue: ToolCatalogue,
  model: string,
  newId: NewId,
  verdicts: ReadonlyMap<string, CallVerdict> = NO_VERDICTS,
): EventInput[] {
  const isRefusal = response.stop.kind === "refusal";
  const kept = isRefusal ? response.events.filter(({ kind }) => kind === "message") : response.events;
  const refusals: EventInput[] = [];
  const events = kept.map((event) => {
    if (event.kind !== "call") return partEvent(event, isRefusal);
    const target = callTarget(event, catalogue);
    const { problem } = target;
    const call = { eventId: event.eventId, kind: target.tool?.kind ?? "hand" };
    const verdict = verdicts.get(event.eventId);
    if (problem !== undefined) refusals.push(errorResult(newId(), call, problem, INVALID_CALL));
    else if (verdict?.type === "deny" && target.tool?.policy === "auto") {
      const { text, part, reason } = verdict.denial;
      refusals.push(errorResult(newId(), call, text, { part, reason }));
    }
    return callEvent(event, target, verdict);
  });
  const calls = kept.filter(({ kind }) => kind === "call").length;
  return [...events, spanEnd(response, spanId, calls, model, newId), ...refusals];
}

function spanEnd(
  { stop, usage, keep }: ProposedResponse,
  spanId: string,
  calls: number,
  model: string,
  newId: NewId,
): EventInput {
  const payload = {
    model_request_start_id: spanId,
    is_error: false,
    model,
    ...usageFields(model, usage),
    stop_reason: stop.reason,
  };
  const refusal =
    stop.kind === "refusal" ? { refusal: stop.refusal ?? { category: null, explanation: null } } : {};
  const kept = keep === undefined ? {} : { kept: keep };
  const internal = { v: 1, stop: stop.kind, calls, ...refusal, ...kept };
  return brainEvent(newId(), "span.model_request_end", payload, internal);
}

/** What a loop decided about its context; with a request that was made for it, whose span it ends, as one batch. */
export function contextEvents(
  { kind, payload, internal }: ContextChange,
  request: { readonly usage: ModelUsage; readonly stop: ResponseStop } | undefined,
  spanId: string,
  model: string,
  newId: NewId,
): EventInput[] {
  const events = [brainEvent(newId(), "brain.context_changed", { change: kind, ...payload }, internal)];
  if (kind === "compacted") events.push(brainEvent(newId(), "agent.thread_context_compacted", {}));
  if (request === undefined) return events;
  const { usage, stop } = request;
  const end = {
    model_request_start_id: spanId,
    is_error: false,
    model,
    ...usageFields(model, usage),
    stop_reason: stop.reason,
    purpose: "context",
  };
  return [...events, brainEvent(newId(), "span.model_request_end", end, { v: 1, stop: "context", calls: 0 })];
}

/** A later table of prices changes nothing of what was said before. */
export function usageFields(model: string, usage: ModelUsage) {
  const cost = listCostOf(model, usage);
  return {
    model_usage: wireUsage(usage),
    list_cost: cost === undefined ? null : { nano_usd: cost.nanoUsd, prices_of: cost.pricesOf },
  };
}

/** A refused answer is shown, but no later request holds it: a model that sees its refusal refuses again. */
function partEvent(event: Exclude<ProposedEvent, ProposedCall>, isRefusal: boolean): EventInput {
  const internal = internalText(isRefusal ? [] : event.blocks);
  if (event.kind === "thinking") return rawEvent(event.eventId, "agent.thinking", "{}", internal);
  const content = event.texts.map((text) => ({ type: "text", text }));
  return rawEvent(event.eventId, "agent.message", JSON.stringify({ content }), internal);
}

function callEvent(
  call: ProposedCall,
  { tool, input, via, problem }: CallTarget,
  judged: CallVerdict | undefined,
): EventInput {
  const isRefused = problem !== undefined;
  const internal = internalText(call.blocks);
  if (tool?.kind === "custom" && !isRefused) {
    const terms = termsText(tool.answerTerms, false);
    const payload = `{"name":${JSON.stringify(tool.name)},"input":${input}${terms}}`;
    return rawEvent(call.eventId, "agent.custom_tool_use", payload, internal);
  }
  // Who runs it is said in the log, so that nobody takes it for a hand's.
  const where = placeOf(tool);
  const reached = via === undefined ? "" : `,"via":${JSON.stringify(via)}`;
  const named = `"name":${JSON.stringify(tool?.name ?? call.modelName)}`;
  const isMcp = tool?.kind === "mcp";
  const head = isMcp
    ? `"mcp_server_name":${JSON.stringify(tool.server)},${named}`
    : `${named},${where}${reached}`;
  const verdict =
    isRefused || tool === undefined
      ? `"evaluated_permission":"deny"`
      : evaluationText(tool.policy, judged) +
        (isAsked(tool.policy, judged) ? termsText(tool.answerTerms, true) : "");
  const type = isMcp ? "agent.mcp_tool_use" : "agent.tool_use";
  return rawEvent(call.eventId, type, `{${head},"input":${input},${verdict}}`, internal);
}

function placeOf(tool: CallTarget["tool"]): string {
  if (tool?.kind === "web") return `"runs_in":"proxy"`;
  return tool?.kind === "brain" ? `"runs_in":"brain"` : `"hand":${JSON.stringify(tool?.slot ?? "")}`;
}

/** The log says how long a client has, so that whoever looks there knows; nothing for ever. */
function termsText(terms: AnswerTerms | undefined, withVerdict: boolean): string {
  if (terms === undefined) return "";
  const verdict = withVerdict ? `,"timeout_verdict":"${terms.verdict}"` : "";
  return `,"answer_timeout_ms":${terms.timeoutMs}${verdict}`;
}

/** What a later request is rebuilt from: the model's blocks as they came. */
function internalText(blocks: readonly string[]): string {
  return `{"v":1,"blocks":[${blocks.join(",")}]}`;
}

/** A call, as far as its result depends on it. */
type AnsweredCall = Pick<OpenCall, "eventId" | "kind">;

export function errorResult(
  id: string,
  call: AnsweredCall,
  text: string,
  failure: FailureOrigin,
): EventInput {
  return toolResult(id, call, { content: [{ type: "text", text }], isError: true }, failure);
}

/** The result of a call that no hand ran. */
export function toolResult(
  id: string,
  call: AnsweredCall,
  { content, isError }: { readonly content: readonly object[]; readonly isError: boolean },
  failure: FailureOrigin = OWN_TOOL_FAILED,
): EventInput {
  const result = { content, is_error: isError, ...(isError && { failure }) };
  if (call.kind === "mcp") {
    return brainEvent(id, "agent.mcp_tool_result", { mcp_tool_use_id: call.eventId, ...result });
  }
  // Clients answer these themselves, and look for another type of result.
  const custom = call.kind === "custom" ? { custom: true } : {};
  return brainEvent(id, "agent.tool_result", { ...custom, tool_use_id: call.eventId, ...result });
}

/** The end of a request whose answer nobody has. `failure` is of an attempt that its loop gave up. */
export function deadSpanEnd(
  id: string,
  spanId: string,
  origin: FailureOrigin,
  failure?: Pick<ModelFailure, "type" | "note" | "used"> & {
    readonly elapsedMs: number;
    readonly waitMs: number;
  },
): EventInput {
  const used = failure?.used;
  const usage =
    used === undefined ? { model_usage: wireUsage(NO_USAGE) } : usageFields(used.model, used.usage);
  const payload = { model_request_start_id: spanId, is_error: true, failure: origin, ...usage };
  if (failure === undefined) return brainEvent(id, "span.model_request_end", payload);
  const { type, elapsedMs, waitMs, note } = failure;
  const internal = {
    v: 1,
    failure: { type, elapsed_ms: elapsedMs, wait_ms: waitMs, ...(note !== undefined && { note }) },
  };
  return brainEvent(id, "span.model_request_end", payload, internal);
}

/** A failed attempt: the span's end, what went wrong, and either that it is tried again or that the turn is over. */
export function failureEvents(
  spanId: string,
  failure: ModelFailure,
  verdict: RetryVerdict,
  state: SessionState,
  newId: NewId,
): EventInput[] {
  const waitMs = verdict.kind === "retry" ? verdict.waitMs : 0;
  const origin = modelOrigin(failure);
  const end = deadSpanEnd(newId(), spanId, origin, { ...failure, elapsedMs: verdict.elapsedMs, waitMs });
  const error: SessionFailure = { type: failure.type, message: failure.message, ...origin };
  if (verdict.kind === "retry") return [end, ...retryingEvents(failure, waitMs, newId)];
  return [end, ...exhaustedEvents(error, state, newId)];
}

/** A model failed, and is asked again. */
export function retryingEvents(failure: ModelFailure, waitMs: number, newId: NewId): EventInput[] {
  const origin = modelOrigin(failure);
  const error: SessionFailure = { type: failure.type, message: failure.message, ...origin };
  return [
    errorEvent(newId(), error, "retrying", { retry_in_ms: waitMs }),
    brainEvent(newId(), "session.status_rescheduled", { reason: origin }),
  ];
}

/** What a loop does not say was the model's: `model_overloaded_error` → `MODEL_OVERLOADED`. */
export function modelOrigin({ type, origin }: ModelFailure): FailureOrigin {
  return { part: "model", reason: type.replace(/_error$/, "").toUpperCase(), ...origin };
}

/** What a `session.error` says. */
export interface SessionFailure extends FailureOrigin {
  readonly type: string;
  readonly message: string;
}

export function exhaustedEvents(error: SessionFailure, state: SessionState, newId: NewId): EventInput[] {
  return [
    errorEvent(newId(), error, "exhausted"),
    ...idleEvents({ type: "retries_exhausted" }, null, state, newId),
  ];
}

function errorEvent(
  id: string,
  { type, message, part, reason }: SessionFailure,
  retry: "retrying" | "exhausted",
  more: object = {},
): EventInput {
  return brainEvent(id, "session.error", {
    error: { type, message, retry_status: { type: retry }, part, reason, ...more },
  });
}

/** What goes on once clients or workers have answered these calls, and the server those that wait for threads. */
export function awaitEvents(
  {
    callIds,
    waitIds,
    workerIds,
  }: {
    readonly callIds: readonly string[];
    readonly waitIds: readonly string[];
    readonly workerIds: readonly string[];
  },
  state: SessionState,
  newId: NewId,
): EventInput[] {
  const waits = {
    ...(waitIds.length > 0 && { waiting_calls: waitIds }),
    ...(workerIds.length > 0 && { worker_calls: workerIds }),
  };
  const reason =
    callIds.length > 0
      ? { type: "requires_action", event_ids: callIds }
      : { type: "waiting_for_threads", event_ids: waitIds };
  return idleEvents(reason, null, state, newId, waits);
}

/** The end of a turn, or of the part of it that needs no client. */
export function idleEvents(
  stopReason: object,
  stopDetails: object | null,
  state: SessionState,
  newId: NewId,
  more: object = {},
): EventInput[] {
  const usage = {
    ...wireUsage(state.usage),
    model_requests: state.modelRequests,
    list_cost: {
      amount: String(Math.round(state.listCostNanoUsd / NANO_USD_PER_CENT)),
      currency: "USD",
      nano_usd: state.listCostNanoUsd,
      unpriced_requests: state.unpricedRequests,
    },
    ...(state.webSearchRequests > 0 && {
      server_tool_use: { web_search_requests: state.webSearchRequests, web_fetch_requests: 0 },
    }),
  };
  const idle = { stop_reason: stopReason, stop_details: stopDetails, ...more };
  const told = { usage, ...(state.budget !== undefined && { budget: state.budget }) };
  return [brainEvent(newId(), "session.usage", told), brainEvent(newId(), "session.status_idle", idle)];
}

export function wireUsage(usage: ModelUsage) {
  return {
    input_tokens: usage.inputTokens,
    output_tokens: usage.outputTokens,
    cache_creation_input_tokens: usage.cacheCreationInputTokens,
    cache_read_input_tokens: usage.cacheReadInputTokens,
  };
}
