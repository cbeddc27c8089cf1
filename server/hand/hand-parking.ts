/** Parks hands: those unused for long, and one at once where another session needs its place (H5). */
import { isTendonError, messageOf } from "../../kit/errors.ts";
import type { CommandResult } from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import type { HandRecord, UnusedHandsQuery } from "../store/hands.ts";
import type { AgentLinks } from "./agent-link.ts";
import type { Conclusions } from "./conclusions.ts";
import type { HandDeps } from "./deps.ts";
import { parkedEvent } from "./hand-events.ts";
import { environmentOf } from "./hand-messages.ts";
import { durationText } from "./rules.ts";

/** Idle hands that are parked in one round, side by side. */
const IDLE_BATCH = 16;
/** How many hands are tried when a place is needed: others may be after the same ones. */
const ROOM_CHOICES = 8;
/** A hand that its agent could not park is left alone for so long, so that it does not keep others from their turn. */
const LEFT_ALONE_MS = 60_000;
const MAX_LEFT_ALONE = 1_000;

export class HandParking {
  private readonly deps: HandDeps;
  private readonly links: AgentLinks;
  private readonly conclusions: Conclusions;
  /** Until when, by hand. */
  private readonly leftAlone = new Map<string, number>();

  constructor(deps: HandDeps, parts: { links: AgentLinks; conclusions: Conclusions }) {
    this.deps = deps;
    this.links = parts.links;
    this.conclusions = parts.conclusions;
  }

  /** Parks hands of these agents that were unused for the idle timeout of their environment; at most a batch. */
  async parkIdle(handAgentIds: readonly string[]): Promise<void> {
    const { idleTimeoutMs } = this.deps.timing;
    const idle = await this.unused({
      handAgentIds,
      unusedForMs: idleTimeoutMs,
      byIdleTimeout: true,
      alsoRunning: true,
      limit: IDLE_BATCH,
    });
    await Promise.all(
      idle.map((hand) => {
        const forMs = Number(environmentOf(hand).idleTimeoutMs) || idleTimeoutMs;
        return this.park(hand, `idle for ${durationText(forMs)}`);
      }),
    );
  }

  /**
   * Parks the longest unused hand of these agents whose session does not run; one with background processes only when
   * there is no other. False when no hand could be parked.
   */
  async makeRoom(handAgentIds: readonly string[]): Promise<boolean> {
    const spare = await this.unused({
      handAgentIds,
      unusedForMs: this.deps.timing.spareUnusedMs,
      byIdleTimeout: false,
      alsoRunning: false,
      limit: ROOM_CHOICES,
    });
    for (const hand of spare) if (await this.park(hand, "made room for another session")) return true;
    return false;
  }

  private async unused(query: Omit<UnusedHandsQuery, "except">): Promise<HandRecord[]> {
    if (query.handAgentIds.length === 0) return [];
    const now = this.deps.clock.monotonicMs();
    for (const [handId, untilMs] of this.leftAlone) if (untilMs <= now) this.leftAlone.delete(handId);
    return this.deps.store.hands.unused({ ...query, except: [...this.leftAlone.keys()] });
  }

  /**
   * The agent goes first: a place that counts as free has no processes any more. A call that comes in between is one that
   * the agent runs in the resumed hand, and the hand stays ready.
   */
  private async park(hand: HandRecord, why: string): Promise<boolean> {
    const answer = await this.command(hand);
    if (answer === undefined) return false;
    const ended = answer.hand?.leftProcesses.length ?? 0;
    const detail =
      ended === 0
        ? why
        : `${why}; ${ended} background ${ended === 1 ? "process was" : "processes were"} ended`;
    const event = parkedEvent(hand, detail);
    const change = await this.deps.store.hands.park({ hand, stateDetail: detail, event });
    if (change === undefined) return false;
    this.conclusions.announce(change.advance);
    this.links.changed();
    return true;
  }

  private async command(hand: HandRecord): Promise<CommandResult | undefined> {
    const { handId } = hand;
    try {
      const link = await this.links.locate(hand.handAgentId ?? "");
      const command = { case: "park", value: { handId } } as const;
      const answer = await link?.command(command, this.deps.timing.parkWaitMs);
      if (answer === undefined || answer.reason === "") return answer;
      // A call has just come.
      if (answer.reason === "HAND_BUSY") return undefined;
      this.leaveAlone(hand, `${answer.message} (${answer.reason})`);
    } catch (error) {
      if (!isTendonError(error)) throw error;
      if (!isTendonError(error, "UNAVAILABLE")) this.leaveAlone(hand, messageOf(error));
    }
    return undefined;
  }

  private leaveAlone({ handId, handAgentId }: HandRecord, why: string): void {
    const { clock, logger } = this.deps;
    logger.warn({ hand: handId, handAgentId, why }, "a hand could not be parked; tried again later");
    if (this.leftAlone.size < MAX_LEFT_ALONE) {
      this.leftAlone.set(handId, clock.monotonicMs() + LEFT_ALONE_MS);
    }
  }
}
