/** Threads: sessions under a root, what their logs say to each other, and who waits for whom. All times are the database's. */
import type { Appended, NewEvent } from "./events.ts";
import type { LeaseClaim } from "./hands.ts";
import type { Cursor, Page } from "./page.ts";
import type { SessionRecord } from "./sessions.ts";

/** Where a session stands in its tree; facts that never change. */
export interface TreePlace {
  readonly sessionId: string;
  readonly workspaceId: string;
  /** Itself for a session of its own. */
  readonly rootSessionId: string;
  readonly parentSessionId: string | undefined;
  readonly depth: number;
  readonly agentName: string;
}

export interface NewThread {
  readonly threadId: string;
  readonly parentSessionId: string;
  readonly lease: LeaseClaim;
  /** Event id of the call that makes it: the same call makes it once. */
  readonly callId: string;
  readonly agentId: string;
  readonly agentVersion: number;
  /** JSON text of an Agent. */
  readonly agent: string;
  readonly agentName: string;
  readonly title: string;
  readonly message: string;
  /** Calls run in hands of its own, not in those of the tree. */
  readonly ownHands: boolean;
  readonly maxThreads: number;
  readonly maxLiveThreads: number;
}

/** What a transaction has appended to which log; to be announced. */
export interface TreeAppend {
  readonly sessionId: string;
  readonly appended: Appended;
}

/** An event that another log has to hear of. */
export interface TreeNews {
  readonly sessionId: string;
  readonly position: number;
  readonly eventId: string;
  readonly type: string;
  readonly threadId: string;
  readonly payload: string;
  readonly internal: string | undefined;
}

/** How a thread stands for who waits for it. */
export interface ThreadStanding {
  readonly threadId: string;
  readonly agentName: string;
  readonly status: string;
  readonly stopReason: string;
  /** It has nothing to do, and its parent has heard of that. */
  readonly rests: boolean;
}

export interface ThreadWait {
  readonly sessionId: string;
  readonly callId: string;
  readonly threadIds: readonly string[];
  readonly any: boolean;
  readonly overdue: boolean;
}

/** A session that waits until nothing below it works, because what it works towards is to be judged then. */
export interface OutcomeWait {
  readonly sessionId: string;
  /** Head of its log when it last said so. */
  readonly sincePosition: number;
  /** Some of its threads rest only because the budget is spent. */
  readonly isAtBudget: boolean;
  /** Some wait for a client. */
  readonly isAsking: boolean;
}

/** A root, and who of its tree is active. */
export interface ActiveTree {
  readonly rootSessionId: string;
  readonly sessionIds: readonly string[];
}

export interface ThreadStore {
  place(sessionId: string): Promise<TreePlace | undefined>;
  /**
   * The thread, its first message, and what the parent's log says of it, together. NOT_FOUND, LEASE_FENCED,
   * SESSION_ARCHIVED, INTERRUPTED, THREAD_LIMIT_REACHED (metadata `limit`, `most`).
   */
  create(thread: NewThread): Promise<{ thread: SessionRecord; appends: TreeAppend[] }>;
  /** What the same call of the session has made before. */
  madeBefore(parentSessionId: string, callId: string): Promise<SessionRecord | undefined>;
  /**
   * Writes to both logs; nothing for what was sent before. LEASE_FENCED, SESSION_ARCHIVED, INTERRUPTED, THREAD_STOPPED.
   */
  send(request: {
    from: string;
    lease: LeaseClaim;
    to: string;
    sent: NewEvent;
    received: NewEvent;
  }): Promise<TreeAppend[]>;
  /** By time of creation. INVALID_PAGE_TOKEN. */
  list(query: {
    rootSessionId: string;
    /** Undefined: the whole tree. */
    parentSessionId: string | undefined;
    includeArchived: boolean;
    size: number;
    after: Cursor | undefined;
  }): Promise<Page<SessionRecord>>;
  /** Live threads of the root, deep ones first, also below threads that have ended. */
  liveOfRoot(rootSessionId: string): Promise<string[]>;
  /** Live threads that these have made. */
  liveChildren(parentIds: readonly string[]): Promise<string[]>;
  /**
   * Of these, who works, waits for threads, or has something to do; `withHeld` also who waits for a client or for more of the
   * budget.
   */
  active(sessionIds: readonly string[], withHeld: boolean): Promise<string[]>;
  /** The same of a root and all of its threads, in one look. */
  activeInTree(rootSessionId: string, withHeld: boolean): Promise<string[]>;
  /** Roots of all trees of a workspace, or of the installation, in which somebody is active. */
  activeTrees(workspaceId: string | undefined): Promise<ActiveTree[]>;
  /** Whether nobody of the root's tree works or has something to do; those that wait for threads do not. */
  isQuiet(rootSessionId: string): Promise<boolean>;
  /** Calls for which threads of the root wait for somebody outside, in the order in which the threads were made. */
  asks(rootSessionId: string): Promise<string[]>;
  /** Every thread of the root, deep ones first. */
  ofRoot(rootSessionId: string): Promise<string[]>;
  /** Live threads under a root, or a parent, that was archived. */
  orphans(limit: number): Promise<string[]>;
  /** Threads made, not stopped; who works, and who rests at the budget; sums over the tree. Undefined without threads. */
  tree(rootSessionId: string): Promise<TreeSums | undefined>;

  /** Sessions of which something is to be passed on. */
  withNews(limit: number): Promise<string[]>;
  /** Oldest first. */
  news(sessionId: string, limit: number): Promise<TreeNews[]>;
  passedOn(sessionId: string, position: number): Promise<void>;
  /** Of these calls those that the log shows for this thread. */
  shownCalls(sessionId: string, threadId: string, callIds: readonly string[]): Promise<Set<string>>;
  /** Threads that these calls of the log were asked in; calls of the session's own are left out. */
  threadsOfCalls(sessionId: string, callIds: readonly string[]): Promise<Map<string, string>>;

  /**
   * The wait for a call that is open; the first wait of a call stands. LEASE_FENCED, SESSION_ARCHIVED, NOT_FOUND for threads that
   * are not the session's, INVALID_FIELD for a call that is not open.
   */
  wait(request: {
    sessionId: string;
    lease: LeaseClaim;
    callId: string;
    /** Empty: all live ones. */
    threadIds: readonly string[];
    any: boolean;
    timeoutMs: number;
  }): Promise<ThreadWait>;
  waitsOf(sessionId: string): Promise<ThreadWait[]>;
  /**
   * Waits whose time is over, the longest first, and of the others those behind `after`: as many of each. Whatever was missed is
   * found here.
   */
  someWaits(limit: number, after?: Pick<ThreadWait, "sessionId" | "callId">): Promise<ThreadWait[]>;
  endWait(sessionId: string, callId: string): Promise<void>;
  standings(threadIds: readonly string[]): Promise<ThreadStanding[]>;

  /** The session waits until nothing below it works; whoever waits already goes on. NOT_FOUND, LEASE_FENCED, SESSION_ARCHIVED. */
  waitForTree(request: { sessionId: string; lease: LeaseClaim; outcomeEventId: string }): Promise<void>;
  /**
   * Ends the wait if nothing below the session works and all that was said there was passed on. `restedEventId`: id of the event
   * that tells its log so, in the same transaction; undefined where who waits is told otherwise, and the event is left out where
   * the outcome is over. `appended` is to be announced.
   */
  endTreeWait(
    sessionId: string,
    restedEventId: string | undefined,
  ): Promise<{ readonly isOver: boolean; readonly appended?: Appended | undefined }>;
  /** Sessions that wait though nothing below them works any more. */
  restedTrees(limit: number): Promise<string[]>;
  /** Waits that go on, and some of whose threads wait for a client or for more of the budget; by id, those behind `after`. */
  heldTrees(limit: number, after: string): Promise<OutcomeWait[]>;
}

export interface TreeSums {
  readonly threads: number;
  readonly liveThreads: number;
  readonly running: number;
  readonly atBudget: number;
  readonly inputTokens: number;
  readonly outputTokens: number;
  readonly cacheReadInputTokens: number;
  readonly cacheCreationInputTokens: number;
  readonly modelRequests: number;
  readonly activeMs: number;
  readonly listCostNanoUsd: number;
  readonly unpricedRequests: number;
  readonly webSearchRequests: number;
}
