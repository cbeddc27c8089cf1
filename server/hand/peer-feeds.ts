/**
 * Brings the output and the result of executions whose agent is connected to another replica to those who follow them
 * here. A feed is to the execution what the agent's own stream would be: it goes on from the byte that is next, and the
 * agent's stream takes its place as soon as the agent comes here. A feed that breaks is no result; another is opened.
 */
import { messageOf } from "../../kit/errors.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { AgentConnections } from "./agent-connections.ts";
import type { HandDeps } from "./deps.ts";
import type { ExecutionHub } from "./execution-hub.ts";
import type { LiveExecution } from "./live-execution.ts";
import type { ReachableAgents } from "./reachable-agents.ts";

const LOOK_EVERY_MS = 1_000;
const AGAIN_AFTER_MS = 250;
/** More executions than this are followed by looking for their results in the store. */
const MAX_FEEDS = 2_000;

export class PeerFeeds implements Service {
  readonly name = "executions of other replicas";
  private readonly deps: HandDeps;
  private readonly connections: AgentConnections;
  private readonly agents: ReachableAgents;
  private readonly hub: ExecutionHub;
  private readonly feeds = new Map<LiveExecution, { stop: AbortController; run: Promise<void> }>();
  private readonly ends: (() => void)[] = [];
  private stopped = false;

  constructor(
    deps: HandDeps,
    parts: { connections: AgentConnections; agents: ReachableAgents; hub: ExecutionHub },
  ) {
    this.deps = deps;
    this.connections = parts.connections;
    this.agents = parts.agents;
    this.hub = parts.hub;
    this.hub.onEnter((live) => this.consider(live));
  }

  async start(): Promise<void> {
    this.ends.push(this.deps.clock.every(LOOK_EVERY_MS, () => this.look()));
    this.ends.push(this.connections.onChange(() => this.look()));
  }

  async stop(): Promise<void> {
    this.stopped = true;
    for (const end of this.ends.splice(0)) end();
    for (const { stop } of this.feeds.values()) stop.abort();
    await Promise.all([...this.feeds.values()].map(({ run }) => run));
  }

  get size(): number {
    return this.feeds.size;
  }

  private look(): void {
    if (this.feeds.size === 0 && !this.deps.peers.hasOthers()) return;
    for (const [live, { stop }] of this.feeds) if (!this.isWanted(live) || !live.hasReaders) stop.abort();
    for (const live of this.hub.silent()) if (live.hasReaders) this.consider(live);
  }

  private isWanted(live: LiveExecution): boolean {
    const { handAgentId } = live.execution;
    return (
      this.deps.peers.hasOthers() &&
      live.result === undefined &&
      !live.isStreaming &&
      handAgentId !== undefined &&
      this.connections.find(handAgentId) === undefined
    );
  }

  private consider(live: LiveExecution): void {
    if (this.stopped || this.feeds.has(live) || this.feeds.size >= MAX_FEEDS || !this.isWanted(live)) return;
    const stop = new AbortController();
    live.awaitsFeed = true;
    const run = this.feed(live, stop.signal).finally(() => {
      live.awaitsFeed = false;
      this.feeds.delete(live);
      this.hub.leave(live);
    });
    this.feeds.set(live, { stop, run });
  }

  private async feed(live: LiveExecution, stop: AbortSignal): Promise<void> {
    for (let attempt = 1; !stop.aborted && this.isWanted(live); attempt += 1) {
      try {
        const replicaId = await this.agents.holder(live.execution.handAgentId ?? "", attempt > 1);
        if (replicaId !== undefined && !stop.aborted && this.isWanted(live)) {
          await this.feedFrom(replicaId, live, stop);
        }
      } catch (error) {
        if (!stop.aborted) {
          this.deps.logger.debug(
            { execution: live.execution.executionKey, error: messageOf(error) },
            "an execution could not be followed over another replica; tried again",
          );
        }
      }
      if (live.result !== undefined) return;
      await this.deps.clock.sleep(AGAIN_AFTER_MS, stop).catch(() => {});
    }
  }

  private async feedFrom(replicaId: string, live: LiveExecution, stop: AbortSignal): Promise<void> {
    let stream = live.openStream(0, "peer");
    const over = new AbortController();
    const end = () => over.abort();
    stop.addEventListener("abort", end, { once: true });
    stream.signal.addEventListener("abort", end, { once: true });
    try {
      const parts = this.deps.peers.follow({
        replicaId,
        executionKey: live.execution.executionKey,
        fromOffset: stream.resumeOffset,
        signal: over.signal,
      });
      for await (const { kind } of parts) {
        if (kind.case === "result") {
          this.hub.finish(live.execution.executionKey, kind.value);
          return;
        }
        if (kind.case !== "output") continue;
        const offset = Number(kind.value.offset);
        if (offset > live.nextOffset) {
          // Nobody has what lies between any more.
          stream.signal.removeEventListener("abort", end);
          stream = live.openStream(offset, "peer");
          stream.signal.addEventListener("abort", end, { once: true });
        }
        await live.accept(stream, offset, kind.value.data);
      }
    } finally {
      stop.removeEventListener("abort", end);
      over.abort();
      live.closeStream(stream);
    }
  }
}
