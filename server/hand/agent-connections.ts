/** The connections that this replica holds: at most one for each agent, the newest. */
import { TendonError } from "../../kit/errors.ts";
import type { AgentConnection } from "./agent-connection.ts";

/**
 * A newer connection stands. A hand agent has one at a time, and has left an old one before it dials again: who hears
 * this is another process than the one that is connected now.
 */
export function superseded(): TendonError {
  return new TendonError("HAND_AGENT_DUPLICATED", "a newer connection of this hand agent took over");
}

export class AgentConnections {
  private readonly byAgent = new Map<string, AgentConnection>();
  private readonly listeners = new Set<() => void>();
  private refusal: TendonError | undefined;

  /** From now on no agent is taken in: it is told so before anything of it is noted. */
  refuse(error: TendonError): void {
    this.refusal = error;
  }

  /** Throws what `refuse` was given. */
  assertTakesAgents(): void {
    if (this.refusal !== undefined) throw this.refusal;
  }

  /** False when a newer one stands already: the caller's is the late one. */
  add(connection: AgentConnection): boolean {
    const standing = this.byAgent.get(connection.handAgentId);
    if (standing !== undefined && standing.generation > connection.generation) return false;
    this.byAgent.set(connection.handAgentId, connection);
    standing?.end(superseded());
    this.changed();
    return true;
  }

  /** Its successor, if it has one, stays (H3). */
  remove(connection: AgentConnection): void {
    if (this.byAgent.get(connection.handAgentId) !== connection) return;
    this.byAgent.delete(connection.handAgentId);
    this.changed();
  }

  find(handAgentId: string): AgentConnection | undefined {
    const connection = this.byAgent.get(handAgentId);
    return connection?.isOpen ? connection : undefined;
  }

  all(): AgentConnection[] {
    return [...this.byAgent.values()];
  }

  cut(handAgentId: string, error: TendonError): void {
    this.byAgent.get(handAgentId)?.end(error);
  }

  onChange(listener: () => void): () => void {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }

  /** Also called for what waits on connections and changed elsewhere, such as a free place. */
  changed(): void {
    for (const listener of [...this.listeners]) listener();
  }
}
