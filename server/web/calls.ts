/** The record of calls of web tools, which proxies run (X1, X3, E1). */
import { fromJsonString } from "@bufbuild/protobuf";
import { ByteBudget } from "../../kit/byte-budget.ts";
import { invalidField, notFound, PARTS } from "../../kit/errors.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import { isToolEnabled } from "../../kit/tool-policy.ts";
import { WEB_FETCH, WEB_TOOL_NAMES } from "../../kit/web/tool-names.ts";
import { AgentSchema, type WebToolset } from "../../proto/gen/tendon/v1/agent_pb.js";
import {
  type BeginWebCallRequest,
  CallState,
  type CredentialService,
  type FinishLargeWebCallRequest,
  type FinishWebCallRequest,
} from "../../proto/gen/tendon/v1/credential_service_pb.js";
import { actorOf, principalOf, scopeOf } from "../ports/principal.ts";
import type { SessionLog } from "../ports/session-log.ts";
import type { BegunCall, McpCallStore, McpToolUse } from "../store/mcp-calls.ts";
import type { ShownTextStore } from "../store/shown-texts.ts";
import { withLargeResult } from "./large-result.ts";
import { parseContent, webResultEvent } from "./results.ts";
import { isUrlShown } from "./shown-url.ts";

export interface WebCallsDeps {
  readonly calls: Pick<McpCallStore, "begin" | "finish" | "agentsAbove">;
  readonly shownTexts: ShownTextStore;
  readonly log: Pick<SessionLog, "announce">;
}

/** Of results that are put together at a time. */
const MAX_ASSEMBLED_BYTES = 64 * 1024 * 1024;

export type WebCalls = Pick<
  ServiceImplementation<typeof CredentialService>,
  "beginWebCall" | "finishWebCall" | "finishLargeWebCall"
>;

export function createWebCalls(deps: WebCallsDeps): WebCalls {
  const { calls, shownTexts } = deps;
  const assembly = new ByteBudget(MAX_ASSEMBLED_BYTES);
  return {
    async beginWebCall({ sessionId, toolUseId, epoch }: BeginWebCallRequest, context: RpcContext) {
      const above = await calls.agentsAbove(sessionId);
      let toolset: WebToolset | undefined;
      let called: WebToolUse | undefined;
      const begun = await calls.begin({
        sessionId,
        toolUseId,
        epoch,
        workspaceId: scopeOf(principalOf(context)),
        needs(session) {
          toolset = toolsetOf(session.agent);
          return { kind: "begin", credential: undefined };
        },
        check(toolUse) {
          called = webToolUse(toolUse);
          if (!isToolEnabled(toolset, called.toolName))
            throw invalidField("tool_use_id", `calls "${called.toolName}", which the agent does not have`);
        },
      });
      const bounds = [toolset, ...above.map(toolsetOf)].filter((found) => found !== undefined);
      const { toolName, input } = called!;
      const isOpen = toolName === WEB_FETCH && STATES[begun.kind] !== CallState.FINISHED;
      const urlNotShown = isOpen && !(await isUrlShown(shownTexts, { sessionId, input, bounds }));
      return { toolName, input, state: STATES[begun.kind], bounds, urlNotShown };
    },

    async finishWebCall(request: FinishWebCallRequest, context: RpcContext) {
      await finish(deps, request, context);
      return {};
    },

    async finishLargeWebCall(requests: AsyncIterable<FinishLargeWebCallRequest>, context: RpcContext) {
      await withLargeResult(requests, assembly, (request) => finish(deps, request, context));
      return {};
    },
  };
}

async function finish(
  { calls, log }: WebCallsDeps,
  request: FinishWebCallRequest,
  context: RpcContext,
): Promise<void> {
  const { sessionId, toolUseId, content, isError, failurePart, failureReason } = request;
  const blocks = parseContent(content);
  if (blocks === undefined)
    throw invalidField("content", "must be a list of text, search_result and document blocks");
  const part = PARTS.find((known) => known === failurePart);
  const failure = part && failureReason !== "" ? { part, reason: failureReason } : undefined;
  const { searches, upstreamMs, hosts, outcome } = request;
  const finished = await calls.finish({
    sessionId,
    toolUseId,
    workspaceId: scopeOf(principalOf(context)),
    // What was said stands in the log.
    result: JSON.stringify({ isError }),
    event: webResultEvent(toolUseId, { content: blocks, isError }, { failure, searches, upstreamMs }),
    audit: {
      actor: actorOf(principalOf(context)),
      action: "web.call",
      subject: toolUseId,
      sessionId,
      detail: { hosts, result: outcome },
    },
  });
  if (finished === undefined) throw notFound("web_call", toolUseId);
  if (finished.advance !== undefined) {
    const { added, ...told } = finished.advance;
    log.announce(told, added);
  }
}

const STATES: Readonly<Record<BegunCall["kind"], CallState>> = {
  begun: CallState.BEGUN,
  unknown: CallState.UNKNOWN,
  finished: CallState.FINISHED,
  answered: CallState.FINISHED,
  skipped: CallState.UNSPECIFIED,
};

function toolsetOf(agent: string): WebToolset | undefined {
  const { spec } = fromJsonString(AgentSchema, agent, { ignoreUnknownFields: true });
  for (const { kind } of spec?.tools ?? []) if (kind.case === "webToolset") return kind.value;
  return undefined;
}

interface WebToolUse {
  readonly toolName: string;
  readonly input: string;
}

/** The log's word on what is called, which the model said and a client may have approved. */
function webToolUse({ type, payload }: McpToolUse): WebToolUse {
  const use = JSON.parse(payload) as Record<string, unknown>;
  const { name, runs_in: runsIn, evaluated_permission: permission } = use;
  const isWeb = type === "agent.tool_use" && runsIn === "proxy" && typeof name === "string";
  if (!isWeb || !WEB_TOOL_NAMES.includes(name)) throw invalidField("tool_use_id", "is no call of a web tool");
  if (permission === "deny") throw invalidField("tool_use_id", "is a call that may not run");
  return { toolName: name, input: JSON.stringify(use.input ?? {}) };
}
