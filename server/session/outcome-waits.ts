/** Ends waits for whole trees: once nothing of a tree works, what its session works towards can be judged. */
import { messageOf } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import type { Logger } from "../../kit/log.ts";
import type { OutcomeWait, ThreadStore } from "../store/threads.ts";
import type { Hub } from "./hub.ts";
import { announceAppended } from "./log.ts";

export interface OutcomeWaitsDeps {
  readonly threads: Pick<ThreadStore, "endTreeWait" | "restedTrees" | "heldTrees">;
  readonly hub: Hub;
  /** The wait goes on, and some threads rest only because the budget is spent. */
  readonly held: (wait: OutcomeWait) => Promise<void>;
  /** The wait goes on, and some threads wait for a client. */
  readonly asking: (wait: OutcomeWait) => Promise<void>;
  readonly log: Logger;
}

const WAITS_PER_POLL = 200;

export class OutcomeWaits {
  private readonly deps: OutcomeWaitsDeps;
  /** The last held one that was looked at; empty for a new round. */
  private after = "";

  constructor(deps: OutcomeWaitsDeps) {
    this.deps = deps;
  }

  /** Tells the session's log when nothing below it works any more; nothing where it does not wait for that. */
  async settle(sessionId: string): Promise<void> {
    const { threads, hub } = this.deps;
    const { appended } = await threads.endTreeWait(sessionId, newId("event"));
    if (appended !== undefined) announceAppended(hub, sessionId, appended);
  }

  /** Whatever was missed. However many are held, each has its turn. */
  async settleSome(): Promise<void> {
    const { threads, held, asking } = this.deps;
    for (const sessionId of await threads.restedTrees(WAITS_PER_POLL)) {
      await this.try(sessionId, () => this.settle(sessionId));
    }
    const waits = await threads.heldTrees(WAITS_PER_POLL, this.after);
    this.after = waits.length < WAITS_PER_POLL ? "" : waits.at(-1)!.sessionId;
    for (const wait of waits) {
      if (wait.isAtBudget) await this.try(wait.sessionId, () => held(wait));
      if (wait.isAsking) await this.try(wait.sessionId, () => asking(wait));
    }
  }

  private async try(sessionId: string, work: () => Promise<void>): Promise<void> {
    try {
      await work();
    } catch (error) {
      const { log } = this.deps;
      log.warn({ sessionId, error: messageOf(error) }, "could not end a session's wait for its threads");
    }
  }
}
