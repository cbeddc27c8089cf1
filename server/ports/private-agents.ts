/** What the tunnel area asks of hand agents: to connect to hosts of their networks. */

export interface PrivateAgent {
  readonly handAgentId: string;
  /** Of its connection. */
  readonly generation: number;
  /** The replica that holds its connection; undefined for this one. */
  readonly replicaId: string | undefined;
}

/** What an agent is to dial, under the tunnel's id. */
export interface PrivateTarget {
  readonly tunnelId: string;
  readonly host: string;
  readonly port: number;
}

export interface PrivateAgents {
  /**
   * Agents of the workspace's pool that can be asked now, wherever they are connected; each time another comes first. Undefined
   * when no agent has joined the pool.
   */
  ofPool(workspaceId: string, pool: string): Promise<PrivateAgent[] | undefined>;
  /** This agent, if it can be asked now; undefined when there is none of that id in the workspace. */
  byId(workspaceId: string, handAgentId: string): Promise<PrivateAgent[] | undefined>;
  /**
   * Has an agent of this replica connect to the host; resolves once it has, and opens its stream. NO_HAND_AGENT when this
   * replica does not hold it; ROLE_NOT_ALLOWED when its machine does not let it, UNAVAILABLE when the host is not reached,
   * LIMIT_EXCEEDED, DEADLINE_EXCEEDED.
   */
  dialHere(agent: Pick<PrivateAgent, "handAgentId" | "generation">, target: PrivateTarget): Promise<void>;
}
