/** Ends waits for threads: with the result of the call that waits, whoever holds its session by then. */
import { messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import type { NewEvent } from "../store/events.ts";
import type { ThreadStanding, ThreadStore, ThreadWait } from "../store/threads.ts";
import { derivedEventId, treeEvent } from "../store/tree-events.ts";

export interface ThreadWaitsDeps {
  readonly threads: Pick<ThreadStore, "waitsOf" | "someWaits" | "standings" | "endWait">;
  readonly append: (sessionId: string, events: readonly NewEvent[]) => Promise<void>;
  /** The wait goes on, and some of its threads rest only because the budget is spent. */
  readonly held: (wait: ThreadWait) => Promise<void>;
  /** The wait goes on, and some of its threads wait for a client. */
  readonly asking: (wait: ThreadWait) => Promise<void>;
  readonly log: Logger;
}

const WAITS_PER_POLL = 500;

export class ThreadWaits {
  private readonly deps: ThreadWaitsDeps;
  /** The last that was looked at; undefined for a new round. */
  private after: ThreadWait | undefined;

  constructor(deps: ThreadWaitsDeps) {
    this.deps = deps;
  }

  async settleAll(sessionId: string): Promise<void> {
    for (const wait of await this.deps.threads.waitsOf(sessionId)) await this.settle(wait, "by result");
  }

  /** Whatever was missed, and waits whose time is over. However many go on, each has its turn. */
  async settleSome(): Promise<void> {
    const { threads, log } = this.deps;
    const waits = await threads.someWaits(WAITS_PER_POLL, this.after);
    const goingOn = waits.filter(({ overdue }) => !overdue);
    this.after = goingOn.length < WAITS_PER_POLL ? undefined : goingOn.at(-1);
    for (const wait of waits) {
      try {
        await this.settle(wait, "by result", true);
      } catch (error) {
        log.warn({ sessionId: wait.sessionId, error: messageOf(error) }, "could not end a wait for threads");
      }
    }
  }

  /** What there is to say, or undefined while the wait goes on. With `by result` the log is told. */
  async settle(
    wait: ThreadWait,
    answer: "by result" | "by text",
    looksForHeld = false,
  ): Promise<string | undefined> {
    const { threads, append } = this.deps;
    const { sessionId, callId } = wait;
    const standings = await threads.standings(wait.threadIds);
    if (!isOver(wait, standings)) {
      const isHeld = standings.some(({ stopReason }) => stopReason === "budget_reached");
      const isAsking = standings.some(({ stopReason }) => stopReason === "requires_action");
      if (looksForHeld && isHeld) await this.deps.held(wait);
      if (looksForHeld && isAsking) await this.deps.asking(wait);
      return undefined;
    }
    const text = waitText(wait, standings);
    if (answer === "by result") {
      const payload = { tool_use_id: callId, content: [{ type: "text", text }], is_error: false };
      await append(sessionId, [treeEvent(derivedEventId(callId, "waited"), "agent.tool_result", payload)]);
    }
    await threads.endWait(sessionId, callId);
    return text;
  }
}

/** Threads that are not there any more rest (pure). */
function isOver({ threadIds, any, overdue }: ThreadWait, standings: readonly ThreadStanding[]): boolean {
  if (overdue || standings.length < threadIds.length || threadIds.length === 0) return true;
  return any ? standings.some(({ rests }) => rests) : standings.every(({ rests }) => rests);
}

/** As the model reads it (pure). */
function waitText({ overdue }: ThreadWait, standings: readonly ThreadStanding[]): string {
  if (standings.length === 0) return "There are no threads to wait for.";
  const lines = standings.map(
    (standing) => `- ${standing.threadId} (${standing.agentName}): ${stateText(standing)}`,
  );
  const late = overdue && standings.some(({ rests }) => !rests);
  const note = late
    ? "The time is over, and not all of them rest."
    : "What they said last is told in messages of their own.";
  return [...lines, note].join("\n");
}

export function stateText({ status, stopReason, rests }: ThreadStanding): string {
  if (status === "terminated") return "stopped";
  if (rests) return stopReason === "end_turn" ? "has ended its turn" : `rests (${stopReason})`;
  if (stopReason === "requires_action" && status === "idle") return "waits for the user";
  return "works";
}
