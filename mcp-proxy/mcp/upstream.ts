/**
 * One HTTP exchange with an MCP server: the session's credential goes in, a token that is over is renewed once, and an MCP
 * session that the server has forgotten is opened again.
 */
import type { Clock } from "../../kit/clock.ts";
import type { TraceContext, Tracing } from "../../kit/trace.ts";
import { hostOf } from "../../kit/vault/destination.ts";
import { CredentialPurpose } from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { bearerChallenge } from "../credentials/connect/challenge.ts";
import type { Credentials, Grant, Resolved } from "../credentials/credentials.ts";
import { isScope } from "../credentials/oauth/token-endpoint.ts";
import type { OutboundFetch } from "../outbound/fetch.ts";
import type { SessionCaller } from "../session-token.ts";
import { step } from "../trace-steps.ts";
import type { McpServerOfSession } from "./mcp-servers.ts";
import type { McpSessions } from "./mcp-sessions.ts";
import { authenticationFailed, refusalOf, UpstreamFailure } from "./refusal.ts";

export interface Exchange {
  readonly caller: SessionCaller;
  readonly server: McpServerOfSession;
  readonly method: "POST" | "GET" | "DELETE";
  /** Those of the client that go on, in lower case; see `passedHeaders`. */
  readonly headers: Readonly<Record<string, string>>;
  readonly body?: Buffer | undefined;
  readonly signal: AbortSignal;
  /** What was found with the server, for the first request of the exchange; undefined: it is asked for. */
  readonly credential?: Resolved | undefined;
  /** Where its steps stand; undefined: nowhere. */
  readonly trace?: TraceContext | undefined;
  /** How long the answer's head may take; undefined: the caller watches by itself. */
  readonly answerWithinMs: number | undefined;
}

export interface Answer {
  readonly response: Response;
  /** To take out of what comes. */
  readonly secrets: readonly string[];
  readonly grant: Grant | undefined;
}

export interface UpstreamDeps {
  readonly credentials: Pick<Credentials, "grant">;
  readonly fetch: OutboundFetch;
  readonly sessions: McpSessions;
  readonly clock: Clock;
  readonly tracing: Tracing;
}

export const SESSION_HEADER = "mcp-session-id";

export class Upstream {
  private readonly deps: UpstreamDeps;

  constructor(deps: UpstreamDeps) {
    this.deps = deps;
  }

  /** Rejects with an McpRefusal. */
  async exchange(exchange: Exchange): Promise<Answer> {
    const { sessions } = this.deps;
    const known = sessions.find(exchange);
    const first = await this.send(exchange, known?.currentId, exchange.credential);
    if (first.response.status !== 404 || known === undefined || exchange.method !== "POST") return first;
    // The server has forgotten the MCP session: it has not looked at the message, so that may be sent again.
    const reopen = (opening: Buffer) =>
      step(this.deps.tracing, "open MCP session", { parent: exchange.trace }, ({ context }) =>
        this.open({ ...exchange, trace: context }, opening),
      );
    const renewing = sessions.renew(known, first.usedId, reopen);
    const renewedId = await renewing.catch(async (error: unknown) => {
      await first.response.body?.cancel();
      throw error;
    });
    if (renewedId === undefined) return first;
    await first.response.body?.cancel();
    return this.send(exchange, renewedId);
  }

  /** `initialize` once more, as the client had sent it. Undefined when the server does not open a session. */
  private async open(exchange: Exchange, opening: Buffer): Promise<string | undefined> {
    const { [SESSION_HEADER]: _, ...headers } = exchange.headers;
    const signal = AbortSignal.any([]);
    const initialize = { ...exchange, headers, body: opening, answerWithinMs: OPEN_WITHIN_MS, signal };
    const { response } = await this.send(initialize, undefined);
    const id = response.headers.get(SESSION_HEADER) ?? undefined;
    await response.body?.cancel();
    if (!response.ok || id === undefined) return undefined;
    const body = Buffer.from('{"jsonrpc":"2.0","method":"notifications/initialized"}');
    const told = await this.send({ ...initialize, body, headers: { ...exchange.headers } }, id);
    await told.response.body?.cancel();
    return id;
  }

  private async send(
    exchange: Exchange,
    mcpSessionId: string | undefined,
    found?: Resolved,
  ): Promise<Answer & { usedId: string }> {
    const { caller, server } = exchange;
    const usedId = mcpSessionId ?? exchange.headers[SESSION_HEADER] ?? "";
    try {
      const purpose = CredentialPurpose.MCP as const;
      const need = { ...caller, destination: server.url, purpose, trace: exchange.trace };
      let grant = await this.deps.credentials.grant(need, found);
      let response = await this.request(exchange, usedId, grant);
      if (response.status === 401) {
        await response.body?.cancel();
        grant = await grant?.renewed();
        if (grant === undefined)
          throw authenticationFailed(server.name, "refuses the credential, or wants one (401)");
        response = await this.request(exchange, usedId, grant);
      }
      this.judge(exchange, response, grant);
      this.deps.sessions.used(exchange, grant);
      return { response, secrets: grant?.secrets ?? [], grant, usedId };
    } catch (error) {
      if (exchange.signal.aborted) throw exchange.signal.reason;
      throw refusalOf(error, server.name) ?? error;
    }
  }

  /** The span is over when the answer's head has come. */
  private request(exchange: Exchange, usedId: string, grant: Grant | undefined): Promise<Response> {
    const attributes = { "server.address": hostOf(exchange.server.url) };
    const options = { parent: exchange.trace, kind: "client" as const, attributes };
    return step(this.deps.tracing, "upstream request", options, async (span) => {
      const response = await this.requestNow(exchange, usedId, grant);
      span.set({ "http.response.status_code": response.status });
      return response;
    });
  }

  private async requestNow(exchange: Exchange, usedId: string, grant: Grant | undefined): Promise<Response> {
    const { server, method, body, signal, answerWithinMs } = exchange;
    const limit = new AbortController();
    const late = () =>
      limit.abort(
        new UpstreamFailure(server.name, `did not answer within ${answerWithinMs! / 1000} s`, true),
      );
    const stop = answerWithinMs === undefined ? () => {} : this.deps.clock.after(answerWithinMs, late);
    const headers = {
      ...exchange.headers,
      "accept-encoding": "identity",
      ...(usedId !== "" && { [SESSION_HEADER]: usedId }),
      ...grant?.headers,
    };
    try {
      const response = await this.deps.fetch(server.url, {
        method,
        headers,
        body,
        signal: AbortSignal.any([signal, limit.signal]),
        redirect: "same-origin",
        sessionId: exchange.caller.sessionId,
        pool: server.pool,
      });
      grant?.used(String(response.status));
      return response;
    } catch (error) {
      if (!signal.aborted) grant?.used("unreachable");
      throw error;
    } finally {
      stop();
    }
  }

  /** What is no answer of an MCP server. */
  private judge({ server }: Exchange, { status, headers }: Response, grant: Grant | undefined): void {
    const missingScope = status === 403 ? missingScopeOf(headers, grant) : undefined;
    if (missingScope !== undefined) {
      throw authenticationFailed(
        server.name,
        `wants more scope than the credential has: ${missingScope}; connect it again with that scope`,
        missingScope,
      );
    }
    if (status === 401 || status === 403) {
      throw authenticationFailed(
        server.name,
        `refuses ${grant === undefined ? "to answer without a credential" : "the credential"} (${status})`,
      );
    }
    const given = headers.get(SESSION_HEADER) ?? "";
    if (grant?.secrets.some((secret) => given.includes(secret))) {
      throw new UpstreamFailure(server.name, "gave an MCP session the name of a secret", true);
    }
    const isJson = (headers.get("content-type") ?? "").includes("json");
    if (status >= 500 && !isJson)
      throw new UpstreamFailure(server.name, `answered with status ${status}`, true);
    if (headers.has("content-encoding") && headers.get("content-encoding") !== "identity") {
      throw new UpstreamFailure(server.name, "answered in an encoding that it was not asked for", true);
    }
  }
}

const OPEN_WITHIN_MS = 20_000;
const MAX_SCOPE_CHARS = 512;

/** By its challenge (RFC 6750, 3.1); undefined where it says nothing of the kind, or nothing that can be repeated. */
function missingScopeOf(headers: Headers, grant: Grant | undefined): string | undefined {
  const { error, scope } = bearerChallenge(headers.get("www-authenticate")) ?? {};
  if (error !== "insufficient_scope" || !isScope(scope) || scope.length > MAX_SCOPE_CHARS) return undefined;
  return grant?.secrets.some((secret) => scope.includes(secret)) === true ? undefined : scope;
}

/** Headers of the protocol and of HTTP that mean something to the server; never who asks. */
export function passedHeaders(
  all: Readonly<Record<string, string | string[] | undefined>>,
): Record<string, string> {
  const passed: Record<string, string> = {};
  for (const [name, value] of Object.entries(all)) {
    const goes = name.startsWith("mcp-") || PASSED.has(name);
    if (goes && typeof value === "string") passed[name] = value;
  }
  return passed;
}

const PASSED = new Set(["accept", "content-type", "last-event-id", "user-agent"]);
