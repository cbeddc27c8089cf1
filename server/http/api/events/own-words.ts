/** Payloads whose words clients of this API know otherwise than the log has them (pure). All others are told as they stand. */
import { fromJson, type JsonObject, type JsonValue } from "@bufbuild/protobuf";
import { membersOf, memberText, objectText } from "../../../../kit/json-slices.ts";
import { type Agent, AgentSchema } from "../../../../proto/gen/tendon/v1/agent_pb.js";
import { BudgetSchema } from "../../../../proto/gen/tendon/v1/session_pb.js";
import { sessionAgentJson } from "../agents/agent-json.ts";
import { type FindMember, NO_MEMBERS } from "../agents/roster.ts";
import { budgetJson } from "../sessions/session-json.ts";

const LENIENT = { ignoreUnknownFields: true };
/** What counts where a definition does not say. */
const DEFAULT_ITERATIONS = "3";

const WORDS: Readonly<Record<string, (payload: string, find?: FindMember) => string>> = {
  "session.updated": updatedText,
  "session.usage": usageText,
  "session.error": errorText,
  "session.status_idle": idleText,
  "session.thread_status_idle": idleText,
  "session.threads_ask": askText,
  "user.define_outcome": definitionText,
};

/** `find`: those that an agent which is told of may call. */
export function ownWords(type: string, payload: string, find?: FindMember): string {
  return WORDS[type]?.(payload, find) ?? payload;
}

/** That a payload tells of. */
export function agentOf(payload: string): Agent | undefined {
  const { agent } = JSON.parse(payload) as JsonObject;
  return agent === undefined ? undefined : fromJson(AgentSchema, agent, LENIENT);
}

/** Agent and budget are in the words of the contract there. */
function updatedText(payload: string, find?: FindMember): string {
  const { agent: _, budget, ...rest } = JSON.parse(payload) as JsonObject;
  const agent = agentOf(payload);
  return JSON.stringify({
    ...rest,
    ...(agent !== undefined && { agent: sessionAgentJson(agent, find ?? NO_MEMBERS) }),
    ...budgetMember(budget),
  });
}

function usageText(payload: string): string {
  const { usage = {}, budget, ...rest } = JSON.parse(payload) as JsonObject;
  const { cache_creation_input_tokens: written = 0, ...counts } = usage as JsonObject;
  const cache = { ephemeral_5m_input_tokens: written, ephemeral_1h_input_tokens: 0 };
  return JSON.stringify({
    ...rest,
    usage: { ...counts, cache_creation: cache },
    ...budgetMember(budget),
  });
}

/** What these clients know of no name for says why in `reason`. */
const ERROR_TYPES: ReadonlySet<unknown> = new Set([
  "unknown_error",
  "model_overloaded_error",
  "model_rate_limited_error",
  "model_request_failed_error",
  "mcp_connection_failed_error",
  "mcp_authentication_failed_error",
  "billing_error",
  "credential_host_unreachable_error",
  "tool_use_limit_reached_error",
  "compaction_limit_reached_error",
  "repository_authentication_error",
  "repository_forbidden_error",
  "repository_not_found_error",
  "repository_checkout_error",
  "repository_clone_error",
]);

function errorText(payload: string): string {
  const { error, ...rest } = JSON.parse(payload) as { readonly error?: { readonly type?: unknown } };
  if (error === undefined || ERROR_TYPES.has(error.type)) return payload;
  return JSON.stringify({ error: { ...error, type: "unknown_error" }, ...rest });
}

function budgetMember(budget: JsonValue | undefined) {
  if (budget === undefined) return {};
  return budget === null ? { budget } : budgetJson(fromJson(BudgetSchema, budget, LENIENT));
}

/** Details are those of a refusal to these clients; of a spent budget they go with the reason. */
function idleText(payload: string): string {
  if (!payload.includes('"stop_details":{')) return payload;
  const { stop_reason: reason, stop_details: details, ...rest } = JSON.parse(payload) as JsonObject;
  if ((details as JsonObject).type === "refusal") return payload;
  const told = { ...(details as JsonObject), ...(reason as JsonObject) };
  return JSON.stringify({ stop_reason: told, stop_details: null, ...rest });
}

/** Told as an idle event. */
function askText(payload: string): string {
  const reason = { type: "requires_action", ...(JSON.parse(payload) as JsonObject) };
  return JSON.stringify({ stop_reason: reason, stop_details: null });
}

/** Its outcome's id is said beside it. */
function definitionText(payload: string): string {
  const said = memberText(payload, "max_iterations");
  const iterations = said === undefined || said === "null" ? DEFAULT_ITERATIONS : said;
  const members = membersOf(payload).filter(({ name }) => name !== "outcome_id" && name !== "max_iterations");
  return objectText([{ name: "max_iterations", text: iterations }, ...members]);
}
