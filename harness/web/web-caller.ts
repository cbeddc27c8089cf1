/** Calls of web tools, which the proxy runs and records (X1, X3). */
import type { Clock } from "../../kit/clock.ts";
import type { Assignment } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import type { Lease } from "../lease.ts";
import { wholeText } from "../mcp-client/json-rpc-answer.ts";
import { McpProblem, originOfProblem, problemOf } from "../mcp-client/mcp-problem.ts";
import type { ProxyResponse, SendToProxy } from "../mcp-client/proxy-request.ts";
import { type ProxiedOutcome, runThroughProxy } from "../proxied-call.ts";
import type { OpenCall } from "../session-state.ts";
import type { SessionView } from "../session-view.ts";

export interface WebCallerOptions {
  readonly assignment: Pick<Assignment, "proxyUrl">;
  readonly sendToProxy: SendToProxy;
  readonly lease: Lease;
  readonly clock: Clock;
}

const CANCEL_WITHIN_MS = 3_000;

export class WebCaller {
  private readonly options: WebCallerOptions;
  private readonly view: SessionView;

  constructor(options: WebCallerOptions, view: SessionView) {
    this.options = options;
    this.view = view;
  }

  /** Resolves once the call has its result, or none can be had. Rejects with the signal's reason when that aborts. */
  async run(
    call: OpenCall,
    signal: AbortSignal,
    headers: Readonly<Record<string, string>>,
  ): Promise<ProxiedOutcome> {
    const { lease, clock } = this.options;
    const send = () => this.send(call, signal, headers);
    const ended = await runThroughProxy({ lease, clock, view: this.view }, call, signal, send);
    if (ended === "answered") return { kind: "answered" };
    const { problem } = ended;
    // Nothing but reading can have happened, so it may be asked for again.
    return {
      kind: "failed",
      text: `The tool could not be run: ${problem.message}.`,
      ...originOfProblem(problem),
    };
  }

  /** Ends a call; never rejects. Whether its result is to come by the log. */
  async cancel(call: OpenCall): Promise<boolean> {
    const limit = new AbortController();
    const stop = this.options.clock.after(CANCEL_WITHIN_MS, () => limit.abort());
    const signal = AbortSignal.any([limit.signal, this.options.lease.signal]);
    try {
      const response = await this.request("DELETE", call, signal, {});
      await wholeText(response);
      return response.status < 300;
    } catch {
      return false;
    } finally {
      stop();
    }
  }

  /** What is called stands in the log, so only its id is said. */
  private async send(
    call: OpenCall,
    signal: AbortSignal,
    headers: Readonly<Record<string, string>>,
  ): Promise<void> {
    if (this.options.assignment.proxyUrl === "")
      throw new McpProblem("proxy_unreachable", "no proxy is connected to the server", true);
    const response = await this.request("POST", call, signal, headers);
    const text = await wholeText(response);
    if (response.status >= 300) throw problemOf(response.status, text);
  }

  private async request(
    method: "POST" | "DELETE",
    call: OpenCall,
    signal: AbortSignal,
    more: Readonly<Record<string, string>>,
  ): Promise<ProxyResponse> {
    const { assignment, lease, sendToProxy } = this.options;
    const url = `${assignment.proxyUrl}/web/${lease.sessionId}/${encodeURIComponent(call.eventId)}`;
    const headers = { ...more, authorization: `Bearer ${lease.sessionToken}` };
    try {
      return await sendToProxy({ method, url, headers, signal });
    } catch (error) {
      signal.throwIfAborted();
      const code = (error as NodeJS.ErrnoException).code ?? "broken";
      throw new McpProblem("proxy_unreachable", `the proxy cannot be reached (${code})`, true);
    }
  }
}
