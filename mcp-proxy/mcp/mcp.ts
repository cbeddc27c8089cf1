/** Puts together what serves MCP. */
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import type { Client } from "../../kit/rpc/client.ts";
import type { Tracing } from "../../kit/trace.ts";
import type { CredentialService } from "../../proto/gen/tendon/v1/credential_service_pb.js";
import type { Credentials } from "../credentials/credentials.ts";
import type { OutboundFetch } from "../outbound/fetch.ts";
import type { SessionTokenKeys } from "../session-token.ts";
import { McpEndpoint } from "./endpoint.ts";
import { type McpSession, McpSessions } from "./mcp-sessions.ts";
import { RecordedCalls } from "./recorded-calls.ts";
import { SESSION_HEADER, Upstream } from "./upstream.ts";

export interface McpDeps {
  readonly client: Client<typeof CredentialService>;
  readonly credentials: Credentials;
  readonly fetch: OutboundFetch;
  readonly keys: SessionTokenKeys;
  readonly clock: Clock;
  readonly log: Logger;
  readonly tracing: Tracing;
}

export interface Mcp {
  readonly handle: McpEndpoint["handle"];
  /** The session ended: what is open for it here and at MCP servers is closed. */
  forgetSession(sessionId: string): void;
  stop(): void;
}

const CLOSE_WITHIN_MS = 10_000;

export function createMcp({ client, credentials, fetch, keys, clock, log, tracing }: McpDeps): Mcp {
  const close = (session: McpSession) => void endUpstream(fetch, clock, log, session);
  const sessions = new McpSessions(clock, close);
  const upstream = new Upstream({ credentials, fetch, sessions, clock, tracing });
  const calls = new RecordedCalls({ credentials: client, upstream, clock, log, tracing });
  const parts = { keys, sessions, upstream, calls };
  const endpoint = new McpEndpoint({ credentials: client, ...parts, clock, log, tracing });
  return {
    handle: (request, response, path) => endpoint.handle(request, response, path),
    forgetSession(sessionId) {
      calls.forgetSession(sessionId);
      for (const session of sessions.take(sessionId)) close(session);
    },
    stop: () => sessions.stop(),
  };
}

/** With the credential that it was used with last: the session itself may use none any more. Does not reject. */
async function endUpstream(
  fetch: OutboundFetch,
  clock: Clock,
  log: Logger,
  { sessionId, url, pool, currentId, protocolVersion, grant }: McpSession,
): Promise<void> {
  const limit = new AbortController();
  const stop = clock.after(CLOSE_WITHIN_MS, () => limit.abort(new Error("it was not answered in time")));
  const headers = {
    [SESSION_HEADER]: currentId,
    ...(protocolVersion !== "" && { "mcp-protocol-version": protocolVersion }),
    ...grant?.headers,
  };
  try {
    const response = await fetch(url, {
      method: "DELETE",
      headers,
      signal: limit.signal,
      redirect: "same-origin",
      sessionId,
      pool,
    });
    grant?.used(String(response.status));
    await response.body?.cancel();
  } catch (error) {
    // The MCP server ends it by itself some day.
    log.info({ error: messageOf(error) }, "an MCP session was not closed at its server");
  } finally {
    stop();
  }
}
