/**
 * Calls that a session's log knows (X1): each is recorded by the server before it is sent, and its result is stored before
 * anybody gets it. A call goes on when its caller is gone; whoever asks again with its id gets what came of it.
 *
 * M1 Nothing is sent before the server said BEGUN, or said UNKNOWN and a repeat does no harm. It says so in the answer that
 *    also tells where the MCP server is and with which credential: one question, one commit.
 * M2 A call that was begun ends in FinishCall whatever happens, unless this process dies.
 */
import type { Clock } from "../../kit/clock.ts";
import { failpoint } from "../../kit/failpoint.ts";
import type { Logger } from "../../kit/log.ts";
import type { Client } from "../../kit/rpc/client.ts";
import { type TraceContext, type Tracing, traceHeaders } from "../../kit/trace.ts";
import { CallState, type CredentialService } from "../../proto/gen/tendon/v1/credential_service_pb.js";
import type { SessionCaller } from "../session-token.ts";
import { STORE_WITHIN_MS, storeResult } from "../store-result.ts";
import { step } from "../trace-steps.ts";
import { readAnswer } from "./call-answer.ts";
import {
  type CallResult,
  cancelledResult,
  failedResult,
  refusedResult,
  unknownResult,
  wantsInput,
} from "./call-results.ts";
import { Liveness } from "./liveness.ts";
import { type ResolvedServer, resolveMcpServer } from "./mcp-servers.ts";
import type { McpMessage } from "./message.ts";
import { McpRefusal, refusalOf, ToolDisabled, UpstreamFailure } from "./refusal.ts";
import { answersProbe, mayRepeat } from "./side-requests.ts";
import type { Exchange, Upstream } from "./upstream.ts";

export interface RecordedCallsDeps {
  readonly credentials: Pick<
    Client<typeof CredentialService>,
    "resolveMcpServer" | "beginCall" | "finishCall"
  >;
  readonly upstream: Upstream;
  readonly clock: Clock;
  readonly log: Logger;
  readonly tracing: Tracing;
}

export interface RecordedCall {
  readonly toolUseId: string;
  readonly caller: SessionCaller;
  readonly serverName: string;
  /** Of the client's request. */
  readonly headers: Exchange["headers"];
  readonly body: Buffer;
  readonly trace: TraceContext | undefined;
  readonly message: McpMessage & { readonly idText: string; readonly toolName: string };
  /** What comes before the result; resolves when there is room for more. */
  readonly onEvent: (event: Buffer) => Promise<void>;
}

/** A call that the server has let through, and whom it goes to. */
interface BegunCall extends RecordedCall {
  readonly exchange: Omit<Exchange, "signal" | "answerWithinMs">;
}

interface Running {
  readonly call: RecordedCall;
  readonly outcome: Promise<string>;
  readonly ending: AbortController;
}

/** Of a call in all. */
const CALL_WITHIN_MS = 3_600_000;
const MAX_RUNNING = 5_000;
const MAX_OPEN = 10_000;
/** A server that was told of the end may still answer. */
const CANCEL_AFTER_MS = 3_000;

class CallEnded extends Error {
  readonly result: CallResult;
  constructor(result: CallResult) {
    super("the call was ended");
    this.result = result;
  }
}

export class RecordedCalls {
  private readonly deps: RecordedCallsDeps;
  private readonly running = new Map<string, Running>();
  /** Begun, and known not to have been taken up by the server, or to wait for its client: these may be sent again. */
  private readonly open = new Set<string>();

  constructor(deps: RecordedCallsDeps) {
    this.deps = deps;
  }

  /**
   * JSON text of the result that stands. Rejects with an McpRefusal, where nothing is known to have been stored: with
   * ToolDisabled when the agent disables the tool.
   */
  async run(call: RecordedCall): Promise<string> {
    const key = keyOf(call.caller.sessionId, call.toolUseId);
    const running = this.running.get(key);
    if (running !== undefined) {
      // Who asks again is checked like everybody.
      await this.resolve(call, "");
      return running.outcome;
    }
    if (this.running.size >= MAX_RUNNING) {
      throw new McpRefusal(503, "overloaded_error", "this proxy runs as many calls as it can");
    }
    const ending = new AbortController();
    const outcome = this.perform(key, call, ending).finally(() => this.running.delete(key));
    this.running.set(key, { call, outcome, ending });
    return outcome;
  }

  /** Ends a call that runs here; whether there is one. */
  cancel(sessionId: string, toolUseId: string): boolean {
    const running = this.running.get(keyOf(sessionId, toolUseId));
    running?.ending.abort(new CallEnded(cancelledResult()));
    return running !== undefined;
  }

  /** The client has told the server of the end of a request; a server that was told need not answer. */
  cancelled({ caller, server }: Pick<Exchange, "caller" | "server">, idText: string): void {
    for (const { call, ending } of this.running.values()) {
      const isIt = call.caller.sessionId === caller.sessionId && call.serverName === server.name;
      if (isIt && call.message.idText === idText)
        this.deps.clock.after(CANCEL_AFTER_MS, () => ending.abort(new CallEnded(cancelledResult())));
    }
  }

  /** The session has ended: nobody waits for these. */
  forgetSession(sessionId: string): void {
    for (const { call, ending } of this.running.values()) {
      if (call.caller.sessionId === sessionId) ending.abort(new CallEnded(cancelledResult()));
    }
  }

  /** Throws ToolDisabled. With a `toolUseId` the call is recorded by the time that this resolves. */
  private async resolve(
    { caller, serverName, trace, message: { toolName } }: RecordedCall,
    toolUseId: string,
  ): Promise<ResolvedServer> {
    const request = { serverName, toolName, toolUseId, withCredential: toolUseId !== "" };
    const resolved = await resolveMcpServer(this.deps, caller, request, trace).catch((error: unknown) => {
      throw refusalOf(error, serverName) ?? error;
    });
    if (!resolved.server.allows(toolName)) throw new ToolDisabled(toolName);
    return resolved;
  }

  private async perform(key: string, asked: RecordedCall, ending: AbortController): Promise<string> {
    const { serverName, caller, headers, body, trace } = asked;
    const { server, credential, call: begun } = await this.resolve(asked, asked.toolUseId);
    if (begun === undefined) throw new McpRefusal(503, "overloaded_error", "the server records no calls");
    if (begun.state === CallState.FINISHED) return begun.result;
    const call = {
      ...asked,
      exchange: { caller, server, method: "POST", headers, body, credential, trace },
    } as const;
    const wasOpen = this.open.delete(key);
    if (begun.state === CallState.UNKNOWN && !wasOpen && !(await this.doesNoHarm(call))) {
      return this.finish(call, unknownResult(serverName, "whoever sent it is gone"));
    }
    failpoint("proxy.mcp_call_begun");
    const sentAtMs = this.deps.clock.monotonicMs();
    const result = await this.send(call, ending);
    const upstreamMs = Math.round(this.deps.clock.monotonicMs() - sentAtMs);
    failpoint("proxy.mcp_answered");
    if (result === "not_taken") {
      this.leaveOpen(key);
      throw new McpRefusal(
        404,
        "not_found_error",
        "there is no such MCP session; open another and call again",
      );
    }
    if (wantsInput(result)) {
      this.leaveOpen(key);
      return result.text;
    }
    return this.finish(call, result, upstreamMs);
  }

  private async doesNoHarm({
    exchange: { credential: _, ...exchange },
    message,
  }: BegunCall): Promise<boolean> {
    try {
      return await mayRepeat(this.deps.upstream, exchange, message);
    } catch {
      return false;
    }
  }

  private leaveOpen(key: string): void {
    this.open.add(key);
    const oldest = this.open.size > MAX_OPEN ? this.open.values().next().value : undefined;
    if (oldest !== undefined) this.open.delete(oldest);
  }

  /** Does not reject: whatever happens is a result. */
  private async send(call: BegunCall, ending: AbortController): Promise<CallResult | "not_taken"> {
    const { exchange, message, onEvent } = call;
    const { upstream, clock } = this.deps;
    const serverName = exchange.server.name;
    const hangs = new UpstreamFailure(serverName, "has stopped to answer", true);
    const { credential: _, ...without } = exchange;
    const probe = () => answersProbe(upstream, without, ending.signal);
    const liveness = new Liveness(clock, probe, () => ending.abort(hangs));
    const timedOut = failedResult(
      { part: "upstream", reason: "TIMED_OUT" },
      `The call of MCP server "${serverName}" took longer than ${CALL_WITHIN_MS / 60_000} minutes and was given up.`,
    );
    const stop = clock.after(CALL_WITHIN_MS, () => ending.abort(new CallEnded(timedOut)));
    try {
      const answer = await upstream.exchange({
        ...exchange,
        signal: ending.signal,
        answerWithinMs: undefined,
      });
      liveness.heard();
      if (answer.response.status === 404 && exchange.headers["mcp-session-id"] !== undefined) {
        await answer.response.body?.cancel();
        return "not_taken";
      }
      const reader = { serverName, idText: message.idText, onEvent, onBytes: () => liveness.heard() };
      const result = await readAnswer(answer, reader);
      if (result !== undefined) return result;
      return unknownResult(serverName, "its answer ended without a result");
    } catch (error) {
      const reason = ending.signal.aborted ? ending.signal.reason : error;
      if (reason instanceof CallEnded) return reason.result;
      const refusal = refusalOf(reason, serverName);
      if (refusal === undefined) return unknownResult(serverName, "the connection broke");
      return refusedResult(refusal, serverName, refusal instanceof UpstreamFailure && refusal.sent);
    } finally {
      liveness.end();
      stop();
    }
  }

  /** `upstreamMs`: how long the MCP server had the call; undefined: it was not sent. */
  private finish(call: RecordedCall, result: CallResult, upstreamMs?: number): Promise<string> {
    const { tracing } = this.deps;
    return step(tracing, "store result", { parent: call.trace, kind: "client" }, ({ context }) =>
      this.store(call, result, upstreamMs, traceHeaders(context)),
    );
  }

  private async store(
    { caller: { sessionId }, serverName, toolUseId }: RecordedCall,
    { text, failure }: CallResult,
    upstreamMs: number | undefined,
    headers: Readonly<Record<string, string>>,
  ): Promise<string> {
    const request = {
      sessionId,
      toolUseId,
      result: text,
      failurePart: failure?.part ?? "",
      failureReason: failure?.reason ?? "",
      ...(upstreamMs !== undefined && { upstreamMs: BigInt(upstreamMs) }),
    };
    const options = { deadlineMs: STORE_WITHIN_MS, headers };
    try {
      const store = () => this.deps.credentials.finishCall(request, options);
      return (await storeResult(this.deps, request, store)).result;
    } catch (error) {
      throw refusalOf(error, serverName) ?? error;
    }
  }
}

function keyOf(sessionId: string, toolUseId: string): string {
  return `${sessionId} ${toolUseId}`;
}
