/** Sessions with their threads, for those who stop them. */
export interface SessionTrees {
  /** Roots of the trees in which somebody works, waits for threads or has something to do. Undefined: of all workspaces. */
  active(workspaceId: string | undefined): Promise<string[]>;
  /** Interrupts everyone in the tree, so that nothing of it goes on by itself. Gives who was interrupted. NOT_FOUND, SESSION_ARCHIVED. */
  stop(sessionId: string): Promise<string[]>;
}
