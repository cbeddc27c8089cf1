/**
 * What a session's log means to its brain, folded event by event. Pure: the same events give the same state, whoever
 * wrote them, so any holder of the lease can go on from any prefix.
 */
import { timestampMs } from "@bufbuild/protobuf/wkt";
import { parseTraceParent, type TraceContext } from "../kit/trace.ts";
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
import { type ModelUsage, NO_USAGE } from "./loops/loop.ts";
import { type KnownServer, listedServers, TOOLS_LISTED } from "./mcp-client/mcp-tool-events.ts";
import {
  begunEvaluation,
  definedOutcome,
  EVALUATION_END,
  EVALUATION_ONGOING,
  EVALUATION_START,
  isTold,
  judgedOutcome,
  OUTCOME_DEFINED,
  type Outcome,
  triedEvaluation,
} from "./outcome/outcome-state.ts";

/** A tool use that has no result yet. */
export interface OpenCall {
  readonly eventId: string;
  /** `brain`: the harness runs it itself. `web`: the proxy does. */
  readonly kind: "hand" | "brain" | "custom" | "mcp" | "web";
  readonly slot: string;
  /** Of a tool of an MCP server: the server's name; else empty. */
  readonly server: string;
  readonly name: string;
  /** JSON text of one object, as it stands in the event. */
  readonly input: string;
  /** `hand_execute` reached it: its hand is one that came later. */
  readonly isReached: boolean;
  readonly permission: "allow" | "ask" | "deny";
  /** How long a client has to answer; 0: for ever. */
  readonly answerTimeoutMs: number;
  /** A client's word on a call that needs one. */
  readonly confirmation: { readonly allowed: boolean; readonly message: string } | undefined;
}

export interface WaitingInput {
  readonly eventId: string;
  readonly position: bigint;
  readonly type: string;
  /** W3C `traceparent` that it came with; may be empty. */
  readonly traceParent: string;
  /** Of an interrupt: what waits then goes on waiting for a word from above. */
  readonly keepsQueued: boolean;
}

/** Trouble with the model since its last whole answer. */
export interface Trouble {
  readonly attempts: number;
  /** How long it has lasted when the last attempt failed. */
  readonly elapsedMs: number;
  /** What was waited, or was to be waited, after that. */
  readonly waitMs: number;
}

const NO_CALLS: ReadonlySet<string> = new Set();
const NO_TROUBLE: Trouble = { attempts: 0, elapsedMs: 0, waitMs: 0 };

export interface SessionState {
  head: bigint;
  status: "idle" | "running" | "rescheduling" | "terminated";
  /** Number of the newest turn, from 1; 0 before the first. */
  turn: number;
  /** Where the newest turn that says so stands in a trace. */
  trace: TraceContext | undefined;
  /** Event id of a model request that has no end. */
  openSpanId: string | undefined;
  /** In log order. */
  readonly openCalls: Map<string, OpenCall>;
  /** Messages that no model request has contained, in log order. */
  waiting: WaitingInput[];
  /** Confirmations and clients' results that no model request has contained yet. */
  unconsumedAnswers: WaitingInput[];
  interrupts: WaitingInput[];
  /** Whether the model has to be asked before the turn can end. */
  owed: boolean;
  /** Call ids that the newest idle event names as awaited; undefined when it names none. */
  announcedCalls: ReadonlySet<string> | undefined;
  /** When that was said, by the database's clock; undefined while only this brain knows of it. */
  announcedAtMs: number | undefined;
  /** Position of the newest idle event with `retries_exhausted`: what waited then goes on waiting for a new message. */
  exhaustedAt: bigint;
  /** Somebody wanted it to stop: what threads say starts no turn until a user, or who made this thread, has said something. */
  isHeld: boolean;
  /** Calls that the server answers when threads rest, as the newest idle event names them. */
  announcedWaits: ReadonlySet<string>;
  /** Calls that wait for workers of a self-hosted environment, as the newest idle event names them. */
  announcedOffers: ReadonlySet<string>;
  /** The newest idle event says that the budget is spent, and nobody has changed it or said anything since. */
  atBudget: boolean;
  refusal: Json | undefined;
  /** What the session works towards. */
  outcome: Outcome | undefined;
  /** Answers with calls in the running turn. */
  rounds: number;
  /** Answers in a row that were cut off inside a call. */
  cutOffs: number;
  /** Summaries of the context in a row, without an answer between them. */
  compactions: number;
  trouble: Trouble;
  usage: ModelUsage;
  modelRequests: number;
  /** By list price, as the ends of the requests say. */
  listCostNanoUsd: number;
  /** Requests whose model has no price. */
  unpricedRequests: number;
  /** Searches of the web that calls have made; their price is in the list cost. */
  webSearchRequests: number;
  /** Slots that have a hand, or had one that somebody may have used. */
  readonly handSlots: Set<string>;
  /** What is known of the MCP servers that were asked for their tools, by name. */
  readonly mcpServers: Map<string, KnownServer>;
  /** Where the session's agent was changed the last time; 0 for never. */
  agentChangedAt: bigint;
}

export function newSessionState(): SessionState {
  return {
    head: 0n,
    status: "idle",
    turn: 0,
    trace: undefined,
    openSpanId: undefined,
    openCalls: new Map(),
    waiting: [],
    unconsumedAnswers: [],
    interrupts: [],
    owed: false,
    announcedCalls: undefined,
    announcedAtMs: undefined,
    exhaustedAt: 0n,
    isHeld: false,
    announcedWaits: NO_CALLS,
    announcedOffers: NO_CALLS,
    atBudget: false,
    refusal: undefined,
    outcome: undefined,
    rounds: 0,
    cutOffs: 0,
    compactions: 0,
    trouble: NO_TROUBLE,
    usage: NO_USAGE,
    modelRequests: 0,
    listCostNanoUsd: 0,
    unpricedRequests: 0,
    webSearchRequests: 0,
    handSlots: new Set(),
    mcpServers: new Map(),
    agentChangedAt: 0n,
  };
}

/** Takes in the event at `state.head + 1`. Events of child threads only move the head. */
export function applyEvent(state: SessionState, event: Event): void {
  state.head = event.position;
  if (event.threadId === "") FOLDS[event.type]?.(state, event);
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
    if (interrupt.keepsQueued) state.isHeld = true;
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
  "agent.mcp_tool_result": answer,
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
  "session.status_running": (state) => {
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
    state.status = "idle";
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
    if (agent === undefined) return;
    state.agentChangedAt = event.position;
    // By the same name there may be another server now.
    state.mcpServers.clear();
  },
};

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
  const { type, event_ids: eventIds } = isObject(reason) ? reason : {};
  state.status = "idle";
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
  const isHeld = payload.keeps_queued === true;
  if (isHeld) state.isHeld = true;
  if (isHeld || type === "retries_exhausted") state.exhaustedAt = event.position;
  state.owed = false;
  state.refusal = undefined;
  state.trouble = NO_TROUBLE;
  state.outcome = state.outcome && { ...state.outcome, isPaused: true };
}
