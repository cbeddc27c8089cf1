/** What proxies ask about MCP servers of sessions, and the record of their calls (X1, X3, E1). */
import { fromJsonString } from "@bufbuild/protobuf";
import { invalidField, notFound, PARTS, TendonError } from "../../kit/errors.ts";
import { failpoint } from "../../kit/failpoint.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import { isToolEnabled } from "../../kit/tool-policy.ts";
import { mcpDestination, normaliseServerUrl } from "../../kit/vault/destination.ts";
import { AgentSchema, type McpToolset } from "../../proto/gen/tendon/v1/agent_pb.js";
import {
  type BeginCallRequest,
  CallState,
  type CredentialService,
  type FinishCallRequest,
  type ResolveMcpServerRequest,
} from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { opening, resolvedCredential } from "../ports/credential-opening.ts";
import { maySee, principalOf, scopeOf } from "../ports/principal.ts";
import type { SessionLog } from "../ports/session-log.ts";
import type { CredentialOpening, CredentialStore, StoredCredential } from "../store/credentials.ts";
import type { BegunCall, McpCallStore, McpSession, McpToolUse } from "../store/mcp-calls.ts";
import { mcpResultEvent, parseResult, resultOfAnswer } from "./results.ts";
import { tunnelPoolOf } from "./tunnel-pool.ts";

export interface McpCallsDeps {
  readonly calls: McpCallStore;
  readonly credentials: Pick<CredentialStore, "open">;
  readonly log: Pick<SessionLog, "announce">;
}

export type McpCalls = Pick<
  ServiceImplementation<typeof CredentialService>,
  "resolveMcpServer" | "beginCall" | "finishCall"
>;

export function createMcpCalls({ calls, credentials, log }: McpCallsDeps): McpCalls {
  return {
    async resolveMcpServer(request: ResolveMcpServerRequest, context: RpcContext) {
      const { sessionId, epoch, serverName, toolName, toolUseId, withCredential } = request;
      if (toolUseId !== "") return resolveCall(calls, request, context);
      const session = await calls.session(sessionId);
      if (session === undefined || !maySee(principalOf(context), session.workspaceId)) {
        throw notFound("session", sessionId);
      }
      if (session.isArchived)
        throw new TendonError("SESSION_ARCHIVED", "the session is archived", { id: sessionId });
      if (session.epoch !== epoch) {
        throw new TendonError("LEASE_FENCED", "a newer brain holds the session", {
          epoch: String(session.epoch),
        });
      }
      const server = serverOf(session, serverName);
      const wanted =
        withCredential && mayCall(server, toolName) && wantedCredential(request, server, context);
      const found = wanted ? await credentials.open(wanted) : undefined;
      return answerOf(server, withCredential, found);
    },

    async beginCall({ sessionId, toolUseId, epoch, serverName, toolName }: BeginCallRequest, context) {
      const begun = await calls.begin({
        sessionId,
        toolUseId,
        epoch,
        workspaceId: scopeOf(principalOf(context)),
        check: (toolUse) => checkToolUse(toolUse, serverName, toolName),
      });
      failpoint("server.mcp_call_begun");
      // Nothing is skipped where nothing was said of it.
      return begun.kind === "skipped" ? {} : stateOf(begun);
    },

    async finishCall(request: FinishCallRequest, context) {
      const { sessionId, toolUseId, result, failurePart, failureReason } = request;
      const parsed = parseResult(result);
      if (parsed === undefined) throw invalidField("result", "must be the result of an MCP tool call");
      const part = PARTS.find((known) => known === failurePart);
      const failure = part && failureReason !== "" ? { part, reason: failureReason } : undefined;
      const finished = await calls.finish({
        sessionId,
        toolUseId,
        workspaceId: scopeOf(principalOf(context)),
        result,
        event: mcpResultEvent(toolUseId, parsed, failure, request.upstreamMs),
      });
      if (finished === undefined) throw notFound("mcp_call", toolUseId);
      failpoint("server.mcp_result_stored");
      if (finished.advance !== undefined) {
        const { added, ...told } = finished.advance;
        log.announce(told, added);
      }
      return { result: finished.result };
    },
  };
}

/** The server, its credential and the record of the call at once. */
async function resolveCall(calls: McpCallStore, request: ResolveMcpServerRequest, context: RpcContext) {
  const { sessionId, epoch, serverName, toolName, toolUseId, withCredential } = request;
  let server: McpServer | undefined;
  const begun = await calls.begin({
    sessionId,
    toolUseId,
    epoch,
    workspaceId: scopeOf(principalOf(context)),
    check: (toolUse) => checkToolUse(toolUse, serverName, toolName),
    needs(session) {
      server = serverOf(session, serverName);
      if (!mayCall(server, toolName)) return { kind: "skip" };
      return {
        kind: "begin",
        credential: withCredential ? wantedCredential(request, server, context) : undefined,
      };
    },
  });
  failpoint("server.mcp_call_begun");
  const credential = "credential" in begun ? begun.credential : undefined;
  const answer = answerOf(server!, withCredential, credential);
  return begun.kind === "skipped" ? answer : { ...answer, call: stateOf(begun) };
}

interface McpServer {
  readonly url: string;
  readonly workspaceId: string;
  readonly toolset: McpToolset | undefined;
  readonly tunnelPool: string | undefined;
}

function serverOf({ agent, environment, workspaceId }: McpSession, serverName: string): McpServer {
  const { spec } = fromJsonString(AgentSchema, agent, { ignoreUnknownFields: true });
  const server = spec?.mcpServers.find(({ name }) => name === serverName);
  if (server === undefined) throw notFound("mcp_server", serverName);
  const toolset = spec?.tools
    .map(({ kind }) => (kind.case === "mcpToolset" ? kind.value : undefined))
    .find((found) => found?.serverName === serverName);
  return { url: server.url, workspaceId, toolset, tunnelPool: tunnelPoolOf(server.url, environment) };
}

function mayCall({ toolset }: McpServer, toolName: string): boolean {
  return toolName === "" || isToolEnabled(toolset, toolName);
}

/** Undefined for a URL that no credential can be for. */
function wantedCredential(
  { sessionId, epoch }: ResolveMcpServerRequest,
  { url }: McpServer,
  context: RpcContext,
): CredentialOpening | undefined {
  const normalised = normaliseServerUrl(url);
  if (normalised === undefined) return undefined;
  return opening(sessionId, epoch, url, [mcpDestination(normalised)], context);
}

function answerOf(
  { url, workspaceId, toolset, tunnelPool = "" }: McpServer,
  credentialSought: boolean,
  found: StoredCredential | undefined,
) {
  const credential = found?.sealed === undefined ? undefined : resolvedCredential(found);
  return {
    url,
    workspaceId,
    credentialSought,
    tunnelPool,
    ...(toolset && { toolset }),
    ...(credential && { credential }),
  };
}

function stateOf(begun: Exclude<BegunCall, { kind: "skipped" }>) {
  switch (begun.kind) {
    case "begun":
      return { state: CallState.BEGUN };
    case "unknown":
      return { state: CallState.UNKNOWN };
    case "finished":
      return { state: CallState.FINISHED, result: begun.result };
    case "answered":
      return { state: CallState.FINISHED, result: resultOfAnswer(begun.payload) };
  }
}

/** The log's word on what is called, which the model said and a client may have approved. */
function checkToolUse({ type, payload }: McpToolUse, serverName: string, toolName: string): void {
  if (type !== "agent.mcp_tool_use") {
    throw invalidField("tool_use_id", `is an event of type ${type}, not agent.mcp_tool_use`);
  }
  const { mcp_server_name: server, name } = JSON.parse(payload) as Record<string, unknown>;
  if (server !== serverName) throw invalidField("server_name", "is not the one that the log has");
  if (toolName !== "" && name !== toolName)
    throw invalidField("tool_name", "is not the one that the log has");
}
