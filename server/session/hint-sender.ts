/** Tells other replicas which sessions have grown: lists of (session, newest position), at most one every 5 ms. */
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import type { EventStore, HeadHint } from "../store/events.ts";

const PERIOD_MS = 5;

/** More sessions than this between two sends means that sending fails; what is dropped is found by asking. */
const MAX_PENDING = 10_000;

export class HintSender {
  private readonly events: Pick<EventStore, "hint">;
  private readonly clock: Clock;
  private readonly log: Logger;
  private readonly isAlone: () => boolean;
  private pending = new Map<string, HeadHint>();
  private state: "idle" | "resting" | "sending" | "stopped" = "idle";
  private sending: Promise<void> = Promise.resolve();

  constructor(deps: {
    events: Pick<EventStore, "hint">;
    clock: Clock;
    log: Logger;
    /** While this holds nothing is sent: nobody listens. */
    isAlone?: () => boolean;
  }) {
    this.isAlone = deps.isAlone ?? (() => false);
    this.events = deps.events;
    this.clock = deps.clock;
    this.log = deps.log;
  }

  /** The newest hint of a session replaces those that wait. */
  push(hint: HeadHint): void {
    if (this.state === "stopped" || this.isAlone()) return;
    const older = this.pending.get(hint.sessionId);
    if (older === undefined && this.pending.size >= MAX_PENDING) return;
    if (older?.head !== undefined && hint.head !== undefined && older.head > hint.head) return;
    this.pending.set(hint.sessionId, hint);
    if (this.state === "idle") this.send();
  }

  /** Resolves when nothing is under way; what waits is not sent any more. */
  stop(): Promise<void> {
    this.state = "stopped";
    this.pending.clear();
    return this.sending;
  }

  private send(): void {
    const hints = [...this.pending.values()];
    this.pending = new Map();
    this.state = "sending";
    this.sending = this.events
      .hint(hints)
      .catch((error) => this.log.debug({ error: messageOf(error) }, "a hint to other replicas was not sent"))
      .then(() => {
        if (this.state === "stopped") return;
        this.state = "resting";
        this.clock.after(PERIOD_MS, () => {
          if (this.state === "stopped") return;
          this.state = "idle";
          if (this.pending.size > 0) this.send();
        });
      });
  }
}
