/** Appends a brain's events. Ids are chosen before the first try, so that a repeated append is one append (L2). */
import { isTendonError } from "../kit/errors.ts";
import { failpoint } from "../kit/failpoint.ts";
import { newId } from "../kit/ids.ts";
import type { Client } from "../kit/rpc/client.ts";
import type { EventInput } from "../proto/gen/tendon/v1/event_pb.js";
import type { SessionService } from "../proto/gen/tendon/v1/session_service_pb.js";
import { appendEvents } from "./append-events.ts";
import type { Lease } from "./lease.ts";
import type { ServerCalls } from "./server-calls.ts";
import type { SessionView } from "./session-view.ts";

export class LogWriter {
  private readonly sessions: Client<typeof SessionService>;
  private readonly calls: ServerCalls;
  private readonly lease: Lease;
  private readonly view: SessionView;

  constructor(sessions: Client<typeof SessionService>, calls: ServerCalls, lease: Lease, view: SessionView) {
    this.sessions = sessions;
    this.calls = calls;
    this.lease = lease;
    this.view = view;
  }

  newEventId(): string {
    return newId("event");
  }

  /** Appends all or none, and takes them in. Rejects with LeaseEnded when this is not the session's brain any more (E1). */
  async append(events: readonly EventInput[], expectedPosition?: bigint): Promise<void> {
    const at = expectedPosition === undefined ? {} : { expectedPosition };
    const request = { sessionId: this.lease.sessionId, events, lease: this.lease.proof, ...at };
    failpoint("harness.before_append");
    const receipts = await this.calls.repeat((options) => appendEvents(this.sessions, request, options));
    failpoint("harness.appended");
    this.view.appended(
      events,
      receipts.map(({ position }) => position),
    );
    await this.view.catchUp();
  }

  /** The same, but only if nothing has been appended since `state` was looked at; the news are taken in instead. */
  async appendUnlessNews(events: readonly EventInput[], { head }: { readonly head: bigint }): Promise<void> {
    try {
      await this.append(events, head);
    } catch (error) {
      if (!isTendonError(error, "POSITION_MISMATCH")) throw error;
      await this.view.refresh();
    }
  }

  /**
   * Appends a batch that answers calls. `build` gets the state anew when someone else, such as a hand, answered one of
   * them first (X3); it gives no events when nothing is left to say.
   */
  async appendAnswers(build: () => readonly EventInput[]): Promise<void> {
    for (;;) {
      const events = build();
      if (events.length === 0) return;
      try {
        return await this.append(events);
      } catch (error) {
        if (!isTendonError(error, "CALL_ALREADY_ANSWERED")) throw error;
        await this.view.refresh();
      }
    }
  }
}
