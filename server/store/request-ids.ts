/** Creations that named a request id: the same request again gets the same thing. */

export interface RequestIdClaim {
  /** Client-chosen; empty gives up safe repetition. */
  readonly requestId: string;
  /** What was asked for (kit/canonical-json.ts); another content under the same id is refused. */
  readonly contentHash: Uint8Array;
}

export interface RequestIdStore {
  /** Forgets those that are older than `olderThanMs`, at most 10,000 at a time. Returns how many. */
  prune(olderThanMs: number): Promise<number>;
}
