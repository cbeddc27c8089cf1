/**
 * Leads tunnels from the end that asks to the end that is asked: a sandbox's connection to a proxy of this replica, or of
 * another one by one hop. What is asked of a hand agent goes the same way round (`toAgent`).
 */
import { type Clock, within } from "../../kit/clock.ts";
import { invalidField, isTendonError, TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import {
  partsOfRequests,
  partsOfResponses,
  responseOf,
  type TunnelPart,
} from "../../kit/tunnel/tunnel-part.ts";
import type { StreamTunnelRequest } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { ForwardTunnelRequest } from "../../proto/gen/tendon/v1/peer_service_pb.js";
import type { OpenTunnelRequest } from "../../proto/gen/tendon/v1/proxy_service_pb.js";
import type { Peers } from "../ports/peers.ts";
import type { Principal } from "../ports/principal.ts";
import type { PrivateAgent, PrivateAgents, PrivateTarget } from "../ports/private-agents.ts";
import type { ProxyDirectory } from "../ports/proxy-directory.ts";
import type { FarEnd, FarEndWanted, TunnelAsk, TunnelCall, TunnelStreams } from "../ports/tunnels.ts";
import { brokenOff, type Joint } from "./joint.ts";
import type { OpenTunnels } from "./open-tunnels.ts";
import type { PrivateHosts } from "./private-hosts.ts";
import type { TunnelAccess } from "./tunnel-access.ts";

export interface TunnelServiceDeps {
  readonly tunnels: OpenTunnels;
  readonly access: TunnelAccess;
  readonly privateHosts: PrivateHosts;
  readonly agents: () => Pick<PrivateAgents, "dialHere">;
  readonly proxies: () => Pick<ProxyDirectory, "askTunnelHere" | "holders">;
  readonly peers: () => Pick<Peers, "tunnel">;
  readonly clock: Clock;
}

/** For a call to say what it is. */
const FIRST_WITHIN_MS = 10_000;

/** Has the end opened that `joint` still lacks. */
type OpenFar = (joint: Joint) => Promise<void>;

export class TunnelService implements TunnelStreams {
  private readonly deps: TunnelServiceDeps;

  constructor(deps: TunnelServiceDeps) {
    this.deps = deps;
  }

  async *fromAgent(requests: AsyncIterable<StreamTunnelRequest>, handAgentId: string, call: TunnelCall) {
    const iterator = requests[Symbol.asyncIterator]();
    const { kind } = await this.first(iterator);
    if (kind.case !== "open") throw invalidField("open", "must be the first message");
    const parts = partsOfRequests(iterator);
    const { tunnelId, handId } = kind.value;
    if (tunnelId !== "") return yield* answered(this.deps.tunnels.join(tunnelId, parts, call, handAgentId));
    const ask = await this.deps.access.allow(kind.value, handAgentId);
    const joint = this.deps.tunnels.add(ask.tunnelId, { handAgentId, handId });
    yield* this.lead(joint, parts, call, (joint) => this.toProxy(ask, joint));
  }

  async *fromProxy(requests: AsyncIterable<OpenTunnelRequest>, call: TunnelCall, principal: Principal) {
    const iterator = requests[Symbol.asyncIterator]();
    const { kind } = await this.first(iterator);
    if (kind.case !== "open") throw invalidField("open", "must be the first message");
    const { tunnelId } = kind.value;
    const parts = partsOfRequests(iterator);
    if (tunnelId !== "") return yield* answered(this.deps.tunnels.join(tunnelId, parts, call));
    const route = await this.deps.privateHosts.route(kind.value, principal, call.signal);
    yield* this.deps.privateHosts.first(route, (agent, connected) => {
      const target = { tunnelId: newId("request"), ...route.target };
      const joint = this.deps.tunnels.add(target.tunnelId, { handAgentId: agent.handAgentId });
      return this.lead(joint, parts, call, async () => {
        await this.toAgent(agent, target, joint);
        connected();
      });
    });
  }

  async *fromPeer(requests: AsyncIterable<ForwardTunnelRequest>, call: TunnelCall) {
    const iterator = requests[Symbol.asyncIterator]();
    const { ask, start } = await this.first(iterator);
    if (start?.tunnel !== undefined) {
      const { handAgentId, generation, tunnel } = start;
      const joint = this.deps.tunnels.add(tunnel.tunnelId, { handAgentId });
      const agent = { handAgentId, generation: Number(generation) };
      return yield* this.lead(joint, partsOfResponses(iterator), call, () =>
        this.toAgentHere(agent, tunnel, joint),
      );
    }
    if (ask === undefined) throw invalidField("ask", "must be in the first message");
    const joint = this.deps.tunnels.add(ask.tunnelId, { handId: ask.handId });
    yield* this.lead(joint, partsOfResponses(iterator), call, (joint) => this.toProxyHere(ask, joint));
  }

  proxyGone(instanceId: string): void {
    this.deps.tunnels.connectionGone(instanceId, brokenOff("the proxy went away"));
  }

  /** From here on the caller is one end; the other is opened first. */
  private async *lead(joint: Joint, parts: AsyncIterator<TunnelPart>, call: TunnelCall, openFar: OpenFar) {
    const broke = () => joint.fail(brokenOff());
    call.signal.addEventListener("abort", broke, { once: true });
    try {
      if (call.signal.aborted) broke();
      await openFar(joint);
      yield* answered(joint.carry(0, parts, call));
    } catch (error) {
      joint.fail(error);
      throw error;
    } finally {
      call.signal.removeEventListener("abort", broke);
      joint.fail(brokenOff());
    }
  }

  /** A proxy of this replica, or of the first other one that still has one. NOT_CONFIGURED. */
  private async toProxy(ask: TunnelAsk, joint: Joint): Promise<void> {
    const { proxies } = this.deps;
    try {
      return await this.toProxyHere(ask, joint);
    } catch (error) {
      if (!isTendonError(error, "NOT_CONFIGURED") || joint.signal.aborted) throw error;
      for (const replicaId of proxies().holders()) {
        const isOpen = await this.over(replicaId, { ask }, joint).catch((failure: unknown) => {
          // It may have lost its proxy since it was looked at; the next may have one.
          if (isTendonError(failure, "NOT_CONFIGURED")) return false;
          throw failure;
        });
        if (isOpen) return;
      }
      throw error;
    }
  }

  private async toProxyHere(ask: TunnelAsk, joint: Joint): Promise<void> {
    const asked = this.deps.proxies().askTunnelHere(ask);
    if (asked === undefined)
      throw new TendonError("NOT_CONFIGURED", "no proxy is connected; start one with: tendon mcp-proxy", {
        part: "proxy",
      });
    await this.deps.tunnels.awaitAsked(ask.tunnelId, asked.instanceId, asked.accepted, joint);
  }

  private async toAgent(agent: PrivateAgent, target: PrivateTarget, joint: Joint): Promise<void> {
    const { replicaId, handAgentId, generation } = agent;
    if (replicaId === undefined) return this.toAgentHere(agent, target, joint);
    const start = { handAgentId, generation: BigInt(generation), tunnel: target };
    await this.over(replicaId, { start }, joint);
  }

  private async toAgentHere(
    agent: Pick<PrivateAgent, "handAgentId" | "generation">,
    target: PrivateTarget,
    joint: Joint,
  ): Promise<void> {
    const dialled = this.deps.agents().dialHere(agent, target);
    await this.deps.tunnels.awaitAsked(target.tunnelId, agent.handAgentId, dialled, joint);
  }

  /** The end hangs on another replica: this one takes the part of both calls there. */
  private async over(replicaId: string, wanted: FarEndWanted, joint: Joint): Promise<true> {
    const far = await this.deps.peers().tunnel({ replicaId, wanted, signal: joint.signal });
    void pump(joint, far).catch(() => {}); // told to the other end by the joint
    return true;
  }

  private async first<T>(requests: AsyncIterator<T>): Promise<T> {
    const late = () => new TendonError("DEADLINE_EXCEEDED", "the stream was not opened");
    const next = await within(this.deps.clock, FIRST_WITHIN_MS, requests.next(), late);
    if (next.done) throw invalidField("open", "must be the first message");
    return next.value;
  }
}

async function pump(joint: Joint, far: FarEnd): Promise<void> {
  for await (const part of joint.carry(1, far.parts, far.call)) await far.send(part);
  far.finish();
}

/** What the caller is sent: that the tunnel stands, then its parts. */
async function* answered(parts: AsyncGenerator<TunnelPart>) {
  yield { opened: true };
  for await (const part of parts) yield responseOf(part);
}
