/** Looks for what nobody else will notice: overdue executions, hands that wait for ever, agents that were revoked elsewhere. */
import { messageOf } from "../../kit/errors.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { HandRecord, StaleHand } from "../store/hands.ts";
import { type AgentConnections, superseded } from "./agent-connections.ts";
import type { Conclusions } from "./conclusions.ts";
import type { HandDeps } from "./deps.ts";
import type { ExecutionHub } from "./execution-hub.ts";
import { stopMessage } from "./execution-messages.ts";
import { loseAgent } from "./hand-control.ts";
import type { HandEndings } from "./hand-endings.ts";
import { environmentOf } from "./hand-messages.ts";
import type { HandParking } from "./hand-parking.ts";
import type { LiveExecution } from "./live-execution.ts";
import type { Provisioner } from "./provisioner.ts";
import { fromStoredText } from "./results.ts";
import { durationText } from "./rules.ts";
import type { SessionFiles } from "./session-files.ts";
import { UnheardCalls } from "./unheard-calls.ts";
import { sendUnsentCalls } from "./unsent-calls.ts";

export interface SweeperParts {
  readonly connections: AgentConnections;
  readonly hub: ExecutionHub;
  readonly conclusions: Conclusions;
  readonly endings: HandEndings;
  readonly provisioner: Provisioner;
  readonly parking: HandParking;
  readonly files: SessionFiles;
}

/** A hand may be in state provisioning for the longest provision timeout and so much more. */
const PROVISIONING_LIMIT_MS = 3_600_000 + 300_000;
/** A hundred years. */
const NEVER_MS = 36_525 * 24 * 3_600_000;
const BATCH = 100;
/** Parked hands that are released in one round: their agents remove files. */
const RELEASE_BATCH = 10;
const EXCESS_BATCH = 50;
/** Parked hands that one agent keeps at most; it has to name them all in its greeting. */
const MAX_PARKED_OF_AGENT = 8_000;
/** An agent that still talks about an overdue execution gets so many graces to end it. */
const GRACES_WHILE_STREAMING = 5;

export class Sweeper implements Service {
  readonly name = "hand sweeper";
  private readonly deps: HandDeps;
  private readonly parts: SweeperParts;
  private readonly unheard: UnheardCalls;
  private readonly timers: (() => void)[] = [];
  private readonly running = new Set<Promise<void>>();
  private stopped = false;
  private startedMs = Number.NEGATIVE_INFINITY;
  private lastReapMs = Number.NEGATIVE_INFINITY;
  private lastExcessMs = Number.NEGATIVE_INFINITY;
  /** When a stored result was first seen whose output still comes over another replica. */
  private readonly seenMs = new WeakMap<LiveExecution, number>();

  constructor(deps: HandDeps, parts: SweeperParts) {
    this.deps = deps;
    this.parts = parts;
    this.unheard = new UnheardCalls(deps, parts.conclusions);
  }

  async start(): Promise<void> {
    this.startedMs = this.deps.clock.monotonicMs();
    const { timing } = this.deps;
    this.timers.push(this.alone(timing.sweepEveryMs, () => this.sweep()));
    this.timers.push(this.alone(timing.pollResultsMs, () => this.poll()));
    this.timers.push(this.alone(timing.parkEveryMs, () => this.parkIdle()));
    this.timers.push(this.alone(timing.reaperPeriodMs, () => this.destroyLeft()));
  }

  async stop(): Promise<void> {
    this.stopped = true;
    for (const stop of this.timers.splice(0)) stop();
    await Promise.all(this.running);
  }

  /** One round; rounds of one kind never overlap. */
  async sweep(): Promise<void> {
    await this.attempt("hand agents could not be touched", () => this.touchAgents());
    await this.attempt("calls that were left behind could not be sent", () =>
      sendUnsentCalls(this.deps, this.parts.connections),
    );
    await this.attempt("calls of absent hand agents could not be found", () => this.unheard.tell());
    await this.attempt("overdue executions could not be ended", () => this.endOverdue());
    await this.attempt("stale hands could not be ended", () => this.endStale());
    await this.attempt("hands that were parked for long could not be released", () =>
      this.releaseLongParked(),
    );
    await this.attempt("old hands could not be released", () => this.releaseAged());
    await this.attempt("hands that were made in vain could not be released", () => this.releaseUnused());
    await this.attempt("unowned hands could not be named", () => this.nameUnowned());
  }

  /** Hands whose agents are connected here, so that one replica looks after each. */
  async parkIdle(): Promise<void> {
    const handAgentIds = this.parts.connections.all().map(({ handAgentId }) => handAgentId);
    await this.attempt("outputs that were left could not be found", () => this.parts.files.takeLeft());
    await this.attempt("idle hands could not be parked", () => this.parts.parking.parkIdle(handAgentIds));
  }

  /** What an agent could not destroy when it was told to: it is told again (H1). */
  async destroyLeft(): Promise<void> {
    const handAgentIds = this.parts.connections.all().map(({ handAgentId }) => handAgentId);
    await this.attempt("hands that could not be destroyed could not be looked up", async () => {
      const left = await this.deps.store.hands.undestroyed(handAgentIds, BATCH);
      await Promise.all(left.map((hand) => this.parts.endings.destroy(hand)));
    });
  }

  /** Results that another replica stored, for those who follow here. */
  async poll(): Promise<void> {
    const keys = this.parts.hub.silent().map((live) => live.execution.executionKey);
    if (keys.length === 0) return;
    await this.attempt("results could not be looked up", async () => {
      for (const [key, result] of await this.deps.store.executions.results(keys)) {
        const live = this.parts.hub.find(key);
        if (live === undefined || this.isStillFed(live)) continue;
        this.parts.hub.finish(key, fromStoredText(result));
      }
    });
  }

  /** The replica that has the execution gets a while to bring the rest of its output before the result. */
  private isStillFed(live: LiveExecution): boolean {
    if (!live.awaitsFeed) return false;
    const { clock, timing } = this.deps;
    const sinceMs = this.seenMs.get(live) ?? clock.monotonicMs();
    this.seenMs.set(live, sinceMs);
    return clock.monotonicMs() - sinceMs < timing.feedStallMs || live.isFed(timing.feedStallMs);
  }

  private alone(everyMs: number, round: () => Promise<void>): () => void {
    let busy = false;
    return this.deps.clock.every(everyMs, () => {
      if (busy || this.stopped) return;
      busy = true;
      const run = round().finally(() => {
        busy = false;
        this.running.delete(run);
      });
      this.running.add(run);
    });
  }

  private async attempt(what: string, run: () => Promise<void>): Promise<void> {
    try {
      await run();
    } catch (error) {
      this.deps.logger.warn({ error: messageOf(error) }, `${what}; tried again soon`);
    }
  }

  private async touchAgents(): Promise<void> {
    const held = this.parts.connections.all();
    const { revoked, moved } = await this.deps.store.handAgents.touch(held);
    const left = new Set(moved);
    for (const connection of held.filter(({ handAgentId }) => left.has(handAgentId))) {
      // Half-open here, and it did not wait for this side to find out. That one alone: its successor may be here by now (H3).
      connection.end(superseded());
    }
    for (const handAgentId of revoked)
      await loseAgent(this.deps, this.parts, handAgentId, "the hand agent was revoked");
  }

  private async endOverdue(): Promise<void> {
    const { clock, store, timing, replicaId } = this.deps;
    const overdue = await store.executions.overdue({
      graceMs: timing.executionGraceMs,
      offlineMs: timing.agentOfflineMs,
      replicaId,
      limit: BATCH,
    });
    for (const execution of overdue) {
      const lateMs = clock.nowMs() - execution.boundAt.getTime() - execution.timeoutMs;
      const streams = this.parts.hub.find(execution.executionKey)?.isStreaming ?? false;
      if (streams && lateMs < timing.executionGraceMs * GRACES_WHILE_STREAMING) {
        const link = this.parts.connections.find(execution.handAgentId ?? "");
        link?.post(stopMessage(execution, "its time limit is over"));
        continue;
      }
      const why = execution.agentOnline
        ? "its hand agent did not report its end in time"
        : "its hand agent has been out of reach for too long";
      await this.parts.conclusions.giveUp([execution], why);
    }
  }

  private async endStale(): Promise<void> {
    const { clock, store, timing } = this.deps;
    const stale = await store.hands.stale({
      provisioningForMs: PROVISIONING_LIMIT_MS,
      // A server that was away itself first lets the agents come back.
      offlineForMs:
        clock.monotonicMs() - this.startedMs < timing.agentOfflineMs ? NEVER_MS : timing.keepOfflineMs,
      limit: BATCH,
    });
    for (const one of stale) await this.endOne(one);
  }

  private async endOne({ hand, why }: StaleHand): Promise<void> {
    switch (why) {
      case "agent_revoked":
        return this.parts.endings.lose(hand, "its hand agent was revoked", {
          part: "hand_agent",
          reason: "HAND_AGENT_REVOKED",
        });
      case "agent_gone":
        return this.parts.endings.lose(hand, "its hand agent has been out of reach for too long", {
          part: "tunnel",
          reason: "HAND_AGENT_OFFLINE",
        });
      case "session_ended":
        await this.parts.endings.release(hand, "its session ended", undefined);
        return;
      case "provisioning":
        if (!this.parts.provisioner.isRunning(hand.handId)) {
          await this.parts.endings.release(hand, "it could not be made in time", undefined);
        }
    }
  }

  private async releaseLongParked(): Promise<void> {
    const { store, timing } = this.deps;
    const release = async (hands: readonly HandRecord[], why: string) => {
      await Promise.all(hands.map((hand) => this.parts.endings.release(hand, why, undefined)));
    };
    const old = await store.hands.longParked(timing.keepParkedMs, RELEASE_BATCH);
    const keptFor = (hand: HandRecord) => Number(environmentOf(hand).keepParkedMs) || timing.keepParkedMs;
    await Promise.all(old.map((hand) => release([hand], `it was parked for ${durationText(keptFor(hand))}`)));
    const now = this.deps.clock.monotonicMs();
    if (now - this.lastExcessMs < timing.reaperPeriodMs) return;
    this.lastExcessMs = now;
    const excess = await store.hands.excessParked(MAX_PARKED_OF_AGENT, EXCESS_BATCH);
    await release(excess, `its hand agent keeps at most ${MAX_PARKED_OF_AGENT} parked hands`);
  }

  private async releaseAged(): Promise<void> {
    const aged = await this.deps.store.hands.aged(RELEASE_BATCH);
    await Promise.all(
      aged.map((hand) => {
        const why = `it was older than ${durationText(Number(environmentOf(hand).maxAgeMs))}`;
        return this.parts.endings.release(hand, why, undefined);
      }),
    );
  }

  /** H4: made because a model had begun a call; its turn is over, and nothing has used them. */
  private async releaseUnused(): Promise<void> {
    const unused = await this.deps.store.hands.guessedInVain(RELEASE_BATCH);
    const why = "it was made ahead of a call that did not come";
    const release = this.parts.endings.release.bind(this.parts.endings);
    await Promise.all(unused.map((hand) => release(hand, why, undefined, { onlyUnused: true })));
  }

  private async nameUnowned(): Promise<void> {
    const now = this.deps.clock.monotonicMs();
    if (now - this.lastReapMs < this.deps.timing.reaperPeriodMs) return;
    this.lastReapMs = now;
    for (const connection of this.parts.connections.all()) {
      if (connection.unowned.length === 0) continue;
      const known = await this.deps.store.hands.known(connection.unowned);
      const handIds = connection.unowned.filter((id) => !known.has(id));
      if (handIds.length > 0) connection.post({ case: "unownedHands", value: { handIds } });
    }
  }
}
