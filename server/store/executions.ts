/** Calls that hands run, each at most once (X1). All times are the database's. */
import type { HandEvent, LeaseClaim } from "./hands.ts";
import type { LogAdvance } from "./session-append.ts";

export interface ExecutionRecord {
  readonly executionKey: string;
  readonly workspaceId: string;
  readonly sessionId: string | undefined;
  readonly executionId: string;
  readonly handId: string | undefined;
  readonly handAgentId: string | undefined;
  readonly journalId: string | undefined;
  readonly ownerNumber: number;
  readonly name: string;
  readonly input: string;
  readonly timeoutMs: number;
  readonly boundAt: Date;
  readonly answersToolUse: boolean;
  readonly slot: string;
  /** What its result has to say first. */
  readonly notice: string;
  readonly stopReason: string | undefined;
  /** JSON text of an ExecutionResult, once it ended. */
  readonly result: string | undefined;
}

/** The tool use that a session's execution answers, as the log has it. */
export interface ToolUseRecord {
  readonly sessionId: string;
  readonly workspaceId: string;
  readonly type: string;
  readonly payload: string;
  /** Payload of the result event, if there is one. */
  readonly answer: string | undefined;
  /** The session's newest lease. */
  readonly leaseId: string | undefined;
  readonly leaseEpoch: number;
}

/** What a call is, before it is bound. */
export interface CallRecord {
  readonly executionKey: string;
  readonly workspaceId: string;
  readonly sessionId: string | undefined;
  readonly executionId: string;
  readonly slot: string;
  readonly name: string;
  readonly input: string;
  readonly timeoutMs: number;
  readonly answersToolUse: boolean;
}

/** A call that answers a tool use of the session, and the hand that is believed to be in its slot. */
export interface KnownCall {
  readonly call: CallRecord & { readonly sessionId: string };
  readonly handId: string;
  readonly handAgentId: string;
  readonly journalId: string;
  readonly lease: LeaseClaim;
}

export type Bound =
  | { readonly kind: "bound"; readonly execution: ExecutionRecord; readonly advance: LogAdvance | undefined }
  /** An earlier request had bound it, or it has ended. */
  | { readonly kind: "exists"; readonly execution: ExecutionRecord }
  /** The tool use has a result that no execution gave. */
  | { readonly kind: "answered"; readonly payload: string }
  /** The hand cannot take calls (any more). */
  | { readonly kind: "hand_gone" }
  /** The agent is not connected with this journal any more. */
  | { readonly kind: "agent_gone" };

export type Concluded =
  | { readonly kind: "stored"; readonly result: string; readonly advance: LogAdvance | undefined }
  /** It had ended before, or its tool use was answered by other means: that result stands. */
  | { readonly kind: "existing"; readonly result: string | undefined; readonly payload: string | undefined }
  /** It is bound, and the caller meant one that is not. */
  | { readonly kind: "bound" };

export interface UnheardCall {
  readonly executionKey: string;
  readonly sessionId: string;
  readonly executionId: string;
  readonly handAgentId: string;
  /** Of the event that tells of this absence of the agent. */
  readonly eventId: string;
}

export interface ExecutionStore {
  find(executionKey: string): Promise<ExecutionRecord | undefined>;
  /** The session's event of that id, with its answer. */
  toolUse(sessionId: string, eventId: string): Promise<ToolUseRecord | undefined>;
  /**
   * X1a in one statement, for a brain's call on the hand that its slot is known to have: the same checks as `toolUse`
   * and `bind` make. Undefined when anything speaks against it, or is not as it was known; then nothing has changed, and
   * the longer way finds out what to say.
   */
  bindKnown(request: KnownCall): Promise<ExecutionRecord | undefined>;
  /**
   * X1a, one transaction: the session's row is locked, its epoch compared, there is no result; then the execution is
   * bound to the hand and the journal of its agent. NOT_FOUND, LEASE_FENCED, SESSION_ARCHIVED.
   */
  bind(request: {
    call: CallRecord;
    handId: string;
    handAgentId: string;
    journalId: string;
    lease: LeaseClaim | undefined;
    /** `hand.operated`, for calls that answer no tool use on a session's hand. */
    event: HandEvent | undefined;
  }): Promise<Bound>;
  /**
   * X3, one transaction: the result is stored, and for a tool use its event appended. The first result stands.
   * Undefined when there is no such execution (its session was deleted).
   */
  finish(request: {
    execution: Pick<ExecutionRecord, "executionKey" | "executionId" | "sessionId" | "answersToolUse">;
    result: string;
    event: HandEvent;
  }): Promise<Concluded | undefined>;
  /** Ends a call that was never bound, with a result. NOT_FOUND, LEASE_FENCED. */
  refuse(request: {
    call: CallRecord;
    result: string;
    event: HandEvent;
    lease: LeaseClaim | undefined;
  }): Promise<Concluded>;
  /** Notes that it is to be stopped. Undefined when there is no such execution. LEASE_FENCED. */
  requestStop(request: {
    executionKey: string;
    reason: string;
    lease: LeaseClaim | undefined;
  }): Promise<ExecutionRecord | undefined>;
  /** Executions of the agent without a result, oldest first, at most `limit`. */
  openOfAgent(handAgentId: string, limit: number): Promise<ExecutionRecord[]>;
  openOfHand(handId: string): Promise<ExecutionRecord[]>;
  /** Results of those that have ended, by key. */
  results(executionKeys: readonly string[]): Promise<Map<string, string>>;
  /**
   * Executions without a result whose agent is connected to the replica, bound `boundForMs` ago or more; the newest
   * first. Whoever bound them may have died before it sent them.
   */
  openAt(request: {
    replicaId: string;
    boundForMs: number;
    limit: number;
  }): Promise<{ executionKey: string; handAgentId: string; stopReason: string | undefined }[]>;
  /** Which of these keys are bound to the agent and have no result. */
  openKeys(handAgentId: string, executionKeys: readonly string[]): Promise<Set<string>>;
  /**
   * Tool uses that run where nobody has heard anything: their agent ended its connection `offlineMs` ago, or was not noted
   * as there for `silentMs`. Without those whose log has the event of that id already; the oldest first.
   */
  unheard(request: { offlineMs: number; silentMs: number; limit: number }): Promise<UnheardCall[]>;
  /** Appends the event with the call's `eventId`. Undefined when it is not needed any more. NOT_FOUND. */
  tellUnheard(call: UnheardCall, event: HandEvent): Promise<LogAdvance | undefined>;
  /**
   * Executions that nobody can be waiting for any more: their time and `graceMs` are over, and their agent has not
   * been heard from for `offlineMs`, or is connected to `replicaId` (whose memory knows whether they still talk).
   */
  overdue(request: {
    graceMs: number;
    offlineMs: number;
    replicaId: string;
    limit: number;
  }): Promise<(ExecutionRecord & { readonly agentOnline: boolean })[]>;
}
