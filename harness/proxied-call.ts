/** A call that the proxy records and runs: sent again while that may help, until the log has its result. */
import { Backoff } from "../kit/backoff.ts";
import type { Clock } from "../kit/clock.ts";
import type { FailureOrigin } from "../kit/errors.ts";
import type { Lease } from "./lease.ts";
import { McpProblem } from "./mcp-client/mcp-problem.ts";
import { resultArrived } from "./result-arrival.ts";
import type { OpenCall } from "./session-state.ts";
import type { SessionView } from "./session-view.ts";

/** `answered`: the log has the result. `failed`: there will be none; the text says why. */
export type ProxiedOutcome =
  | { readonly kind: "answered" }
  | ({ readonly kind: "failed"; readonly text: string } & FailureOrigin);

export interface ProxiedCallOptions {
  readonly lease: Lease;
  readonly view: SessionView;
  readonly clock: Clock;
}

const RETRY = { firstMs: 100, maxMs: 3_000, resetAfterMs: Number.POSITIVE_INFINITY };
/** For a proxy that starts again, or has no room. */
const RETRY_FOR_MS = 45_000;

/**
 * `send` resolves once the proxy has stored the result, and rejects with an McpProblem, or what broke the way. Resolves with
 * why there is no result where there is none. Rejects with the signal's reason when that aborts.
 */
export async function runThroughProxy(
  { lease, view, clock }: ProxiedCallOptions,
  call: OpenCall,
  signal: AbortSignal,
  send: () => Promise<void>,
): Promise<"answered" | { readonly problem: McpProblem; readonly wasSent: boolean }> {
  const backoff = new Backoff(clock, RETRY);
  const endsAtMs = clock.monotonicMs() + RETRY_FOR_MS;
  let wasSent = false;
  for (;;) {
    let problem: McpProblem;
    try {
      await send();
      if (await resultArrived({ view, clock }, call.eventId, signal)) return "answered";
      problem = new McpProblem("result_missing", "its result did not reach the log", true);
    } catch (error) {
      signal.throwIfAborted();
      problem = error instanceof McpProblem ? error : new McpProblem("proxy_unreachable", "it broke", true);
      wasSent ||= !(error instanceof McpProblem);
    }
    await view.refresh();
    if (!view.state.openCalls.has(call.eventId)) return "answered";
    if (problem.type === "lease_fenced_error") lease.end("a newer brain holds the session");
    lease.signal.throwIfAborted();
    if (!problem.mayPass || clock.monotonicMs() > endsAtMs) return { problem, wasSent };
    await clock.sleep(backoff.nextDelayMs(), signal);
  }
}
