/** Hand agents as those who connect to hosts of their networks, for the tunnel area. */
import { REASONS, type Reason, TendonError } from "../../kit/errors.ts";
import type { PrivateAgent, PrivateAgents, PrivateTarget } from "../ports/private-agents.ts";
import type { HandAgentRecord } from "../store/hand-agents.ts";
import type { AgentConnections } from "./agent-connections.ts";
import type { AgentLinks } from "./agent-link.ts";
import type { HandDeps } from "./deps.ts";
import { PeerLink } from "./peer-link.ts";

/** A little more than an agent takes, which then says why. */
const DIAL_WITHIN_MS = 9_000;

export class PrivateDials implements PrivateAgents {
  private readonly deps: Pick<HandDeps, "store">;
  private readonly connections: AgentConnections;
  private readonly links: Pick<AgentLinks, "reach">;
  private turn = 0;

  constructor(
    deps: Pick<HandDeps, "store">,
    connections: AgentConnections,
    links: Pick<AgentLinks, "reach">,
  ) {
    this.deps = deps;
    this.connections = connections;
    this.links = links;
  }

  async ofPool(workspaceId: string, pool: string): Promise<PrivateAgent[] | undefined> {
    const agents = pool === "" ? [] : await this.deps.store.handAgents.candidates(workspaceId, pool);
    if (agents.length === 0) return undefined;
    const found = this.reachable(agents);
    this.turn += 1;
    const first = found.length === 0 ? 0 : this.turn % found.length;
    return [...found.slice(first), ...found.slice(0, first)];
  }

  async byId(workspaceId: string, handAgentId: string): Promise<PrivateAgent[] | undefined> {
    const agent = await this.deps.store.handAgents.find(handAgentId);
    return agent?.workspaceId === workspaceId ? this.reachable([agent]) : undefined;
  }

  private reachable(agents: readonly HandAgentRecord[]): PrivateAgent[] {
    return agents
      .flatMap((agent) => this.links.reach(agent) ?? [])
      .filter((link) => !link.draining)
      .map((link): PrivateAgent => {
        const replicaId = link instanceof PeerLink ? link.replicaId : undefined;
        return { handAgentId: link.handAgentId, generation: link.generation, replicaId };
      })
      .sort((a, b) => (a.handAgentId < b.handAgentId ? -1 : 1));
  }

  async dialHere(
    { handAgentId, generation }: Parameters<PrivateAgents["dialHere"]>[0],
    { tunnelId, host, port }: PrivateTarget,
  ): Promise<void> {
    const connection = this.connections.find(handAgentId);
    if (connection === undefined || (generation !== 0 && connection.generation !== generation)) {
      throw new TendonError("NO_HAND_AGENT", `this replica does not hold hand agent "${handAgentId}"`);
    }
    const { reason, message } = await connection.command(
      { case: "startTunnel", value: { tunnelId, host, port } },
      DIAL_WITHIN_MS,
    );
    if (reason === "") return;
    const known = Object.hasOwn(REASONS, reason) ? (reason as Reason) : "UNAVAILABLE";
    throw new TendonError(known, message, { part: "hand_agent" });
  }
}
