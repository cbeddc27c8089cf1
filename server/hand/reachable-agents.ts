/** Hand agents wherever they are connected: here, or at another replica that this one can ask. */
import { messageOf } from "../../kit/errors.ts";
import type { HandAgentRecord } from "../store/hand-agents.ts";
import type { AgentConnections } from "./agent-connections.ts";
import type { AgentLink, AgentLinks, AgentMessage } from "./agent-link.ts";
import type { HandDeps } from "./deps.ts";
import { PeerLink } from "./peer-link.ts";

/** How long a place that was looked up is believed; an agent that has left it is found by the failure. */
const KEPT_MS = 30_000;
const MAX_KEPT = 10_000;
/** Many calls of one agent ask at once where it is. */
const LOOKUP_SHARED_MS = 100;
/** Deliveries of one message, and the wait before the first repetition, which doubles. */
const DELIVERIES = 5;
const FIRST_WAIT_MS = 100;
const MAX_UNDELIVERED = 1_024;

export class ReachableAgents implements AgentLinks {
  private readonly deps: HandDeps;
  private readonly connections: AgentConnections;
  private readonly elsewhere = new Map<string, { readonly link: PeerLink; readonly untilMs: number }>();
  private readonly lookups = new Map<string, Promise<string | undefined>>();
  private undelivered = 0;

  constructor(deps: HandDeps, connections: AgentConnections) {
    this.deps = deps;
    this.connections = connections;
  }

  find(handAgentId: string): AgentLink | undefined {
    return this.connections.find(handAgentId) ?? this.kept(handAgentId);
  }

  reach(agent: HandAgentRecord): AgentLink | undefined {
    const { handAgentId, generation, journalId, replicaId } = agent;
    const here = this.connections.find(handAgentId);
    if (here !== undefined) return here;
    if (!agent.online || journalId === undefined || replicaId === undefined) return undefined;
    if (replicaId === this.deps.replicaId || this.deps.peers.standing(replicaId) !== "reachable") {
      return undefined;
    }
    const known = this.kept(handAgentId);
    const same = known?.generation === generation && known.replicaId === replicaId;
    const link = same ? known : this.linkTo({ handAgentId, generation, journalId, replicaId });
    this.keep(link);
    return link;
  }

  async locate(handAgentId: string): Promise<AgentLink | undefined> {
    if (handAgentId === "") return undefined;
    const known = this.find(handAgentId);
    if (known !== undefined) return known;
    const agent = await this.deps.store.handAgents.find(handAgentId);
    return agent && this.reach(agent);
  }

  /**
   * The replica that holds the agent; undefined when it is this one, or out of reach. With `asked` it is looked up,
   * once for all who ask at the same time.
   */
  async holder(handAgentId: string, asked: boolean): Promise<string | undefined> {
    if (this.connections.find(handAgentId) !== undefined) return undefined;
    const kept = asked ? undefined : this.kept(handAgentId);
    if (kept !== undefined) return kept.replicaId;
    const running = this.lookups.get(handAgentId);
    if (running !== undefined) return running;
    const lookup = this.lookUp(handAgentId);
    this.lookups.set(handAgentId, lookup);
    const forget = () => this.deps.clock.after(LOOKUP_SHARED_MS, () => this.lookups.delete(handAgentId));
    lookup.then(forget, forget);
    return lookup;
  }

  private async lookUp(handAgentId: string): Promise<string | undefined> {
    const agent = await this.deps.store.handAgents.find(handAgentId);
    const link = agent && this.reach(agent);
    return link instanceof PeerLink ? link.replicaId : undefined;
  }

  onChange(listener: () => void): () => void {
    return this.connections.onChange(listener);
  }

  changed(): void {
    this.connections.changed();
  }

  private kept(handAgentId: string): PeerLink | undefined {
    const kept = this.elsewhere.get(handAgentId);
    if (kept === undefined) return undefined;
    const { clock, peers } = this.deps;
    const stands =
      kept.link.isOpen &&
      kept.untilMs > clock.monotonicMs() &&
      peers.standing(kept.link.replicaId) === "reachable";
    if (!stands) this.elsewhere.delete(handAgentId);
    return stands ? kept.link : undefined;
  }

  private keep(link: PeerLink): void {
    this.elsewhere.delete(link.handAgentId);
    this.elsewhere.set(link.handAgentId, { link, untilMs: this.deps.clock.monotonicMs() + KEPT_MS });
    const oldest = this.elsewhere.size > MAX_KEPT ? this.elsewhere.keys().next().value : undefined;
    if (oldest !== undefined) this.elsewhere.delete(oldest);
  }

  private linkTo(facts: {
    handAgentId: string;
    generation: number;
    journalId: string;
    replicaId: string;
  }): PeerLink {
    return new PeerLink({
      ...facts,
      deps: this.deps,
      onUndelivered: (message) => void this.bring(facts.handAgentId, message),
      onChange: (listener) => this.onChange(listener),
      stands: async () => {
        if (this.connections.find(facts.handAgentId) !== undefined) return false;
        const agent = await this.deps.store.handAgents.find(facts.handAgentId);
        return agent?.generation === facts.generation && agent.online;
      },
    });
  }

  /** Tries again, at most so often, wherever the agent is by then. */
  private async bring(handAgentId: string, message: AgentMessage): Promise<void> {
    if (this.undelivered >= MAX_UNDELIVERED) return;
    this.undelivered += 1;
    try {
      for (let attempt = 1; attempt < DELIVERIES; attempt += 1) {
        await this.deps.clock.sleep(FIRST_WAIT_MS * 2 ** (attempt - 1));
        if (await this.deliver(handAgentId, message)) return;
      }
    } catch (error) {
      this.deps.logger.info(
        { handAgentId, error: messageOf(error) },
        "a message to a hand agent waits for the agent's replica to find it",
      );
    } finally {
      this.undelivered -= 1;
    }
  }

  private async deliver(handAgentId: string, message: AgentMessage): Promise<boolean> {
    // A call that has its result is not started again, wherever its agent is (X1).
    if (message.case === "startExecution") {
      const execution = await this.deps.store.executions.find(message.value.executionKey ?? "");
      if (execution === undefined || execution.result !== undefined) return true;
    }
    const here = this.connections.find(handAgentId);
    if (here !== undefined) return here.post(message);
    await this.holder(handAgentId, true);
    return this.kept(handAgentId)?.postOnce(message) ?? false;
  }
}
