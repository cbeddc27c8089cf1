/** What a brain knows of its session, as the log says it; see session-fold.ts. */
import type { TraceContext } from "../kit/trace.ts";
import type { Json } from "./event-payload.ts";
import { type ModelUsage, NO_USAGE } from "./loops/loop.ts";
import type { KnownServer, McpTrouble } from "./mcp-client/mcp-tool-events.ts";
import type { Outcome } from "./outcome/outcome-state.ts";

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

export const NO_CALLS: ReadonlySet<string> = new Set();
export const NO_TROUBLE: Trouble = { attempts: 0, elapsedMs: 0, waitMs: 0 };

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
  /**
   * Where what waits was held, by a turn that failed for good or by a stop: what came before goes on waiting for a new message.
   */
  exhaustedAt: bigint;
  /** Position of the newest interrupt that keeps what waits, until the idle event that it leads to; 0 for none. */
  stoppedAt: bigint;
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
  /** It has made threads, which may be gone by now. */
  hasThreads: boolean;
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
  /** What calls have met at MCP servers and nobody was told of yet, by the server's name. */
  readonly mcpTroubles: Map<string, McpTrouble>;
  /** Servers whose troubles were told in the running turn. */
  readonly toldServers: Set<string>;
  /** Where the session's agent was changed the last time; 0 for never. */
  agentChangedAt: bigint;
  /** Of the session, in the words of the contract; undefined where it is not known. */
  budget: Json | undefined;
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
    stoppedAt: 0n,
    isHeld: false,
    announcedWaits: NO_CALLS,
    announcedOffers: NO_CALLS,
    atBudget: false,
    refusal: undefined,
    outcome: undefined,
    hasThreads: false,
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
    mcpTroubles: new Map(),
    toldServers: new Set(),
    agentChangedAt: 0n,
    budget: undefined,
  };
}
