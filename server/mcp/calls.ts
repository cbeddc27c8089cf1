/** What proxies ask about MCP servers of sessions, and the record of their calls (X1, X3, E1). */
import { fromJsonString } from "@bufbuild/protobuf";
import { invalidField, notFound, PARTS, TendonError } from "../../kit/errors.ts";
import { failpoint } from "../../kit/failpoint.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import { AgentSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import {
  type BeginCallRequest,
  CallState,
  type CredentialService,
  type FinishCallRequest,
  type ResolveMcpServerRequest,
} from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { maySee, principalOf, scopeOf } from "../ports/principal.ts";
import type { SessionLog } from "../ports/session-log.ts";
import type { McpCallStore, McpToolUse } from "../store/mcp-calls.ts";
import { mcpResultEvent, parseResult, resultOfAnswer } from "./results.ts";

export interface McpCallsDeps {
  readonly calls: McpCallStore;
  readonly log: Pick<SessionLog, "announce">;
}

export type McpCalls = Pick<
  ServiceImplementation<typeof CredentialService>,
  "resolveMcpServer" | "beginCall" | "finishCall"
>;

export function createMcpCalls({ calls, log }: McpCallsDeps): McpCalls {
  return {
    async resolveMcpServer({ sessionId, epoch, serverName }: ResolveMcpServerRequest, context: RpcContext) {
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
      const { spec } = fromJsonString(AgentSchema, session.agent, { ignoreUnknownFields: true });
      const server = spec?.mcpServers.find(({ name }) => name === serverName);
      if (server === undefined) throw notFound("mcp_server", serverName);
      const toolset = spec?.tools
        .map(({ kind }) => (kind.case === "mcpToolset" ? kind.value : undefined))
        .find((found) => found?.serverName === serverName);
      return { url: server.url, workspaceId: session.workspaceId, ...(toolset && { toolset }) };
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
        event: mcpResultEvent(toolUseId, parsed, failure),
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
