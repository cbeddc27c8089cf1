/** Creations that named a request id: the same request again gets the same thing. */

/** Kinds of creation whose repeats are answered also when what they named is gone. */
export const SCOPES = {
  agent: "agent",
  credential: "credential",
  deployment: "deployment",
  deploymentRun: "deployment run",
  fork: "fork",
  import: "import",
  session: "session",
  sessionResource: (sessionId: string) => `session_resource ${sessionId}`,
  webhookEndpoint: "webhook_endpoint",
} as const;

export interface RequestIdClaim {
  /** Client-chosen; empty gives up safe repetition. */
  readonly requestId: string;
  /** What was asked for (kit/canonical-json.ts); another content under the same id is refused. */
  readonly contentHash: Uint8Array;
}

export interface RequestIdStore {
  /**
   * For what happens once: undefined for the first claim of this id, else the subject that the first one named. It is
   * remembered for longer than anything that is claimed so may be shown again.
   */
  claimOnce(claim: {
    workspaceId: string;
    /** Tells kinds apart, such as "connect". */
    scope: string;
    requestId: string;
    subjectId: string;
  }): Promise<string | undefined>;
  /** What the same request has made before; undefined for nothing, for another content, and without an id. */
  madeBy(claim: RequestIdClaim & { workspaceId: string; scope: string }): Promise<string | undefined>;
  /** Forgets those that are older than `olderThanMs`, at most 10,000 at a time. Returns how many. */
  prune(olderThanMs: number): Promise<number>;
}
