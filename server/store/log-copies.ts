/** Logs that begin as a copy: forks of a session, and imports. */
import type { ChainOrigin } from "../../kit/chain/event-hash.ts";
import type { LogFold } from "./log-fold.ts";
import type { RequestIdClaim } from "./request-ids.ts";
import type { ChangedSession, NewSession } from "./sessions.ts";

export interface ForkRequest {
  readonly sessionId: string;
  /** The origin's, which the caller has checked. */
  readonly workspaceId: string;
  readonly originSessionId: string;
  /** Last event that is shared; 0 for none. At most the origin's head. */
  readonly position: number;
  /** Undefined: the origin's. */
  readonly title: string | undefined;
  readonly vaultIds: readonly string[];
  readonly budget: string;
  readonly request: RequestIdClaim;
}

/** An event as it was in another log. */
export interface CopiedEvent {
  readonly id: string;
  readonly position: number;
  readonly type: string;
  readonly threadId: string;
  readonly createdAt: Date;
  readonly payload: string;
  readonly internal: string | undefined;
  /** See EventFacts. */
  readonly answers: string | undefined;
}

export interface ImportedSession extends Omit<NewSession, "events"> {
  /** The log had ended. */
  readonly archived: boolean;
  /** Position of the last event. */
  readonly head: number;
  readonly fold: LogFold;
}

/**
 * Copies are written in batches and seen by nobody until a last transaction makes them a session's log. What a copy leaves
 * when it fails is erased, at the latest by `RetentionStore.eraseUnfinished`.
 */
export interface LogCopyStore {
  /**
   * A repeat of the request returns the session of the first. NOT_FOUND when the origin is deleted meanwhile, or for a
   * repeat when the fork was deleted. REQUEST_ID_REUSED.
   */
  fork(request: ForkRequest): Promise<ChangedSession>;
  /** Whether an import with this request id was made; then `finish` alone is enough. */
  wasImported(workspaceId: string, requestId: string): Promise<boolean>;
  /** Begins the log of an import. Returns whether it is tamper-evident, as the workspace says now; then its chain begins with `origin`. */
  begin(log: { sessionId: string; workspaceId: string; origin: ChainOrigin }): Promise<boolean>;
  /**
   * Adds events, which follow on those that are there. Returns the position of the first whose id, or whose answered call,
   * an earlier event has; then none of them were added. UNAVAILABLE when the copy was left alone for so long that it is
   * being erased.
   */
  add(sessionId: string, events: readonly CopiedEvent[]): Promise<number | undefined>;
  /** Makes it a session, at rest. As `fork` for repeats. */
  finish(session: ImportedSession): Promise<ChangedSession>;
  /** Erases what was added; nothing once it is a session. */
  discard(sessionId: string): Promise<void>;
}
