/** How trees end: threads before who made them, and whoever comes late is found by the relay. */
import { TendonError } from "../../kit/errors.ts";
import { isId, newId } from "../../kit/ids.ts";
import type { EventStore } from "../store/events.ts";
import type { ThreadStore } from "../store/threads.ts";
import { treeEvent } from "../store/tree-events.ts";
import type { Hub } from "./hub.ts";
import { announceAppended } from "./log.ts";
import type { TreeRelay } from "./tree-relay.ts";

export interface TreeEndingsDeps {
  readonly threads: Pick<ThreadStore, "liveOfRoot" | "liveChildren" | "active" | "activeInTree">;
  readonly events: Pick<EventStore, "append">;
  readonly hub: Hub;
  readonly relay: () => TreeRelay;
}

export class TreeEndings {
  private readonly deps: TreeEndingsDeps;

  constructor(deps: TreeEndingsDeps) {
    this.deps = deps;
  }

  /** Live threads below a session, deep ones first. */
  async below(sessionId: string): Promise<string[]> {
    // A thread that was ended a moment ago may have made one in the moment before, which would be below nobody who lives.
    if (isId("session", sessionId)) return this.deps.threads.liveOfRoot(sessionId);
    const levels: string[][] = [];
    for (let level = [sessionId]; level.length > 0; ) {
      level = await this.deps.threads.liveChildren(level);
      levels.unshift(level);
    }
    return levels.flat();
  }

  /** SESSION_RUNNING when a thread below works. */
  async checkAtRest(sessionId: string): Promise<void> {
    const working = await this.deps.threads.active(await this.below(sessionId), false);
    if (working.length === 0) return;
    throw new TendonError(
      "SESSION_RUNNING",
      `threads of the session "${sessionId}" are running; set interrupt to end them anyway`,
      { session_id: sessionId },
    );
  }

  /** Has `archive` end all threads below, deep ones first; what they say last is in the root's log then. */
  async archiveBelow(sessionId: string, archive: (threadId: string) => Promise<unknown>): Promise<void> {
    for (const threadId of await this.below(sessionId)) {
      await archive(threadId);
      await this.deps.relay().relay(threadId);
    }
  }

  /** Interrupts the session and all below it; nothing of it goes on by itself. Gives who was active or held. */
  async stop(sessionId: string): Promise<string[]> {
    const { threads } = this.deps;
    const active = isId("thread", sessionId)
      ? await threads.active([sessionId, ...(await this.below(sessionId))], true)
      : await threads.activeInTree(sessionId, true);
    if (active.length > 0) await this.interrupt(sessionId, active);
    return active;
  }

  /** The same where it is known who is active. */
  async interrupt(sessionId: string, active: readonly string[]): Promise<void> {
    const { events, hub, relay } = this.deps;
    const event = treeEvent(newId("event"), "user.interrupt", { keeps_queued: true });
    const appended = await events.append({ sessionId, events: [event], authority: "server" });
    announceAppended(hub, sessionId, appended);
    // Threads that rest have nothing to hear; who comes to work meanwhile hears of it from the relay's next round.
    if (active.some((id) => id !== sessionId)) await relay().relay(sessionId);
  }
}
