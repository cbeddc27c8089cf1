/** What the other areas may ask of the part that knows hands. */
export interface HandControl {
  /** Releases every hand of a session that ended. Agents that are not connected are told when they come back. */
  releaseSession(sessionId: string): Promise<void>;
  /** The tools of each of the session's slots, pinned at its first model request. */
  slotTools(session: {
    sessionId: string;
    environmentId: string;
    slotEnvironmentIds: Readonly<Record<string, string>>;
  }): Promise<
    { slot: string; digest: string; tools: { name: string; description: string; inputSchema: string }[] }[]
  >;
  /** Cuts the connection of a revoked hand agent; its hands are lost. */
  disconnect(handAgentId: string, detail: string): Promise<void>;
}
