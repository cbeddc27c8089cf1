/** Gives calls their results, side by side: runs those that may run, and says why the others do not (X3). */
import { type Clock, within } from "../kit/clock.ts";
import type { Client } from "../kit/rpc/client.ts";
import type { HandService } from "../proto/gen/tendon/v1/hand_service_pb.js";
import { errorResult } from "./brain-events.ts";
import { HandCaller } from "./hand-caller.ts";
import type { Lease } from "./lease.ts";
import type { LogWriter } from "./log-writer.ts";
import { isRunnable } from "./next-step.ts";
import type { OpenCall } from "./session-state.ts";
import type { SessionView } from "./session-view.ts";

export interface CallRunnerOptions {
  readonly hands: Client<typeof HandService>;
  readonly lease: Lease;
  readonly view: SessionView;
  readonly writer: LogWriter;
  readonly clock: Clock;
}

/** A cancelled call's processes are killed within 3 s; after this its result is written here. */
const CANCELLED_RESULT_WAIT_MS = 5_000;

export class CallRunner {
  private readonly options: CallRunnerOptions;
  private readonly hands: HandCaller;

  constructor(options: CallRunnerOptions) {
    this.options = options;
    this.hands = new HandCaller(options);
  }

  /** Resolves when no call is left that can get its result without a client; also takes up calls that become so meanwhile. */
  async run(signal: AbortSignal): Promise<void> {
    const { view } = this.options;
    const running = new Map<string, Promise<void>>();
    for (;;) {
      for (const call of view.state.openCalls.values()) {
        if (!isRunnable(call) || running.has(call.eventId)) continue;
        const settled = this.settle(call, signal).then(() => {
          running.delete(call.eventId);
        });
        // A failure is seen by the race below; the others must not go unhandled.
        settled.catch(() => {});
        running.set(call.eventId, settled);
      }
      if (running.size === 0) return;
      const leave = new AbortController();
      const isNew = (call: OpenCall) => isRunnable(call) && !running.has(call.eventId);
      const newCall = view.until(
        () => [...view.state.openCalls.values()].some(isNew),
        AbortSignal.any([signal, leave.signal]),
      );
      newCall.catch(() => {});
      await Promise.race([...running.values(), newCall]);
      leave.abort();
    }
  }

  /** Cancels calls that may run somewhere, and waits a bounded time for the results that tell what happened. */
  async cancelAll(calls: readonly OpenCall[]): Promise<void> {
    const { view, lease, clock } = this.options;
    const allowed = calls.filter((call) => call.kind === "hand" && refusalOf(call) === undefined);
    const isExpected = await Promise.all(allowed.map((call) => this.hands.cancel(call)));
    const sent = allowed.filter((_, i) => isExpected[i]);
    if (sent.length === 0) return;
    const leave = new AbortController();
    const answered = view.until(
      () => sent.every(({ eventId }) => !view.state.openCalls.has(eventId)),
      AbortSignal.any([lease.signal, leave.signal]),
    );
    await within(clock, CANCELLED_RESULT_WAIT_MS, answered, () => new Error("late")).catch(() => {});
    leave.abort();
    lease.signal.throwIfAborted();
    await view.refresh();
  }

  private async settle(call: OpenCall, signal: AbortSignal): Promise<void> {
    const refusal = refusalOf(call);
    if (refusal !== undefined) return this.refuse(call, refusal);
    const outcome = await this.hands.run(call, signal);
    if (outcome.kind === "failed") await this.refuse(call, outcome.text);
  }

  private async refuse(call: OpenCall, text: string): Promise<void> {
    const { writer, view } = this.options;
    const stillOpen = () => view.state.openCalls.has(call.eventId);
    await writer.appendAnswers(() =>
      stillOpen() ? [errorResult(writer.newEventId(), call.eventId, text)] : [],
    );
  }
}

/** Why the call does not run; undefined when it may. */
function refusalOf(call: OpenCall): string | undefined {
  if (call.kind === "other") return `No part of this installation can run "${call.name}".`;
  if (call.permission === "deny") return `"${call.name}" is not allowed, so it did not run.`;
  if (call.confirmation?.allowed === false) {
    const why = call.confirmation.message;
    return why === "" ? "The user denied this call." : `The user denied this call: ${why}`;
  }
  return undefined;
}
