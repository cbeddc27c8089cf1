/**
 * Spans of what the proxy does for a request that belongs to a trace. It begins none by itself: what nobody follows would drown
 * the rest. Names, hosts, statuses and reasons, never a header, a path or a body (T2); nothing of it goes on to MCP servers.
 */
import { type FailureOrigin, isTendonError, originOf } from "../kit/errors.ts";
import { NO_TRACING, type Span, type SpanKind, type TraceContext, type Tracing } from "../kit/trace.ts";
import { CredentialRefusal } from "./credentials/refusal.ts";
import { McpRefusal, refusalOf, UpstreamFailure } from "./mcp/refusal.ts";

export interface StepOptions {
  /** Undefined: no span is made. */
  readonly parent: TraceContext | undefined;
  readonly kind?: SpanKind;
  readonly attributes?: Readonly<Record<string, string | number | boolean>>;
}

/** Runs `run` under a span, which says where it failed when it rejects. */
export async function step<T>(
  tracing: Tracing,
  name: string,
  { parent, ...options }: StepOptions,
  run: (span: Span) => Promise<T>,
): Promise<T> {
  const span = (parent === undefined ? NO_TRACING : tracing).start(name, { parent, ...options });
  try {
    const value = await run(span);
    span.end();
    return value;
  } catch (error) {
    span.end(originOfFailure(error));
    throw error;
  }
}

function originOfFailure(error: unknown): FailureOrigin {
  if (error instanceof CredentialRefusal) return { part: "proxy", reason: error.reason };
  if (error instanceof UpstreamFailure) return { part: "upstream", reason: "MCP_CONNECTION_FAILED" };
  if (error instanceof McpRefusal) {
    const part = error.type === "mcp_authentication_failed_error" ? "upstream" : "proxy";
    return { part, reason: error.type.replace(/_error$/, "").toUpperCase() };
  }
  if (isTendonError(error)) return originOf(error);
  const refusal = refusalOf(error, "");
  return refusal === undefined ? { part: "proxy", reason: "INTERNAL" } : originOfFailure(refusal);
}
