/** Hands and their lives. All times are the database's. */
import type { TendonError } from "../../kit/errors.ts";
import type { ToolRecord } from "./hand-agents.ts";
import type { Page, PageRequest } from "./page.ts";
import type { RequestIdClaim } from "./request-ids.ts";
import type { LogAdvance } from "./session-append.ts";

export type HandStateName = "provisioning" | "ready" | "parked" | "lost" | "released";

export interface HandRecord {
  readonly handId: string;
  readonly workspaceId: string;
  readonly sessionId: string | undefined;
  readonly slot: string;
  readonly environmentId: string;
  /** The environment as it was when the hand was asked for: JSON text of an EnvironmentSpec. */
  readonly environment: string;
  /** JSON text of a list of HandResource. */
  readonly resources: string;
  readonly handAgentId: string | undefined;
  readonly driver: string;
  readonly state: HandStateName;
  readonly stateDetail: string;
  readonly ownerNumber: number;
  readonly toolsDigest: string | undefined;
  readonly createdAt: Date;
  readonly lastUsedAt: Date | undefined;
  readonly destroyPending: boolean;
  /** JSON text of a list of LeftProcess. */
  readonly leftProcesses: string;
}

/** Who may write to a session: its brain, by the newest lease (E1). */
export interface LeaseClaim {
  readonly leaseId: string;
  readonly epoch: bigint;
}

export interface HandEvent {
  readonly type: string;
  readonly payload: string;
}

export interface OpenHandRequest {
  readonly workspaceId: string;
  readonly sessionId: string | undefined;
  readonly slot: string;
  /** Empty: the session's for that slot, or the workspace's default. */
  readonly environmentId: string;
  readonly resources: string;
  readonly requestId: string | undefined;
  readonly lease: LeaseClaim | undefined;
  /** What the first call on a new hand is told when the slot's last hand was lost. */
  readonly noticeAfterLoss: string;
  /** The same when the slot's last hand had run calls and was given back. */
  readonly noticeAfterRelease: string;
  /** The same when the slot's last hand was handed over to another session. */
  readonly noticeAfterHandOver: string;
  /** The tool use that needs the hand: a loss that its brain did not know of when it asked is told first (H2). */
  readonly toolUseId: string | undefined;
  /** A slot that is neither the default one nor declared by its session gets no new hand. */
  readonly declaredSlotsOnly: boolean;
  /** Only a guess: a new hand that nothing uses is given back (H4). */
  readonly speculative: boolean;
  /** Why there is none to be made; the hand of the request id is found all the same. */
  readonly refusal?: TendonError | undefined;
}

export type OpenedHand =
  | { readonly kind: "hand"; readonly hand: HandRecord; readonly created: boolean }
  /** The slot's hand was lost and the brain did not know yet when it made the call. */
  | { readonly kind: "loss_not_told"; readonly hand: HandRecord }
  /** Only declared slots were to get a new hand, and this is none. */
  | { readonly kind: "not_declared" }
  /** The workspace has as many hands as its limits allow; parked ones count. */
  | { readonly kind: "too_many"; readonly most: number };

export interface HandStore {
  /**
   * The live hand of a session's slot, or the hand of the request id, or a new one in state provisioning.
   * NOT_FOUND, SESSION_ARCHIVED, LEASE_FENCED, ENVIRONMENT_ARCHIVED, NOT_CONFIGURED (self-hosted, or no environment),
   * REQUEST_ID_REUSED.
   */
  open(request: OpenHandRequest): Promise<OpenedHand>;
  find(handId: string): Promise<HandRecord | undefined>;
  /** The hand of the slot that takes calls now. */
  usable(sessionId: string, slot: string): Promise<HandRecord | undefined>;
  /** Newest first; without a workspace all of the installation; an empty session means any. */
  list(query: {
    workspaceId: string | undefined;
    sessionId: string;
    includeEnded: boolean;
    page: PageRequest;
  }): Promise<Page<HandRecord>>;
  workspaceOfSession(sessionId: string): Promise<string | undefined>;
  /** Gives the hand a place on the agent, unless the agent is full or the hand has one; then undefined. */
  place(request: {
    handId: string;
    handAgentId: string;
    driver: string;
    toolsDigest: string;
    stateDetail: string;
  }): Promise<HandRecord | undefined>;
  setDetail(handId: string, stateDetail: string): Promise<void>;
  /**
   * provisioning → ready, and the events, at least one, once. `notice` is told with the result of the hand's first call,
   * behind what is to be told already; empty for nothing. Undefined when it is no longer provisioning.
   */
  ready(request: {
    handId: string;
    stateDetail: string;
    events: readonly HandEvent[];
    notice: string;
  }): Promise<HandChange | undefined>;
  /** What an agent said about a living hand. The event is appended when the state changed. */
  report(request: {
    handId: string;
    handAgentId: string;
    state: "ready" | "parked";
    stateDetail: string;
    leftProcesses: string;
    event: HandEvent | undefined;
  }): Promise<HandChange | undefined>;
  /** A living hand ended. `lost` and `released` need an event when the hand had been told of. */
  end(request: {
    handId: string;
    state: "lost" | "released";
    stateDetail: string;
    destroyPending: boolean;
    event: HandEvent | undefined;
    lease?: LeaseClaim | undefined;
    /** Only while it is a ready one that was a guess and that nothing has used. */
    onlyUnused?: boolean;
  }): Promise<HandChange | undefined>;
  /**
   * Somebody begins to work on the hand as its owner or, with an event, as an operator: it counts as used, and its
   * session's log has the event. Undefined when it is not ready, or has another owner than `hand` says. LEASE_FENCED.
   */
  operate(request: {
    hand: HandRecord;
    lease: LeaseClaim | undefined;
    event: HandEvent | undefined;
  }): Promise<HandChange | undefined>;
  /**
   * H6, one transaction: the session and slot that get the hand are its owner under the next number, and both logs have
   * their event. The same request again gets the same answer, without advances. NOT_FOUND, LEASE_FENCED,
   * SESSION_ARCHIVED, ALREADY_EXISTS, HAND_NOT_READY, HAND_LOST, HAND_RELEASED, REQUEST_ID_REUSED, UNAVAILABLE when
   * `hand` is not what it was.
   */
  handOver(request: HandOverOrder): Promise<{ hand: HandRecord; advances: readonly LogAdvance[] }>;
  /** The hand's agent has heard of this owner number: a smaller one grows to it. */
  raiseOwner(handId: string, ownerNumber: number): Promise<void>;
  /** Nothing is left of an ended hand. */
  destroyed(handId: string): Promise<void>;
  /** Living hands of the agent, and ended ones that it has not destroyed yet. */
  ofAgent(handAgentId: string): Promise<HandRecord[]>;
  /** Ended hands that these agents have not destroyed yet, at most `limit`, none favoured. */
  undestroyed(handAgentIds: readonly string[], limit: number): Promise<HandRecord[]>;
  /** Living hands of the session. */
  ofSession(sessionId: string): Promise<HandRecord[]>;
  /**
   * Ready hands that were only a guess, that nothing has used, and whose sessions rest: at the end of a turn, or for ten minutes
   * for a client. At most `limit`.
   */
  guessedInVain(limit: number): Promise<HandRecord[]>;
  /** Which of these ids are hands of ours. */
  known(handIds: readonly string[]): Promise<Set<string>>;
  /** Hands that wait for something that may never come, at most `limit`. */
  stale(request: { provisioningForMs: number; offlineForMs: number; limit: number }): Promise<StaleHand[]>;
  /**
   * Ready hands that nothing runs in and whose agents can park them, at most `limit`; never those of `except`. The
   * longest unused first, but hands in which calls left processes running last.
   */
  unused(request: UnusedHandsQuery): Promise<HandRecord[]>;
  /**
   * ready → parked, and the event, once its agent has parked it. Undefined when it was used since `hand` was read: then
   * it stays ready, and its next call resumes it if it has to.
   */
  park(request: { hand: HandRecord; stateDetail: string; event: HandEvent }): Promise<HandChange | undefined>;
  /**
   * parked → ready: gives the hand a place of its agent again. `full` when there is none, undefined when the hand is not
   * parked (any more).
   */
  resume(handId: string, stateDetail: string): Promise<HandRecord | "full" | undefined>;
  /**
   * Ready hands of resting sessions that may have left output since it was last taken in, where environment and agent know of
   * such: of one session, or of these agents.
   */
  outputsDue(request: {
    readonly sessionId?: string;
    readonly handAgentIds?: readonly string[];
    readonly limit: number;
  }): Promise<HandRecord[]>;
  /** What the hand had left when it was last used at `usedAt` is taken in. */
  outputsTaken(handId: string, usedAt: Date): Promise<void>;
  /** Hands that are older than their environment lets them become, in which nothing runs and whose sessions rest. */
  aged(limit: number): Promise<HandRecord[]>;
  /** Hands that have been parked for as long as their environment says, or else for `keepMs`; the longest parked first, at most `limit`. */
  longParked(keepMs: number, limit: number): Promise<HandRecord[]>;
  /** Parked hands beyond the newest `mostOfAgent` of one agent; the longest parked first, at most `limit`. */
  excessParked(mostOfAgent: number, limit: number): Promise<HandRecord[]>;

  /** The tools that a session's slot was promised, pinned at the first call with `choose`'s answer. */
  pinTools(
    sessionId: string,
    slot: string,
    choose: () => Promise<readonly ToolRecord[]>,
  ): Promise<{ digest: string; tools: readonly ToolRecord[] }>;
}

export interface UnusedHandsQuery {
  readonly handAgentIds: readonly string[];
  /** Unused for so long, in milliseconds. */
  readonly unusedForMs: number;
  /** The hand's own idle timeout counts; `unusedForMs` only where its environment says none. */
  readonly byIdleTimeout: boolean;
  /** Also hands of sessions that run now. */
  readonly alsoRunning: boolean;
  readonly except: readonly string[];
  readonly limit: number;
}

/** What both logs say of a hand-over. */
export interface HandOverFacts {
  readonly handId: string;
  readonly ownerNumber: number;
  readonly fromSessionId: string | undefined;
  readonly fromSlot: string;
  readonly toSessionId: string;
  readonly toSlot: string;
}

export interface HandOverOrder {
  readonly hand: HandRecord;
  readonly toSessionId: string;
  readonly toSlot: string;
  /** Of the session that gives. */
  readonly lease: LeaseClaim | undefined;
  readonly claim: RequestIdClaim;
  /** Called when the request was not made before; what it throws refuses it. */
  check(): void;
  /** What the first call of the new owner is told. */
  readonly notice: string;
  /** For the log of the session that gives, if there is one. */
  given(facts: HandOverFacts): HandEvent;
  /** For the log of the session that gets it. */
  received(facts: HandOverFacts): HandEvent;
}

export interface HandChange {
  readonly hand: HandRecord;
  /** Set when the session's log grew. */
  readonly advance: LogAdvance | undefined;
}

export interface StaleHand {
  readonly hand: HandRecord;
  readonly why: "provisioning" | "agent_revoked" | "agent_gone" | "session_ended";
}
