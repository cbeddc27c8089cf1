/**
 * Whether a session rests: its newest word is that it is idle, and nothing waits that asks for a brain. An idle event alone
 * does not say so: a message that was queued during the turn starts the next one.
 */
import { outcomeIdOf } from "../kit/ids.ts";
import type { Event } from "../proto/gen/tendon/v1/event_pb.js";
import { consumedIds, objectOf, payloadOf, stopReasonOf, stringOf } from "./event-payload.ts";

type Seen = Pick<Event, "id" | "type" | "payload" | "threadId">;

/** Types that the state is folded from. */
export const REST_TYPES: readonly string[] = [
  "user.message",
  "user.define_outcome",
  "span.outcome_evaluation_end",
  "user.interrupt",
  "user.tool_confirmation",
  "user.custom_tool_result",
  "user.tool_result",
  "agent.thread_message_received",
  "brain.inputs_consumed",
  "session.forked",
  "session.status_running",
  "session.status_rescheduled",
  "session.status_idle",
  "session.status_terminated",
];

/** Of each kind; older ones are forgotten, as if they had been taken in. */
const MAX_KEPT = 10_000;

export class RestState {
  /** Why the session is idle; undefined while it works. */
  private idle: string | undefined = "end_turn";
  /** Calls that the newest idle event says wait for a client. */
  private awaited: readonly string[] = [];
  private readonly messages = new Set<string>();
  private readonly interrupts = new Set<string>();
  private readonly answered = new Set<string>();
  /** It was stopped: what threads say starts nothing until a user, or who made this thread, has said something. */
  private isHeld = false;

  /** Takes in the next event of the log; events of other types may be left out. */
  take(event: Seen): void {
    if (event.threadId !== "") return;
    switch (event.type) {
      case "user.message":
      case "user.define_outcome":
      case "agent.thread_message_received":
        this.hear(event);
        break;
      case "span.outcome_evaluation_end":
        this.forgetOutcome(stringOf(payloadOf(event).outcome_id));
        break;
      case "user.interrupt":
        keep(this.interrupts, event.id);
        if (payloadOf(event).keeps_queued === true) this.isHeld = true;
        break;
      case "user.tool_confirmation":
      case "user.custom_tool_result":
      case "user.tool_result":
        keep(this.answered, answeredCall(event));
        break;
      case "brain.inputs_consumed":
        for (const id of consumedIds(event)) {
          this.messages.delete(id);
          this.interrupts.delete(id);
        }
        break;
      case "session.status_running":
      case "session.status_rescheduled":
        this.idle = undefined;
        break;
      case "session.forked":
        this.idle = "end_turn";
        break;
      default:
        this.rest(event);
    }
  }

  /** Such as "end_turn", "requires_action", "retries_exhausted" or "terminated"; undefined while there is something to do. */
  get reason(): string | undefined {
    const { idle } = this;
    if (idle === undefined || idle === "terminated") return idle;
    if (this.interrupts.size > 0) return undefined;
    // It goes on by itself.
    if (idle === "waiting_for_threads" || idle === WAITS_FOR_WORKERS) return undefined;
    if (idle === "budget_reached") return idle;
    // Messages wait until the calls are answered.
    if (idle === "requires_action")
      return this.awaited.some((id) => this.answered.has(id)) ? undefined : idle;
    return this.messages.size > 0 ? undefined : idle;
  }

  private hear(event: Seen): void {
    if (event.type.startsWith("user.") || payloadOf(event).from_parent === true) this.isHeld = false;
    if (!this.isHeld) keep(this.messages, event.id);
  }

  /** One that ends before a brain has taken it in waits for none any more. */
  private forgetOutcome(outcomeId: string): void {
    for (const id of this.messages) if (outcomeIdOf(id) === outcomeId) this.messages.delete(id);
  }

  private rest(event: Seen): void {
    const reason = stopReasonOf(event);
    if (reason === undefined) return;
    const { event_ids: ids } = objectOf(payloadOf(event).stop_reason);
    this.awaited = reason === "requires_action" && Array.isArray(ids) ? ids.map(stringOf) : [];
    const { worker_calls: ofWorkers } = payloadOf(event);
    const areWorkers = Array.isArray(ofWorkers) && ofWorkers.length === this.awaited.length;
    this.idle = reason === "requires_action" && areWorkers ? WAITS_FOR_WORKERS : reason;
    if (payloadOf(event).keeps_queued === true) this.isHeld = true;
    // What waited then goes on waiting for a new message.
    if (reason === "retries_exhausted" || payloadOf(event).keeps_queued === true) this.messages.clear();
  }
}

/** Nobody but workers of a self-hosted environment is waited for. */
const WAITS_FOR_WORKERS = "waiting_for_workers";

function answeredCall(event: Seen): string {
  const payload = payloadOf(event);
  return stringOf(payload.tool_use_id ?? payload.custom_tool_use_id);
}

function keep(ids: Set<string>, id: string): void {
  ids.add(id);
  if (ids.size > MAX_KEPT) ids.delete(ids.values().next().value!);
}
