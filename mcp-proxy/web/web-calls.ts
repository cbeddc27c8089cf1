/**
 * Calls of web tools that a session's log knows (X1): each is recorded by the server before anything is sent, and its result is
 * stored before its caller is answered. A call goes on when its caller is gone; whoever asks again with its id waits for what
 * comes of it. Web tools only read, so a call whose proxy died is sent again.
 */
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { type TraceContext, type Tracing, traceHeaders } from "../../kit/trace.ts";
import { WEB_FETCH } from "../../kit/web/tool-names.ts";
import {
  type BeginWebCallResponse,
  CallState,
  type CredentialService,
} from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { McpRefusal, refusalOf } from "../mcp/refusal.ts";
import type { OutboundFetch } from "../outbound/fetch.ts";
import type { SessionCaller } from "../session-token.ts";
import { STORE_WITHIN_MS, storeResult } from "../store-result.ts";
import { step } from "../trace-steps.ts";
import { WebBounds } from "./bounds.ts";
import { WebFailure } from "./failure.ts";
import { fetchPage } from "./fetch-page.ts";
import { finishWebCall } from "./finish-web-call.ts";
import { type SearchProvider, searchWeb } from "./search-web.ts";

export interface WebCallsDeps {
  readonly credentials: Pick<
    Client<typeof CredentialService>,
    "beginWebCall" | "finishWebCall" | "finishLargeWebCall"
  >;
  /** To addresses of the public internet alone. Undefined: pages are not read here. */
  readonly fetchPublic: OutboundFetch | undefined;
  /** By the rules for the platform's own requests. */
  readonly fetch: OutboundFetch;
  /** Undefined: nothing is searched here. */
  readonly provider: SearchProvider | undefined;
  readonly clock: Clock;
  readonly log: Logger;
  readonly tracing: Tracing;
}

export interface WebCall {
  readonly caller: SessionCaller;
  readonly toolUseId: string;
  readonly trace: TraceContext | undefined;
}

interface Running {
  readonly caller: SessionCaller;
  readonly outcome: Promise<void>;
  readonly ending: AbortController;
}

interface Outcome {
  readonly content: readonly object[];
  readonly status: string;
  readonly searches: number;
}

interface Told {
  /** Gets the hosts that were asked. */
  readonly hosts: string[];
  readonly onPdf: () => void;
}

/** It repeats no URL: what a result shows may be read. */
const NOT_SHOWN =
  "this agent reads only URLs that a user has written, or that results of tools have shown, as far as its settings let these count";
const BEGIN_WITHIN_MS = 10_000;
/** Of a call in all, from its first byte to its last. */
const CALL_WITHIN_MS = 30_000;
/** Each may hold a page of 5 MiB, as bytes and as text. */
const MAX_RUNNING = 64;
const MAX_OF_SESSION = 16;
/** Each may hold 10 MiB, as bytes and as base64, until its result is stored. */
const MAX_PDFS = 8;

export class WebCalls {
  private readonly deps: WebCallsDeps;
  private readonly running = new Map<string, Running>();
  private pdfs = 0;

  constructor(deps: WebCallsDeps) {
    this.deps = deps;
  }

  /** Resolves once the result is stored. Rejects with an McpRefusal, where nothing is known to have been stored. */
  async run(call: WebCall): Promise<void> {
    const { caller, toolUseId } = call;
    const key = keyOf(caller.sessionId, toolUseId);
    const running = this.running.get(key);
    if (running !== undefined && running.caller.epoch <= caller.epoch) return running.outcome;
    this.checkRoom(caller.sessionId);
    const ending = new AbortController();
    const holds = { pdf: false };
    const outcome = this.perform(call, ending, () => this.holdPdf(holds)).finally(() => {
      if (holds.pdf) this.pdfs -= 1;
      if (this.running.get(key)?.ending === ending) this.running.delete(key);
    });
    if (running === undefined) this.running.set(key, { caller, outcome, ending });
    return outcome;
  }

  /** Ends a call that runs here; whether there is one. */
  cancel({ sessionId, epoch }: SessionCaller, toolUseId: string): boolean {
    const running = this.running.get(keyOf(sessionId, toolUseId));
    if (running === undefined || running.caller.epoch > epoch) return false;
    running.ending.abort(cancelled());
    return true;
  }

  /** The session has ended: nobody waits for these. */
  forgetSession(sessionId: string): void {
    for (const { caller, ending } of this.running.values())
      if (caller.sessionId === sessionId) ending.abort(cancelled());
  }

  private checkRoom(sessionId: string): void {
    const own = [...this.running.values()].filter(({ caller }) => caller.sessionId === sessionId).length;
    if (own >= MAX_OF_SESSION)
      throw new McpRefusal(429, "rate_limit_error", `the session runs ${own} calls of web tools`);
    if (this.running.size >= MAX_RUNNING)
      throw new McpRefusal(503, "overloaded_error", "this proxy runs as many calls of web tools as it can");
  }

  private holdPdf(holds: { pdf: boolean }): void {
    if (this.pdfs >= MAX_PDFS)
      throw new WebFailure(
        "too_many_requests",
        "so many PDFs are being read that there is no room for another now",
        "too_many_pdfs",
      );
    this.pdfs += 1;
    holds.pdf = true;
  }

  private async perform(call: WebCall, ending: AbortController, onPdf: () => void): Promise<void> {
    const begun = await this.begin(call);
    if (begun.state === CallState.FINISHED) return;
    const { clock, tracing } = this.deps;
    const startedMs = clock.monotonicMs();
    const hosts: string[] = [];
    const attributes = { "gen_ai.tool.name": begun.toolName };
    const outcome = await step(
      tracing,
      "web request",
      { parent: call.trace, kind: "client", attributes },
      async (span) => {
        const ended = await this.send(begun, { hosts, onPdf }, ending);
        if (ended instanceof WebFailure) span.end(ended.origin);
        return ended;
      },
    );
    const upstreamMs = BigInt(Math.round(clock.monotonicMs() - startedMs));
    await this.finish(call, outcome, hosts, hosts.length === 0 ? undefined : upstreamMs);
  }

  private async begin({ caller, toolUseId, trace }: WebCall): Promise<BeginWebCallResponse> {
    const { credentials, tracing } = this.deps;
    const { sessionId, epoch } = caller;
    try {
      return await step(tracing, "record call", { parent: trace, kind: "client" }, ({ context }) => {
        const options = { deadlineMs: BEGIN_WITHIN_MS, headers: traceHeaders(context) };
        return credentials.beginWebCall({ sessionId, toolUseId, epoch }, options);
      });
    } catch (error) {
      throw refusalOf(error, "") ?? error;
    }
  }

  /** Does not reject: whatever happens is a result. */
  private async send(
    begun: BeginWebCallResponse,
    told: Told,
    ending: AbortController,
  ): Promise<Outcome | WebFailure> {
    const { clock, log } = this.deps;
    const late = new WebFailure(
      "url_not_accessible",
      `it took longer than ${CALL_WITHIN_MS / 1_000} s`,
      "timeout",
    );
    const stop = clock.after(CALL_WITHIN_MS, () => ending.abort(late));
    try {
      return await this.runTool(begun, told, ending.signal);
    } catch (error) {
      const reason = ending.signal.aborted ? ending.signal.reason : error;
      if (reason instanceof WebFailure) return reason;
      log.error({ tool: begun.toolName, error: messageOf(reason) }, "a web tool failed");
      return new WebFailure("unavailable", "the tool failed with an internal error", "internal");
    } finally {
      stop();
    }
  }

  private async runTool(
    { toolName, input, bounds: toolsets, urlNotShown }: BeginWebCallResponse,
    { hosts, onPdf }: Told,
    signal: AbortSignal,
  ): Promise<Outcome> {
    const { fetchPublic, fetch, provider } = this.deps;
    const bounds = new WebBounds(toolsets);
    if (toolName === WEB_FETCH) {
      if (fetchPublic === undefined)
        throw new WebFailure("unavailable", "this installation has turned it off");
      if (urlNotShown) throw new WebFailure("url_not_in_prior_context", NOT_SHOWN);
      const onHost = (host: string) => void hosts.push(host);
      const { content, status } = await fetchPage(fetchPublic, { input, bounds, onHost, onPdf, signal });
      return { content, status: String(status), searches: 0 };
    }
    if (provider === undefined)
      throw new WebFailure("unavailable", "this installation has no search provider");
    hosts.push(new URL(provider.url).host);
    const { content, status } = await searchWeb(fetch, provider, { input, bounds, signal });
    return { content, status: String(status), searches: 1 };
  }

  private async finish(
    { caller: { sessionId }, toolUseId, trace }: WebCall,
    outcome: Outcome | WebFailure,
    hosts: readonly string[],
    upstreamMs: bigint | undefined,
  ): Promise<void> {
    const { credentials, tracing } = this.deps;
    const request = {
      ...{ sessionId, toolUseId, hosts: [...hosts] },
      ...resultOf(outcome),
      ...(upstreamMs !== undefined && { upstreamMs }),
    };
    await step(tracing, "store result", { parent: trace, kind: "client" }, ({ context }) => {
      const options = { deadlineMs: STORE_WITHIN_MS, headers: traceHeaders(context) };
      return storeResult(this.deps, request, () => finishWebCall(credentials, request, options));
    }).catch((error: unknown) => {
      throw refusalOf(error, "") ?? error;
    });
  }
}

function resultOf(outcome: Outcome | WebFailure) {
  if (outcome instanceof WebFailure) {
    const { text, origin } = outcome;
    return {
      content: JSON.stringify([{ type: "text", text }]),
      isError: true,
      failurePart: origin.part,
      failureReason: origin.reason,
      outcome: outcome.outcome,
    };
  }
  const { content, status, searches } = outcome;
  return { content: JSON.stringify(content), isError: false, outcome: status, searches };
}

function cancelled(): WebFailure {
  return new WebFailure("cancelled", "the call was ended before its answer came");
}

function keyOf(sessionId: string, toolUseId: string): string {
  return `${sessionId} ${toolUseId}`;
}
