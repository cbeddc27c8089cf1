/** Which MCP server a session means by a name, which of its tools its agent may use, and with which credential. */
import type { CallOptions, Client } from "../../kit/rpc/client.ts";
import { isToolEnabled } from "../../kit/tool-policy.ts";
import { type TraceContext, type Tracing, traceHeaders } from "../../kit/trace.ts";
import type {
  BeginCallResponse,
  CredentialService,
} from "../../proto/gen/tendon/v1/credential_service_pb.js";
import type { Resolved } from "../credentials/credentials.ts";
import type { SessionCaller } from "../session-token.ts";
import { step } from "../trace-steps.ts";

export interface McpServerOfSession {
  readonly name: string;
  readonly url: string;
  /** The session's environment has it behind the hand agents of this pool. */
  readonly pool: string | undefined;
  allows(toolName: string): boolean;
}

export interface McpRequest {
  readonly serverName: string;
  /** Of a tool call; empty for all else. */
  readonly toolName?: string;
  /** Of a call that is to be recorded. */
  readonly toolUseId?: string;
  /** Whether anything is going to be sent to the server. */
  readonly withCredential: boolean;
}

export interface ResolvedServer {
  readonly server: McpServerOfSession;
  /** What the server has found, for one request; undefined: it was not asked for, or has to be asked for. */
  readonly credential: Resolved | undefined;
  /** What is known of the call; undefined: nothing was recorded. */
  readonly call: BeginCallResponse | undefined;
}

const ASK_WITHIN_MS = 10_000;

export interface ResolveDeps {
  readonly credentials: Pick<Client<typeof CredentialService>, "beginCall" | "resolveMcpServer">;
  readonly tracing: Tracing;
}

/** Asked anew for each request: an agent that changes, a newer brain and an archived vault count from the next one on. */
export function resolveMcpServer(
  { credentials, tracing }: ResolveDeps,
  caller: SessionCaller,
  request: McpRequest,
  parent: TraceContext | undefined,
): Promise<ResolvedServer> {
  return step(tracing, "resolve", { parent, kind: "client" }, ({ context }) =>
    ask(credentials, caller, request, { deadlineMs: ASK_WITHIN_MS, headers: traceHeaders(context) }),
  );
}

async function ask(
  credentials: ResolveDeps["credentials"],
  { sessionId, epoch }: SessionCaller,
  { serverName, toolName = "", toolUseId = "", withCredential }: McpRequest,
  options: CallOptions,
): Promise<ResolvedServer> {
  const request = { sessionId, epoch, serverName, toolName, toolUseId, withCredential };
  const answer = await credentials.resolveMcpServer(request, options);
  const { url, toolset, credentialSought, tunnelPool } = answer;
  const pool = tunnelPool === "" ? undefined : tunnelPool;
  const server = { name: serverName, url, pool, allows: (name: string) => isToolEnabled(toolset, name) };
  let { call } = answer;
  if (call === undefined && toolUseId !== "" && server.allows(toolName)) {
    // A server of before records calls in a question of its own.
    call = await credentials.beginCall({ sessionId, toolUseId, epoch, serverName, toolName }, options);
  }
  return { server, credential: credentialSought ? (answer.credential ?? "none") : undefined, call };
}
