/** Brings a hand that was asked for to an agent that has room, and waits until it takes calls. */
import { isTendonError, messageOf, type Part, type Reason, TendonError } from "../../kit/errors.ts";
import { failpoint } from "../../kit/failpoint.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { EnvironmentSpec } from "../../proto/gen/tendon/v1/environment_pb.js";
import type { RepositoryOutcome } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { HandAgentRecord } from "../store/hand-agents.ts";
import type { HandRecord } from "../store/hands.ts";
import type { AgentLink, AgentLinks } from "./agent-link.ts";
import type { Conclusions } from "./conclusions.ts";
import type { HandDeps } from "./deps.ts";
import type { HandEndings } from "./hand-endings.ts";
import { environmentFor } from "./hand-environment.ts";
import { provisionedEvent } from "./hand-events.ts";
import { environmentOf, resourcesOf } from "./hand-messages.ts";
import { mountsOf } from "./hand-mounts.ts";
import type { HandParking } from "./hand-parking.ts";
import { tunnelsOf } from "./hand-tunnels.ts";
import { repositoryErrors, repositoryNotice } from "./repository-events.ts";
import { choosePlacement, wishOf } from "./rules.ts";
import { skillFiles } from "./skill-files.ts";

export type Provisioned =
  | { readonly kind: "ready"; readonly hand: HandRecord }
  | { readonly kind: "failed"; readonly part: Part; readonly reason: Reason; readonly message: string };

interface Lacking {
  readonly part: Part;
  readonly reason: Reason;
}

const NO_AGENT: Lacking = { part: "server", reason: "NO_HAND_AGENT" };
const NO_PROXY: Lacking = { part: "proxy", reason: "NOT_CONFIGURED" };

/** Of a proxy; it may come, or have room, in time. */
const NO_ANSWER: readonly Reason[] = ["NOT_CONFIGURED", "UNAVAILABLE", "DEADLINE_EXCEEDED", "LIMIT_EXCEEDED"];

type WantedTunnels =
  | { readonly kind: "known"; readonly value: Awaited<ReturnType<typeof tunnelsOf>> }
  | { readonly kind: "missing"; readonly why: string };

export class Provisioner implements Service {
  readonly name = "hand provisioner";
  private readonly deps: HandDeps;
  private readonly links: AgentLinks;
  private readonly endings: HandEndings;
  private readonly conclusions: Conclusions;
  private readonly parking: HandParking;
  private readonly running = new Map<string, Promise<Provisioned>>();
  private stopped = false;

  constructor(
    deps: HandDeps,
    parts: { links: AgentLinks; endings: HandEndings; conclusions: Conclusions; parking: HandParking },
  ) {
    this.deps = deps;
    this.links = parts.links;
    this.endings = parts.endings;
    this.conclusions = parts.conclusions;
    this.parking = parts.parking;
  }

  /**
   * Waits until the hand is ready, or says why it will not be; a parked one is given a place again. All who ask for one hand share one attempt, which goes
   * on when they leave and ends after the environment's provision timeout.
   */
  ensure(hand: HandRecord): Promise<Provisioned> {
    if (hand.state === "ready") return Promise.resolve({ kind: "ready", hand });
    const running = this.running.get(hand.handId);
    if (running !== undefined) return running;
    const begun = hand.state === "parked" ? this.resume(hand) : this.drive(hand);
    const attempt = begun.finally(() => this.running.delete(hand.handId));
    this.running.set(hand.handId, attempt);
    attempt.catch(() => {}); // those who asked may have left
    return attempt;
  }

  async start(): Promise<void> {}

  /** Attempts end; what they had reached is in the store, and whoever asks next goes on from there. */
  async stop(): Promise<void> {
    this.stopped = true;
    this.links.changed();
    await Promise.allSettled(this.running.values());
  }

  isRunning(handId: string): boolean {
    return this.running.has(handId);
  }

  timeoutMs(hand: HandRecord): number {
    return environmentOf(hand).provisionTimeoutMs || this.deps.timing.provisionTimeoutMs;
  }

  /** Resolves when a connection came or went, a place may have become free, or after a while. */
  changed(waitMs: number): Promise<void> {
    return new Promise((resolve) => {
      const end = () => {
        stopTimer();
        stopListening();
        resolve();
      };
      const stopTimer = this.deps.clock.after(Math.max(1, waitMs), end);
      const stopListening = this.links.onChange(end);
    });
  }

  private async drive(asked: HandRecord): Promise<Provisioned> {
    const { clock, store, timing } = this.deps;
    const spec = environmentOf(asked);
    if (spec.selfHosted && !(await this.isServed(asked))) {
      return this.fail(
        asked,
        "server",
        "NOT_CONFIGURED",
        "the environment is self-hosted, and no online hand agent's label says that it serves it",
      );
    }
    const deadlineMs = clock.monotonicMs() + this.timeoutMs(asked);
    let why = "no hand agent was found";
    // What is missing when the time is over.
    let lacks: Lacking = NO_AGENT;
    for (;;) {
      if (this.stopped) throw new TendonError("DRAINING", "the server stops; ask again");
      const hand = await store.hands.find(asked.handId);
      if (hand === undefined) return gone("it was deleted");
      if (hand.state === "parked") return this.resume(hand);
      if (hand.state !== "provisioning") return settled(hand);
      const leftMs = deadlineMs - clock.monotonicMs();
      if (leftMs <= 0) return this.fail(hand, lacks.part, lacks.reason, why);
      lacks = NO_AGENT;
      if (hand.handAgentId === undefined) {
        const placed = await this.place(hand);
        if (placed === undefined) continue;
        why = placed;
      } else {
        const link = await this.links.locate(hand.handAgentId);
        if (link !== undefined) {
          const tunnels = await this.tunnelsFor(hand);
          if (tunnels.kind === "missing") {
            ({ why } = tunnels);
            lacks = NO_PROXY;
            await store.hands.setDetail(hand.handId, `waits: ${why}`);
            await this.changed(Math.min(timing.lookAgainMs, leftMs));
            continue;
          }
          why = `hand agent ${hand.handAgentId} did not make it in time`;
          const outcome = await this.provisionOn(link, hand, tunnels.value, leftMs);
          if (outcome !== undefined) return outcome;
          continue;
        }
        why = `hand agent ${hand.handAgentId}, on which the hand was placed, is not connected to this server`;
      }
      await this.changed(Math.min(timing.lookAgainMs, leftMs));
    }
  }

  /** Whether an agent is there that may host hands of the environment, with or without room. */
  async hasAgentFor(environment: {
    readonly workspaceId: string;
    readonly environmentId: string;
    readonly spec: EnvironmentSpec;
  }): Promise<boolean> {
    const { store, defaultDriver } = this.deps;
    const wish = wishOf(environment.spec, defaultDriver, environment.environmentId);
    const agents = await store.handAgents.candidates(environment.workspaceId, wish.pool);
    const choice = choosePlacement(wish, agents, (agent) => this.isReachable(agent));
    return choice.kind === "place" || (choice.full ?? []).length > 0;
  }

  /** Hand agents serve the session of the hand for good, or one is there that would. */
  private async isServed(hand: HandRecord): Promise<boolean> {
    const { handAgentId, sessionId, slot, workspaceId, environmentId } = hand;
    if (handAgentId !== undefined) return true;
    if (await this.hasAgentFor({ workspaceId, environmentId, spec: environmentOf(hand) })) return true;
    const server =
      sessionId === undefined ? undefined : await this.deps.store.work.slotServer(sessionId, slot);
    return server?.servedBy === "hand_agent";
  }

  /** Gives a parked hand a place again, on the agent that has its files. The next call has the agent resume it. */
  private async resume(asked: HandRecord): Promise<Provisioned> {
    const { clock, store, timing } = this.deps;
    const deadlineMs = clock.monotonicMs() + this.timeoutMs(asked);
    for (;;) {
      if (this.stopped) throw new TendonError("DRAINING", "the server stops; ask again");
      const resumed = await store.hands.resume(asked.handId, `resumed; it was parked: ${asked.stateDetail}`);
      if (resumed === undefined) {
        const hand = await store.hands.find(asked.handId);
        return hand === undefined ? gone("it was deleted") : settled(hand);
      }
      if (resumed !== "full") return { kind: "ready", hand: resumed };
      if (await this.parking.makeRoom([asked.handAgentId ?? ""])) continue;
      const leftMs = deadlineMs - clock.monotonicMs();
      if (leftMs <= 0) {
        const message = `hand ${asked.handId} is parked with its files, and its hand agent is full`;
        return { kind: "failed", part: "server", reason: "NO_HAND_AGENT", message };
      }
      await this.changed(Math.min(timing.lookAgainMs, leftMs));
    }
  }

  /** Undefined when the hand has a place now, or somebody else took it first; else why there is none. */
  private async place(hand: HandRecord): Promise<string | undefined> {
    const { store, defaultDriver } = this.deps;
    const wish = wishOf(environmentOf(hand), defaultDriver, hand.environmentId);
    const agents = await store.handAgents.candidates(hand.workspaceId, wish.pool);
    const choice = choosePlacement(wish, agents, (agent) => this.isReachable(agent));
    if (choice.kind === "wait") {
      const full = (choice.full ?? []).map(({ handAgentId }) => handAgentId);
      if (await this.parking.makeRoom(full)) return undefined;
      await store.hands.setDetail(hand.handId, `waits: ${choice.why}`);
      return choice.why;
    }
    const placed = await store.hands.place({
      handId: hand.handId,
      handAgentId: choice.agent.handAgentId,
      driver: choice.driver.name,
      toolsDigest: choice.driver.toolsDigest,
      stateDetail: choice.why,
    });
    return placed === undefined ? "the fitting hand agents are full" : undefined;
  }

  isReachable(agent: HandAgentRecord): boolean {
    const link = this.links.reach(agent);
    return link !== undefined && !link.draining;
  }

  /** What a hand's programs trust comes from proxies: while none is there, the hand waits for one. */
  private async tunnelsFor(hand: HandRecord): Promise<WantedTunnels> {
    try {
      return { kind: "known", value: await tunnelsOf(this.deps, hand) };
    } catch (error) {
      if (NO_ANSWER.some((reason) => isTendonError(error, reason))) {
        return { kind: "missing", why: `the session has variables: ${messageOf(error)}` };
      }
      throw error;
    }
  }

  /** Undefined when the connection ended before the answer: the same hand is asked for again on the next one. */
  private async provisionOn(
    link: AgentLink,
    hand: HandRecord,
    tunnels: Awaited<ReturnType<typeof tunnelsOf>>,
    leftMs: number,
  ): Promise<Provisioned | undefined> {
    let repositories: readonly RepositoryOutcome[] = [];
    try {
      failpoint("server.hand_placed");
      const mounts = await mountsOf(this.deps, hand);
      const answer = await link.command(
        {
          case: "provision",
          value: {
            handId: hand.handId,
            driver: hand.driver,
            environment: await environmentFor(this.deps, hand),
            resources: [...resourcesOf(hand), ...(await skillFiles(this.deps, hand))],
            sessionId: hand.sessionId ?? "",
            ownerNumber: BigInt(hand.ownerNumber),
            ...(mounts === undefined ? {} : { mounts }),
            ...(tunnels === undefined ? {} : { tunnels }),
          },
        },
        leftMs,
      );
      repositories = answer.repositories;
      if (answer.reason === "LIMIT_EXCEEDED" || answer.reason === "DRAINING") {
        // What has just given its place back is still being cleared away there; or the agent is about to be started again.
        await this.changed(Math.min(this.deps.timing.lookAgainMs, leftMs));
        return undefined;
      }
      if (answer.reason !== "") {
        return await this.fail(
          hand,
          "hand_agent",
          "PROVISION_FAILED",
          `${answer.message} (${answer.reason})`,
        );
      }
    } catch (error) {
      if (isTendonError(error, "DEADLINE_EXCEEDED")) {
        return this.fail(hand, "hand_agent", "PROVISION_TIMEOUT", messageOf(error));
      }
      if (isTendonError(error, "UNAVAILABLE") || isTendonError(error, "LIMIT_EXCEEDED")) {
        await this.changed(this.deps.timing.lookAgainMs);
        return undefined;
      }
      throw error;
    }
    return this.becameReady(hand, repositories);
  }

  private async becameReady(
    hand: HandRecord,
    repositories: readonly RepositoryOutcome[],
  ): Promise<Provisioned> {
    failpoint("server.hand_made");
    const agent = await this.deps.store.handAgents.find(hand.handAgentId!);
    const isolation = agent?.drivers.find((driver) => driver.name === hand.driver)?.detail ?? "";
    const change = await this.deps.store.hands.ready({
      handId: hand.handId,
      stateDetail: hand.stateDetail,
      events: [provisionedEvent(hand, isolation, repositories), ...repositoryErrors(repositories)],
      notice: repositoryNotice(repositories),
    });
    if (change !== undefined) {
      this.conclusions.announce(change.advance);
      return { kind: "ready", hand: change.hand };
    }
    const now = await this.deps.store.hands.find(hand.handId);
    return now === undefined ? gone("it was deleted") : settled(now);
  }

  private async fail(hand: HandRecord, part: Part, reason: Reason, message: string): Promise<Provisioned> {
    const change = await this.deps.store.hands.end({
      handId: hand.handId,
      state: "released",
      stateDetail: `could not be made: ${message}`.slice(0, 1_000),
      destroyPending: true,
      event: undefined,
    });
    // A failed provision may have left something behind.
    if (change?.hand.destroyPending) void this.endings.destroy(change.hand).catch(() => {});
    return { kind: "failed", part, reason, message };
  }
}

function settled(hand: HandRecord): Provisioned {
  if (hand.state === "ready" || hand.state === "parked") return { kind: "ready", hand };
  return gone(hand.stateDetail);
}

function gone(detail: string): Provisioned {
  return { kind: "failed", part: "server", reason: "PROVISION_FAILED", message: detail };
}

/** For callers that asked for the hand itself. */
export function provisionError(failed: Provisioned & { kind: "failed" }): TendonError {
  return new TendonError(failed.reason, `no hand: ${failed.message}`, { part: failed.part });
}
