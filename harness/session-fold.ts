/**
 * What a session's log means to its brain, folded event by event. Pure: the same events give the same state, whoever
 * wrote them, so any holder of the lease can go on from any prefix.
 */
import { timestampMs } from "@bufbuild/protobuf/wkt";
import { parseTraceParent } from "../kit/trace.ts";
import type { Event } from "../proto/gen/tendon/v1/event_pb.js";
import { callOf } from "./call-of-event.ts";
import {
  answeredId,
  countOf,
  isObject,
  type Json,
  parseObject,
  payloadOf,
  stringOf,
  stringsOf,
} from "./event-payload.ts";
import { NO_USAGE } from "./loops/loop.ts";
import { listedServers, serverOfError, TOOLS_LISTED, troubleOf } from "./mcp-client/mcp-tool-events.ts";
import {
  begunEvaluation,
  definedOutcome,
  EVALUATION_END,
  EVALUATION_ONGOING,
  EVALUATION_START,
  isTold,
  judgedOutcome,
  OUTCOME_DEFINED,
  restedOutcome,
  THREADS_RESTED,
  triedEvaluation,
} from "./outcome/outcome-state.ts";
import {
  NO_CALLS,
  NO_TROUBLE,
  type OpenCall,
  type SessionState,
  type WaitingInput,
} from "./session-state.ts";

/** Takes in the event at `state.head + 1`. Events of child threads only move the head. */
export function applyEvent(state: SessionState, event: Event): void {
  state.head = event.position;
  if (event.threadId === "") FOLDS[event.type]?.(state, event);
}

/** Whether events of this type say anything that is folded, besides where the log's head is. */
export function isFolded(type: string): boolean {
  return Object.hasOwn(FOLDS, type);
}

type Fold = (state: SessionState, event: Event) => void;

const wait: Fold = (state, event) => {
  state.waiting.push(inputOf(event));
};
const hear: Fold = (state, event) => {
  wait(state, event);
  // Whether the budget still is spent is for the server to say.
  state.atBudget = false;
  const isUsers = event.type === "user.message" || event.type === OUTCOME_DEFINED;
  if (isUsers || payloadOf(event).from_parent === true) state.isHeld = false;
};
const answer: Fold = (state, event) => {
  state.openCalls.delete(answeredId(event));
};
const clientAnswer: Fold = (state, event) => {
  answer(state, event);
  state.unconsumedAnswers.push(inputOf(event));
};
const openCall =
  (kind: OpenCall["kind"]): Fold =>
  (state, event) =>
    state.openCalls.set(event.id, callOf(event, kind));

const FOLDS: Readonly<Record<string, Fold>> = {
  "user.message": hear,
  "agent.thread_message_received": hear,
  "system.message": wait,
  [OUTCOME_DEFINED]: (state, event) => {
    // The server lets nobody define a second one.
    if (state.outcome !== undefined) return;
    hear(state, event);
    state.outcome = definedOutcome(event);
  },
  "user.interrupt": (state, event) => {
    const interrupt = inputOf(event);
    state.interrupts.push(interrupt);
    // Also where nothing is going on that an idle event would end.
    if (!interrupt.keepsQueued) return;
    state.isHeld = true;
    state.stoppedAt = event.position;
  },
  "user.tool_confirmation": confirm,
  "user.custom_tool_result": clientAnswer,
  "user.tool_result": clientAnswer,
  "agent.tool_use": openCall("hand"),
  "agent.custom_tool_use": openCall("custom"),
  "agent.mcp_tool_use": openCall("mcp"),
  "agent.tool_result": (state, event) => {
    answer(state, event);
    countSearches(state, event);
  },
  "agent.mcp_tool_result": (state, event) => {
    noteMcpTrouble(state, event);
    answer(state, event);
  },
  "session.error": (state, event) => {
    const server = serverOfError(event);
    if (server === "") return;
    state.mcpTroubles.delete(server);
    state.toldServers.add(server);
  },
  "brain.inputs_consumed": consume,
  // What a model that judged a call has used.
  "brain.call_judged": (state, event) => {
    const payload = payloadOf(event);
    if (!isObject(payload.model_usage)) return;
    state.modelRequests += 1;
    addUsage(state, payload);
  },
  "brain.context_changed": (state, event) => {
    if (payloadOf(event).change === "compacted") state.compactions += 1;
  },
  [TOOLS_LISTED]: (state, event) => {
    for (const [name, known] of listedServers(event)) state.mcpServers.set(name, known);
  },
  "span.model_request_start": (state, event) => {
    state.openSpanId = event.id;
    state.modelRequests += 1;
  },
  "span.model_request_end": endSpan,
  [EVALUATION_START]: (state, event) => {
    state.outcome = state.outcome && begunEvaluation(state.outcome, event);
  },
  [EVALUATION_ONGOING]: (state, event) => {
    const { attempt } = parseObject(event.internal);
    if (isObject(attempt) && attempt.kind === "failed") noteTrouble(state, attempt);
    state.outcome = state.outcome && triedEvaluation(state.outcome, event);
  },
  [EVALUATION_END]: endEvaluation,
  [THREADS_RESTED]: awaitNoThreads,
  "session.thread_created": (state) => {
    state.hasThreads = true;
  },
  "session.status_running": (state) => {
    awaitNoThreads(state);
    state.status = "running";
    state.announcedCalls = undefined;
    state.announcedWaits = NO_CALLS;
    state.announcedOffers = NO_CALLS;
    state.atBudget = false;
  },
  "session.status_rescheduled": (state) => {
    state.status = "rescheduling";
  },
  // A fork begins at rest; what its origin had used is the origin's.
  "session.forked": (state) => {
    awaitNoThreads(state);
    state.status = "idle";
    state.budget = undefined;
    state.usage = NO_USAGE;
    state.modelRequests = 0;
    state.listCostNanoUsd = 0;
    state.unpricedRequests = 0;
    state.webSearchRequests = 0;
  },
  "session.status_terminated": (state) => {
    state.status = "terminated";
  },
  "session.status_idle": rest,
  "hand.provisioned": seeHand,
  "hand.handed_over": seeHand,
  "hand.released": (state, event) => {
    const { slot, unused } = payloadOf(event);
    if (unused === true) state.handSlots.delete(stringOf(slot));
  },
  "session.updated": (state, event) => {
    const { budget, agent } = payloadOf(event);
    if (budget !== undefined) state.atBudget = false;
    if (isObject(budget)) state.budget = budget;
    if (agent === undefined) return;
    state.agentChangedAt = event.position;
    // By the same name there may be another server now.
    state.mcpServers.clear();
    state.mcpTroubles.clear();
  },
};

function awaitNoThreads(state: SessionState): void {
  state.outcome = state.outcome && { ...state.outcome, awaitsThreads: false };
}

function seeHand(state: SessionState, event: Event): void {
  state.handSlots.add(stringOf(payloadOf(event).slot));
}

function inputOf(event: Event): WaitingInput {
  const { id, position, type, traceParent } = event;
  const keepsQueued = type === "user.interrupt" && payloadOf(event).keeps_queued === true;
  return { eventId: id, position, type, traceParent, keepsQueued };
}

function confirm(state: SessionState, event: Event): void {
  const { tool_use_id, result, deny_message } = payloadOf(event);
  state.unconsumedAnswers.push(inputOf(event));
  const call = state.openCalls.get(stringOf(tool_use_id));
  // The first word counts.
  if (call === undefined || call.confirmation !== undefined) return;
  const confirmation = { allowed: result === "allow", message: stringOf(deny_message) };
  state.openCalls.set(call.eventId, { ...call, confirmation });
}

/** Told once in a turn: the same server fails all of its calls. */
function noteMcpTrouble(state: SessionState, event: Event): void {
  const server = state.openCalls.get(answeredId(event))?.server ?? "";
  const trouble = troubleOf(event);
  if (server === "" || trouble === undefined || state.toldServers.has(server)) return;
  state.mcpTroubles.set(server, trouble);
}

function countSearches(state: SessionState, event: Event): void {
  const { server_tool_use: used, list_cost: cost } = payloadOf(event);
  const count = isObject(used) ? countOf(used.web_search_requests) : 0;
  if (count === 0) return;
  state.webSearchRequests += count;
  state.listCostNanoUsd += isObject(cost) ? countOf(cost.nano_usd) : 0;
}

function consume(state: SessionState, event: Event): void {
  const payload = payloadOf(event);
  const consumed = new Set(stringsOf(payload.event_ids));
  const stays = ({ eventId }: WaitingInput) => !consumed.has(eventId);
  if (state.waiting.some((input) => !stays(input))) state.owed = true;
  if (state.outcome !== undefined) {
    const isBegun = state.outcome.isBegun || consumed.has(state.outcome.eventId);
    const isPaused = state.outcome.isPaused && state.waiting.every(stays);
    state.outcome = { ...state.outcome, isBegun, isPaused };
  }
  // Who interrupts wants to hear no more of what was judged.
  const isInterrupted = state.interrupts.some((input) => !stays(input));
  state.waiting = state.waiting.filter(
    (input) => stays(input) && !(isInterrupted && input.type === EVALUATION_END),
  );
  state.unconsumedAnswers = state.unconsumedAnswers.filter(stays);
  state.interrupts = state.interrupts.filter(stays);
  const turn = countOf(payload.turn);
  state.trace = parseTraceParent(stringOf(parseObject(event.internal).trace_parent)) ?? state.trace;
  if (turn <= state.turn) return;
  state.turn = turn;
  state.toldServers.clear();
  state.rounds = 0;
  state.cutOffs = 0;
  state.compactions = 0;
  state.refusal = undefined;
  state.trouble = NO_TROUBLE;
}

function endSpan(state: SessionState, event: Event): void {
  const payload = payloadOf(event);
  const internal = parseObject(event.internal);
  state.openSpanId = undefined;
  addUsage(state, payload);
  if (payload.is_error === true) {
    const failure = isObject(internal.failure) ? internal.failure : {};
    // A request that died with its holder says nothing about the model.
    if (internal.failure !== undefined) noteTrouble(state, failure);
    return;
  }
  const stop = stringOf(internal.stop);
  const calls = countOf(internal.calls);
  state.trouble = NO_TROUBLE;
  // What was asked for besides the talk changes nothing of whose turn it is.
  if (stop === "context") return;
  state.compactions = 0;
  state.owed = calls > 0 || stop === "paused";
  if (state.owed) state.rounds += 1;
  state.cutOffs = stop === "cut_in_call" ? state.cutOffs + 1 : 0;
  state.refusal = stop === "refusal" && isObject(internal.refusal) ? internal.refusal : undefined;
}

function noteTrouble(state: SessionState, failure: Json): void {
  state.trouble = {
    attempts: state.trouble.attempts + 1,
    elapsedMs: countOf(failure.elapsed_ms),
    waitMs: countOf(failure.wait_ms),
  };
}

/** Counts as one request, if a grader has answered. */
function endEvaluation(state: SessionState, event: Event): void {
  const payload = payloadOf(event);
  const { outcome } = state;
  addUsage(state, { model_usage: payload.usage, list_cost: payload.list_cost });
  if (payload.list_cost !== undefined) state.modelRequests += 1;
  if (outcome === undefined || payload.outcome_id !== outcome.outcomeId) return;
  state.trouble = NO_TROUBLE;
  // Nobody hears of it any more, unless this says so.
  state.waiting = state.waiting.filter(
    ({ eventId, type }) => eventId !== outcome.eventId && type !== EVALUATION_END,
  );
  if (isTold(event)) state.waiting.push(inputOf(event));
  state.outcome = judgedOutcome(outcome, event);
}

function addUsage(state: SessionState, { model_usage: reported, list_cost: cost }: Json): void {
  if (cost === null) state.unpricedRequests += 1;
  else if (isObject(cost)) state.listCostNanoUsd += countOf(cost.nano_usd);
  const usage = isObject(reported) ? reported : {};
  state.usage = {
    inputTokens: state.usage.inputTokens + countOf(usage.input_tokens),
    outputTokens: state.usage.outputTokens + countOf(usage.output_tokens),
    cacheReadInputTokens: state.usage.cacheReadInputTokens + countOf(usage.cache_read_input_tokens),
    cacheCreationInputTokens:
      state.usage.cacheCreationInputTokens + countOf(usage.cache_creation_input_tokens),
  };
}

function rest(state: SessionState, event: Event): void {
  const payload = payloadOf(event);
  const { stop_reason: reason, waiting_calls: waits, worker_calls: offers } = payload;
  const stopReason: Json = isObject(reason) ? reason : {};
  const { type, event_ids: eventIds } = stopReason;
  state.status = "idle";
  state.outcome = state.outcome && restedOutcome(state.outcome, stopReason);
  state.announcedCalls = undefined;
  state.announcedWaits = new Set(stringsOf(waits));
  state.announcedOffers = new Set(stringsOf(offers));
  state.atBudget = type === "budget_reached";
  // The turn goes on where it was.
  if (state.atBudget) return;
  if (type === "requires_action" || type === "waiting_for_threads") {
    state.announcedCalls = new Set(type === "requires_action" ? stringsOf(eventIds) : []);
    state.announcedAtMs = event.createdAt && timestampMs(event.createdAt);
    return;
  }
  if (type === "retries_exhausted") state.exhaustedAt = event.position;
  if (payload.keeps_queued === true) {
    // What was said after the stop, before it was heard, is a word from a client as well.
    if (state.stoppedAt === 0n) state.isHeld = true;
    state.exhaustedAt = state.stoppedAt || event.position;
    state.stoppedAt = 0n;
  }
  state.owed = false;
  state.refusal = undefined;
  state.trouble = NO_TROUBLE;
}
