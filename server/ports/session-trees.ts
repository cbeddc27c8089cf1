/** Sessions with their threads, for those who stop them. */

/** A root, and who of its tree works, waits for threads or has something to do. */
export interface ActiveTree {
  readonly rootSessionId: string;
  readonly sessionIds: readonly string[];
}

export interface SessionTrees {
  /** At most 10,000 trees in which somebody is active. Undefined: of all workspaces. */
  active(workspaceId: string | undefined): Promise<ActiveTree[]>;
  /** Interrupts everyone in the tree, so that nothing of it goes on by itself. NOT_FOUND. */
  stop(tree: ActiveTree): Promise<void>;
}
