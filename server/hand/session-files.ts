/**
 * Has hands keep up with the files of their sessions: what sessions are given while they live reaches hands, and what hands
 * leave as output is taken in once the session rests. An agent that was away is asked again.
 */
import { messageOf } from "../../kit/errors.ts";
import type { HandRecord } from "../store/hands.ts";
import type { AgentConnections } from "./agent-connections.ts";
import type { AgentLinks } from "./agent-link.ts";
import type { HandDeps } from "./deps.ts";

/** Whoever changes a session's files is not kept waiting longer; the hand has them before its next call all the same. */
const UPLOADS_WITHIN_MS = 5_000;
/** Outputs may be large. */
const OUTPUTS_WITHIN_MS = 15 * 60_000;
const AT_ONCE = 4;
const MAX_WAITING = 1_000;
const BATCH = 50;

export class SessionFiles {
  private readonly deps: HandDeps;
  private readonly links: AgentLinks;
  private readonly connections: AgentConnections;
  /** Sessions that came to rest. What does not find room is found by the next sweep. */
  private readonly waiting = new Set<string>();
  private readonly taking = new Map<string, Promise<void>>();

  constructor(deps: HandDeps, parts: { links: AgentLinks; connections: AgentConnections }) {
    this.deps = deps;
    this.links = parts.links;
    this.connections = parts.connections;
  }

  /** Does not reject. */
  async uploadsChanged(sessionId: string): Promise<void> {
    const hands = await this.handsOf(sessionId);
    await Promise.all(hands.map((hand) => this.sync(hand, { uploads: true }, UPLOADS_WITHIN_MS)));
  }

  /** The session rests: what its hands have left is taken in beside. */
  rested(sessionId: string): void {
    if (this.waiting.size >= MAX_WAITING) return;
    this.waiting.add(sessionId);
    this.next();
  }

  /** What was missed: of agents that were away, and of servers that stopped. */
  async takeLeft(): Promise<void> {
    const handAgentIds = this.connections.all().map(({ handAgentId }) => handAgentId);
    if (handAgentIds.length === 0) return;
    const due = await this.deps.store.hands.outputsDue({ handAgentIds, limit: BATCH });
    for (const { sessionId } of due) if (sessionId !== undefined) this.rested(sessionId);
  }

  async stop(): Promise<void> {
    this.waiting.clear();
  }

  private next(): void {
    for (const sessionId of this.waiting) {
      if (this.taking.size >= AT_ONCE) return;
      if (this.taking.has(sessionId)) continue;
      this.waiting.delete(sessionId);
      const run = this.takeOutputs(sessionId).finally(() => {
        this.taking.delete(sessionId);
        this.next();
      });
      this.taking.set(sessionId, run);
    }
  }

  private async takeOutputs(sessionId: string): Promise<void> {
    const { hands } = this.deps.store;
    try {
      for (const hand of await hands.outputsDue({ sessionId, limit: BATCH })) {
        const isDone = await this.sync(hand, { outputs: true }, OUTPUTS_WITHIN_MS);
        if (isDone) await hands.outputsTaken(hand.handId, hand.lastUsedAt!);
      }
    } catch (error) {
      this.deps.logger.warn({ sessionId, error: messageOf(error) }, "outputs could not be taken in");
    }
  }

  private async handsOf(sessionId: string): Promise<HandRecord[]> {
    try {
      const hands = await this.deps.store.hands.ofSession(sessionId);
      return hands.filter(({ state }) => state === "ready" || state === "parked");
    } catch (error) {
      this.deps.logger.warn({ sessionId, error: messageOf(error) }, "a session's hands were not told");
      return [];
    }
  }

  private async sync(
    { handId, handAgentId }: HandRecord,
    what: { uploads?: boolean; outputs?: boolean },
    withinMs: number,
  ): Promise<boolean> {
    try {
      const link = await this.links.locate(handAgentId ?? "");
      if (link === undefined) return false;
      const answer = await link.command({ case: "syncFiles", value: { handId, ...what } }, withinMs);
      if (answer.reason === "") return true;
      throw new Error(`${answer.message} (${answer.reason})`);
    } catch (error) {
      this.deps.logger.warn({ handId, error: messageOf(error) }, "a hand's files are not up to date");
      return false;
    }
  }
}
