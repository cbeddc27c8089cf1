/**
 * Has hands run calls. The call's event is in the log before; its id names the execution, so asking again attaches to what
 * runs instead of running it twice (X1). The server appends the result, and the log is where it is read.
 */
import { Backoff } from "../kit/backoff.ts";
import type { Clock } from "../kit/clock.ts";
import { type FailureOrigin, isTendonError, messageOf, originOf } from "../kit/errors.ts";
import { failpoint } from "../kit/failpoint.ts";
import type { Client } from "../kit/rpc/client.ts";
import type { HandService } from "../proto/gen/tendon/v1/hand_service_pb.js";
import type { Lease } from "./lease.ts";
import { resultArrived } from "./result-arrival.ts";
import { judgeFailure, MAX_BROKEN } from "./server-failure.ts";
import type { OpenCall } from "./session-state.ts";
import type { SessionView } from "./session-view.ts";
import type { TurnTrace } from "./turn-trace.ts";

export interface HandCallerOptions {
  readonly hands: Client<typeof HandService>;
  readonly lease: Lease;
  readonly view: SessionView;
  readonly clock: Clock;
  readonly trace: TurnTrace;
}

/** `answered`: the log has the result. `offered`: a worker is to run it, and its result comes by the log. `failed`: there will be none; the text says why. */
export type CallOutcome =
  | { readonly kind: "answered" }
  | { readonly kind: "offered" }
  | ({ readonly kind: "failed"; readonly text: string } & FailureOrigin);

const RETRY = { firstMs: 50, maxMs: 2_000, resetAfterMs: 10_000 };
/** Streams in a row that ended well but whose result the log does not have. */
const MAX_MISSING_RESULTS = 20;
const CANCEL_DEADLINE_MS = 5_000;
const RESULT_MISSING: FailureOrigin = { part: "server", reason: "RESULT_MISSING" };
const OUTCOME_UNKNOWN: FailureOrigin = { part: "server", reason: "OUTCOME_UNKNOWN" };
const BUG: FailureOrigin = { part: "harness", reason: "INTERNAL" };
const UNKNOWN_OUTCOME =
  "The platform failed while this call ran, so its outcome is not known: it may have run, in part or whole.";

export class HandCaller {
  private readonly options: HandCallerOptions;

  constructor(options: HandCallerOptions) {
    this.options = options;
  }

  /** Resolves once the call has its result, or none can be had. Rejects with the signal's reason when that aborts. */
  run(call: OpenCall, signal: AbortSignal): Promise<CallOutcome> {
    return this.options.trace.sentCall(call, (headers) => this.settle(call, signal, headers));
  }

  private async settle(
    call: OpenCall,
    signal: AbortSignal,
    headers: Readonly<Record<string, string>>,
  ): Promise<CallOutcome> {
    const { clock, lease, view } = this.options;
    const backoff = new Backoff(clock, RETRY);
    let missing = 0;
    let broken = 0;
    for (;;) {
      try {
        if ((await this.follow(call, signal, headers)) === "offered") return { kind: "offered" };
        if (await resultArrived(this.options, call.eventId, signal)) return { kind: "answered" };
        missing += 1;
        if (missing >= MAX_MISSING_RESULTS) return failed("its result did not reach the log", RESULT_MISSING);
      } catch (error) {
        signal.throwIfAborted();
        const verdict = judgeFailure(error);
        if (verdict === "over") lease.end(messageOf(error));
        lease.signal.throwIfAborted();
        if (verdict === "final") {
          return isTendonError(error)
            ? failed(error.message, originOf(error))
            : failed("internal error", BUG);
        }
        if (!view.state.openCalls.has(call.eventId)) return { kind: "answered" };
        broken = verdict === "broken" ? broken + 1 : 0;
        if (broken >= MAX_BROKEN) return { kind: "failed", text: UNKNOWN_OUTCOME, ...OUTCOME_UNKNOWN };
      }
      await clock.sleep(backoff.nextDelayMs(), signal);
    }
  }

  /** Ends an execution; never rejects. Whether a result of it is to come by the log. */
  async cancel(call: OpenCall): Promise<boolean> {
    const { hands, lease } = this.options;
    const request = { sessionId: lease.sessionId, executionId: call.eventId, lease: lease.proof };
    return hands.cancelExecution(request, { signal: lease.signal, deadlineMs: CANCEL_DEADLINE_MS }).then(
      () => true,
      (error) => !isTendonError(error, "NOT_FOUND"),
    );
  }

  /** Reads one stream to its end. The server shows the output to watchers; here it is only passed over. */
  private async follow(
    call: OpenCall,
    signal: AbortSignal,
    headers: Readonly<Record<string, string>>,
  ): Promise<"ended" | "offered"> {
    const { hands, lease } = this.options;
    const request = {
      sessionId: lease.sessionId,
      executionId: call.eventId,
      slot: call.slot,
      name: call.name,
      input: call.input,
      declaredSlotsOnly: call.isReached,
      lease: lease.proof,
    };
    failpoint("harness.before_dispatch");
    for await (const { kind } of hands.execute(request, { signal, headers })) {
      if (kind.case === "bound") failpoint("harness.dispatched");
      if (kind.case === "output") failpoint("harness.output");
      if (kind.case === "offered") return "offered";
      if (kind.case !== "result") continue;
      failpoint("harness.result_received");
      break;
    }
    return "ended";
  }
}

function failed(why: string, origin: FailureOrigin): CallOutcome {
  return { kind: "failed", text: `The tool could not be run: ${why}.`, ...origin };
}
