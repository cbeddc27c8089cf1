/**
 * Connections of proxies to hosts that only hand agents of a pool reach. The session says whose pool: an agent of another
 * workspace is never asked, whatever its pool is called.
 */
import type { Clock } from "../../kit/clock.ts";
import { invalidField, isTendonError, notFound, type TendonError } from "../../kit/errors.ts";
import type { ProxyTunnelOpen } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import { maySee, type Principal } from "../ports/principal.ts";
import type { PrivateAgent, PrivateAgents } from "../ports/private-agents.ts";
import type { CredentialStore } from "../store/credentials.ts";
import type { HandStore } from "../store/hands.ts";
import { refusal, type Target, targetOf } from "./rules.ts";

export interface PrivateHostsDeps {
  readonly agents: () => PrivateAgents;
  readonly credentials: Pick<CredentialStore, "session">;
  readonly hands: Pick<HandStore, "find">;
  readonly clock: Clock;
}

/** For an agent that connects anew, after a server or its network went away for a moment. */
const AGENT_WITHIN_MS = 3_000;
const LOOK_EVERY_MS = 200;
/** Agents of a pool that are tried for one connection. */
const MAX_TRIES = 3;
/** No other agent is tried after so long: a turn waits for this. */
const TRY_WITHIN_MS = 12_000;

type Lookup = () => Promise<PrivateAgent[] | undefined>;

export interface PrivateRoute {
  readonly target: Target;
  readonly agents: readonly PrivateAgent[];
}

export class PrivateHosts {
  private readonly deps: PrivateHostsDeps;

  constructor(deps: PrivateHostsDeps) {
    this.deps = deps;
  }

  /** Who may be asked to connect. NOT_FOUND, NO_HAND_AGENT, INVALID_FIELD. */
  async route(open: ProxyTunnelOpen, principal: Principal, signal: AbortSignal): Promise<PrivateRoute> {
    const target = targetOf(open.host, open.port);
    if (target === undefined) throw invalidField("open.host", "must be a host name or address, with a port");
    if ((open.pool === "") === (open.handId === "")) {
      throw invalidField(
        "open.pool",
        "must name the pool that reaches the host, or hand_id a hand, and not both",
      );
    }
    const session = await this.deps.credentials.session(open.sessionId);
    if (session === undefined || !maySee(principal, session.workspaceId))
      throw notFound("session", open.sessionId);
    // One that is archived still ends what it had begun; what a session may begin is the proxy's to say.
    const { workspaceId } = session;
    const look = await this.lookup(open, workspaceId);
    const agents = await this.online(look, signal);
    if (agents !== undefined && agents.length > 0) return { target, agents: agents.slice(0, MAX_TRIES) };
    if (open.pool === "")
      throw refusal("NO_HAND_AGENT", `the hand agent of hand "${open.handId}" is not online`);
    if (agents === undefined)
      throw refusal("NO_HAND_AGENT", `the workspace has no hand agent in pool "${open.pool}"`);
    throw refusal("NO_HAND_AGENT", `no hand agent of pool "${open.pool}" is online`);
  }

  /** How the agents are found that may be asked: by their pool, or as the one that has a hand of the session. */
  private async lookup({ pool, handId, sessionId }: ProxyTunnelOpen, workspaceId: string): Promise<Lookup> {
    const { agents, hands } = this.deps;
    if (handId === "") return () => agents().ofPool(workspaceId, pool);
    const hand = await hands.find(handId);
    const { handAgentId } = hand ?? {};
    if (hand?.sessionId !== sessionId || handAgentId === undefined) throw notFound("hand", handId);
    return () => agents().byId(workspaceId, handAgentId);
  }

  /**
   * Calls `attempt` with one agent after the other until one has connected. Fails as the first did whose machine may reach
   * the host, else as the first.
   */
  async *first<T>(
    { agents }: PrivateRoute,
    attempt: (agent: PrivateAgent, connected: () => void) => AsyncGenerator<T>,
  ): AsyncGenerator<T> {
    const startMs = this.deps.clock.monotonicMs();
    const failures: unknown[] = [];
    for (const agent of agents) {
      let isConnected = false;
      try {
        yield* attempt(agent, () => {
          isConnected = true;
        });
        return;
      } catch (error) {
        if (isConnected) throw error;
        failures.push(error);
      }
      if (this.deps.clock.monotonicMs() - startMs > TRY_WITHIN_MS) break;
    }
    throw failures.find((error) => !isTendonError(error, "ROLE_NOT_ALLOWED")) ?? failures[0] ?? none();
  }

  private async online(look: Lookup, signal: AbortSignal): Promise<PrivateAgent[] | undefined> {
    const { clock } = this.deps;
    const deadlineMs = clock.monotonicMs() + AGENT_WITHIN_MS;
    for (;;) {
      const found = await look();
      if (found === undefined || found.length > 0 || clock.monotonicMs() >= deadlineMs) return found;
      await clock.sleep(LOOK_EVERY_MS, signal);
    }
  }
}

function none(): TendonError {
  return refusal("NO_HAND_AGENT", "no hand agent was asked");
}
