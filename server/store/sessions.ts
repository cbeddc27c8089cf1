/** Sessions: what they are, and what is folded from their logs. All times are the database's. */

import type { SessionChain } from "../../kit/chain/event-hash.ts";
import type { StatusName } from "./event-facts.ts";
import type { Appended, NewEvent } from "./events.ts";
import type { FileCopy } from "./files.ts";
import type { Cursor, Page } from "./page.ts";
import type { RequestIdClaim } from "./request-ids.ts";
import type { OwnVault } from "./session-vaults.ts";

export interface SessionRecord {
  readonly sessionId: string;
  readonly workspaceId: string;
  /** The agent as it was when the session was made, with the tools that it has now: JSON text of an Agent. */
  readonly agent: string;
  readonly environmentId: string;
  readonly slotEnvironmentIds: Readonly<Record<string, string>>;
  readonly title: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly vaultIds: readonly string[];
  /** JSON text of a Budget; `{}` for none. */
  readonly budget: string;
  readonly forkedFromSessionId: string;
  readonly forkedFromPosition: number;
  readonly createdAt: Date;
  readonly updatedAt: Date;
  readonly archivedAt: Date | undefined;
  readonly head: number;
  readonly status: StatusName;
  /** As `session.status_idle` named it; empty before the first. */
  readonly stopReason: string;
  /** Until the answer, when the session is running. */
  readonly activeMs: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly cacheReadInputTokens: number;
  readonly cacheCreationInputTokens: number;
  readonly modelRequests: number;
  readonly listCostNanoUsd: number;
  readonly unpricedRequests: number;
  readonly webSearchRequests: number;
  /** Something asks for a brain that none has dealt with. */
  readonly hasWork: boolean;
  /** JSON text of a list of SessionResource. */
  readonly resources: string;
  /** Of a thread; undefined for a session of its own. */
  readonly rootSessionId: string | undefined;
  /** Who made the thread. */
  readonly parentSessionId: string | undefined;
  /** Whose run made it; undefined otherwise. */
  readonly deploymentId: string | undefined;
  /** Undefined unless it is tamper-evident. */
  readonly chain: SessionChain | undefined;
}

/** What decides who may read and where a log ends; much cheaper than the whole record. */
export interface SessionStanding {
  readonly workspaceId: string;
  readonly environmentId: string;
  readonly slotEnvironmentIds: Readonly<Record<string, string>>;
  readonly head: number;
  readonly archived: boolean;
  readonly hasWork: boolean;
  readonly leaseId: string | undefined;
  readonly leaseEpoch: bigint;
  /** Of the newest signed checkpoint; 0 for none. */
  readonly checkpointPosition: number;
}

export interface NewSession {
  readonly sessionId: string;
  readonly workspaceId: string;
  readonly agentId: string;
  readonly agentVersion: number;
  readonly agent: string;
  readonly environmentId: string;
  readonly slotEnvironmentIds: Readonly<Record<string, string>>;
  readonly title: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly vaultIds: readonly string[];
  readonly budget: string;
  /** JSON text of a list of SessionResource; undefined for none. */
  readonly resources?: string;
  /** Of the stores among them. */
  readonly memoryStoreIds?: readonly string[];
  /** Copies of the files among them, made with the session. NOT_FOUND when an original is gone. */
  readonly files?: readonly FileCopy[];
  /** Whose run makes it. */
  readonly deploymentId?: string;
  /** With tokens of the repositories among them; undefined for none. */
  readonly ownVault?: OwnVault | undefined;
  /** Appended with the session, as a client. */
  readonly events: readonly NewEvent[];
  readonly request: RequestIdClaim;
}

export interface SessionList {
  /** Undefined: all of the installation. */
  readonly workspaceId: string | undefined;
  /** Empty: any. */
  readonly statuses: readonly StatusName[];
  /** One that waits for its threads counts as running. */
  readonly waitingIsRunning?: boolean;
  /** Empty: any. */
  readonly agentId: string;
  /** Of `agentId`; 0 or undefined: any. */
  readonly agentVersion?: number;
  /** That the sessions were given; empty or undefined: any. */
  readonly memoryStoreId?: string;
  /** Whose runs made them; empty or undefined: any. */
  readonly deploymentId?: string;
  readonly includeArchived: boolean;
  readonly ascending: boolean;
  readonly createdAtOrAfter: Date | undefined;
  readonly createdBefore: Date | undefined;
  readonly size: number;
  readonly after: Cursor | undefined;
  /** Instead of `after`: the page that ends before this entry. */
  readonly before?: Cursor | undefined;
}

export interface SessionPage extends Page<SessionRecord> {
  /** Its first entry, unless none comes before it. */
  readonly previous: Cursor | undefined;
}

/** A session after a change, and the events that the change appended, if it changed anything. */
export interface ChangedSession {
  readonly session: SessionRecord;
  readonly appended: Appended | undefined;
  /** What the change appended to logs of its threads. */
  readonly others?: readonly { readonly sessionId: string; readonly appended: Appended }[];
}

export interface SessionStore {
  /** A repeat of the request returns the session of the first. REQUEST_ID_REUSED; NOT_FOUND when that was deleted. */
  create(session: NewSession): Promise<ChangedSession>;
  /** Callers check the workspace, here and below. */
  find(sessionId: string): Promise<SessionRecord | undefined>;
  standing(sessionId: string): Promise<SessionStanding | undefined>;
  /** By time of creation. INVALID_PAGE_TOKEN. */
  list(query: SessionList): Promise<SessionPage>;
  /**
   * Sets what is given; an empty metadata value deletes its key. One `session.updated` with what changed, none when
   * nothing did. NOT_FOUND, SESSION_ARCHIVED, INVALID_FIELD for more than 16 pairs of metadata; for a change of the agent
   * also SESSION_RUNNING, and VERSION_MISMATCH when it is not what it was.
   */
  update(change: {
    sessionId: string;
    title: string | undefined;
    metadata: Readonly<Record<string, string>>;
    budget: string | undefined;
    /** JSON texts of an Agent. */
    agent?: { readonly before: string; readonly after: string } | undefined;
  }): Promise<ChangedSession>;
  /**
   * Ends the session for good: calls that are open get a result that says `openCallText`, then
   * `session.status_terminated`. An archived session stays as it is. NOT_FOUND, SESSION_RUNNING unless `interrupt`.
   */
  archive(request: { sessionId: string; interrupt: boolean; openCallText: string }): Promise<ChangedSession>;
  /** Erases an archived session and its log. False when there is none. */
  delete(sessionId: string): Promise<boolean>;
}
