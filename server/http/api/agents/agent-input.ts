/** What existing clients say of an agent, as the contract has it (pure). Throws INVALID_FIELD with the path in their words. */
import { clone, create, type MessageInitShape } from "@bufbuild/protobuf";
import { invalidField, TendonError } from "../../../../kit/errors.ts";
import { WEB_TOOL_NAMES } from "../../../../kit/web/tool-names.ts";
import {
  type AgentSpec,
  AgentSpecSchema,
  ModelSchema,
  MultiagentSchema,
  OnInterrupt,
  Permission,
  QueuedMessages,
  type Tool,
  type ToolPolicySchema,
  type ToolSchema,
} from "../../../../proto/gen/tendon/v1/agent_pb.js";
import { type Fields, fieldsOf } from "../fields.ts";
import { patchedMetadata } from "../metadata.ts";
import { toolsJson } from "./agent-json.ts";
import { TOOLSET_TOOLS, TOOLSET_TYPE, WEB_TOOLSET_TYPE } from "./toolset.ts";
import { isWebTool, webSettingNames, webSettingsOf } from "./web-tools.ts";

type ToolInit = MessageInitShape<typeof ToolSchema>;
type PolicyInit = Extract<MessageInitShape<typeof ToolPolicySchema>, { $typeName?: never }>;

const DEFINITION = [
  "name",
  "model",
  "description",
  "system",
  "tools",
  "mcp_servers",
  "skills",
  "multiagent",
  "execution_identity",
  "metadata",
  "tendon",
];

/** Of a creation. */
export function newAgentSpec(fields: Fields): AgentSpec {
  fields.only(...DEFINITION);
  fields.requiredText("name");
  if (!fields.has("model")) throw invalidField("model", "is required");
  return changedAgentSpec(create(AgentSpecSchema), fields, "");
}

/**
 * What is not said stays; lists are replaced whole; null clears what may be empty. `version` is for the caller. `agentId`: of
 * the agent that changes, empty for a new one.
 */
export function changedAgentSpec(before: AgentSpec, fields: Fields, agentId: string): AgentSpec {
  fields.only("version", ...DEFINITION);
  const spec = clone(AgentSpecSchema, before);
  if (fields.has("name")) spec.name = fields.requiredText("name");
  if (fields.has("model")) spec.model = modelOf(fields, spec.model);
  if (fields.has("description")) spec.description = fields.text("description") ?? "";
  if (fields.has("system")) spec.system = fields.text("system") ?? "";
  applyTools(spec, fields);
  // Tools that are sent as they were shown, with all that was left unsaid, are no change.
  if (isShownAlike(spec.tools, before.tools)) spec.tools = clone(AgentSpecSchema, before).tools;
  if (fields.has("multiagent")) spec.multiagent = multiagentOf(fields.object("multiagent"), agentId);
  const identity = fields.object("execution_identity");
  identity?.word("type", ["service_account"]);
  identity?.only("type");
  spec.metadata = patchedMetadata(spec.metadata, fields);
  const extension = fields.object("tendon");
  if (extension !== undefined) applyExtension(spec, extension);
  return spec;
}

function isShownAlike(one: readonly Tool[], other: readonly Tool[]): boolean {
  return JSON.stringify(toolsJson(one)) === JSON.stringify(toolsJson(other));
}

/** Of one session: what is said stands instead of what the agent has, and null clears it. */
export function overriddenSpec(before: AgentSpec, fields: Fields): AgentSpec {
  const spec = clone(AgentSpecSchema, before);
  if (fields.value.model === null) throw modelRequired(fields);
  if (spec.model !== undefined && fields.has("model")) spec.model.effort = "";
  if (fields.has("model")) spec.model = modelOf(fields, spec.model);
  if (fields.has("system")) spec.system = fields.text("system") ?? "";
  applyTools(spec, fields);
  return spec;
}

/** What existing clients call it when an override takes the model away. */
function modelRequired(fields: Fields): TendonError {
  const { reason, message, metadata } = invalidField(fields.at("model"), "is required");
  return new TendonError(reason, message, { ...metadata, error_code: "agent_model_required" });
}

/** What others made and sell is not here: it can be uploaded. */
function skillOf(skill: Fields): { skillId: string; versionId: string } {
  skill.only("type", "skill_id", "version");
  const type = skill.word("type", ["custom", "anthropic"]);
  if (type !== "custom")
    throw invalidField(skill.at("type"), "must be custom: upload the skill that is meant");
  const version = skill.text("version") ?? "";
  return { skillId: skill.requiredText("skill_id"), versionId: version === "latest" ? "" : version };
}

function applyTools(spec: AgentSpec, fields: Fields): void {
  if (fields.has("tools")) spec.tools = create(AgentSpecSchema, { tools: toolsOf(fields) }).tools;
  if (fields.has("mcp_servers"))
    spec.mcpServers = create(AgentSpecSchema, { mcpServers: mcpServersOf(fields) }).mcpServers;
  if (fields.has("skills")) {
    const skills = (fields.objects("skills") ?? []).map(skillOf);
    spec.skills = create(AgentSpecSchema, { skills }).skills;
  }
}

/** An effort of which nothing is said stays for as long as the model does. */
function modelOf(fields: Fields, before: AgentSpec["model"]): AgentSpec["model"] {
  const said = fields.value.model;
  if (said === null || said === "") throw invalidField(fields.at("model"), "is required");
  const model = fieldsOf(typeof said === "string" ? { id: said } : said, fields.at("model"));
  model.only("id", "effort", "speed", "inference_geo");
  model.word("speed", ["standard"]);
  if (model.text("inference_geo") !== undefined)
    throw invalidField(model.at("inference_geo"), "is not offered here");
  const id = model.requiredText("id");
  const kept = id === before?.id ? before.effort : "";
  return create(ModelSchema, {
    id,
    effort: model.has("effort") ? effortOf(model) : kept,
    maxOutputTokens: before?.maxOutputTokens ?? 0,
    thinkingBudgetTokens: before?.thinkingBudgetTokens ?? 0,
  });
}

function effortOf(model: Fields): string {
  const said = model.value.effort;
  if (said === undefined || said === null) return "";
  const words = ["low", "medium", "high", "xhigh", "max"] as const;
  if (typeof said === "object") {
    const effort = model.requiredObject("effort");
    effort.only("type");
    return effort.word("type", words) ?? "";
  }
  return model.word("effort", words) ?? "";
}

function mcpServersOf(fields: Fields): { name: string; url: string }[] {
  return (fields.objects("mcp_servers") ?? []).map((server) => {
    server.only("type", "name", "url");
    server.word("type", ["url"]);
    return { name: server.requiredText("name"), url: server.requiredText("url") };
  });
}

/** The web's come last, so that paths of the others stay as their writer counts them. */
function toolsOf(fields: Fields): ToolInit[] {
  const tools = fields.objects("tools") ?? [];
  const web = tools.flatMap((tool) => {
    const isToolset = tool.value.type === TOOLSET_TYPE && (tool.text("slot") ?? "") === "";
    return isToolset ? webOfToolset(tool) : [];
  });
  return [...tools.map(toolOf), ...web];
}

/** A toolset that disables both says nothing of the web. */
function webOfToolset(tool: Fields): ToolInit[] {
  const value = webToolsetOf(tool);
  const isOff = ({ disabled }: PolicyInit = {}) => disabled === true;
  const both = WEB_TOOL_NAMES.every((name) => isOff(value.tools[name] ?? value.defaultPolicy));
  return both ? [] : [{ kind: { case: "webToolset", value } }];
}

function webToolsetOf(tool: Fields) {
  const { tools, ...base } = policiesOf(tool);
  const own = Object.fromEntries(Object.entries(tools).filter(([name]) => isWebTool(name)));
  return { ...webSettingsOf(tool.objects("configs") ?? []), ...base, tools: own };
}

const POLICIES = ["default_config", "configs"];
const TOOL_FIELDS = {
  [TOOLSET_TYPE]: [...POLICIES, "slot", "environment_id"],
  [WEB_TOOLSET_TYPE]: POLICIES,
  custom: ["name", "description", "input_schema"],
  mcp_toolset: [...POLICIES, "mcp_server_name"],
  tendon_brain_toolset: [...POLICIES, "names"],
} as const;

function toolOf(tool: Fields): ToolInit {
  const type = tool.word("type", [
    TOOLSET_TYPE,
    WEB_TOOLSET_TYPE,
    "custom",
    "mcp_toolset",
    "tendon_brain_toolset",
  ]);
  if (type !== undefined) tool.only("type", ...TOOL_FIELDS[type]);
  switch (type) {
    case TOOLSET_TYPE:
      return { kind: { case: "handToolset", value: handToolsetOf(tool) } };
    case WEB_TOOLSET_TYPE:
      for (const config of tool.objects("configs") ?? []) config.word("name", WEB_TOOL_NAMES);
      return { kind: { case: "webToolset", value: webToolsetOf(tool) } };
    case "custom":
      return { kind: { case: "custom", value: customOf(tool) } };
    case "mcp_toolset":
      return {
        kind: {
          case: "mcpToolset",
          value: { serverName: tool.requiredText("mcp_server_name"), ...policiesOf(tool) },
        },
      };
    case "tendon_brain_toolset":
      return {
        kind: {
          case: "brainToolset",
          value: { names: [...(tool.texts("names") ?? [])], ...policiesOf(tool) },
        },
      };
    case undefined:
      throw invalidField(tool.at("type"), "is required");
  }
}

function handToolsetOf(tool: Fields) {
  const slot = tool.text("slot") ?? "";
  for (const config of tool.objects("configs") ?? []) {
    if (slot === "") config.word("name", TOOLSET_TOOLS);
  }
  const { tools, ...base } = policiesOf(tool);
  const own = Object.fromEntries(Object.entries(tools).filter(([name]) => slot !== "" || !isWebTool(name)));
  return { slot, environmentId: tool.text("environment_id") ?? "", ...base, tools: own };
}

function customOf(tool: Fields) {
  return {
    name: tool.requiredText("name"),
    description: tool.requiredText("description"),
    inputSchema: JSON.stringify(tool.requiredObject("input_schema").value),
  };
}

/** `default_config` and `configs`. */
function policiesOf(tool: Fields) {
  const base = tool.object("default_config");
  const tools: Record<string, PolicyInit> = {};
  base?.only("enabled", "permission_policy");
  for (const config of tool.objects("configs") ?? []) {
    const name = config.requiredText("name");
    if (Object.hasOwn(tools, name)) throw invalidField(config.at("name"), "is there twice");
    config.only("name", "type", "enabled", "permission_policy", ...webConfigFields(tool, name));
    config.word("type", [name]);
    tools[name] = policyOf(config, base?.flag("enabled") === false);
  }
  return { ...(base && { defaultPolicy: policyOf(base, false) }), tools };
}

/** What an entry says besides in the toolsets that bring the web's tools. */
function webConfigFields(tool: Fields, name: string): readonly string[] {
  const isOfWeb = tool.value.type === WEB_TOOLSET_TYPE || tool.value.type === TOOLSET_TYPE;
  return isOfWeb && (tool.text("slot") ?? "") === "" ? webSettingNames(name) : [];
}

function policyOf(config: Fields, isDisabledBefore: boolean): PolicyInit {
  const enabled = config.flag("enabled") ?? !isDisabledBefore;
  const policy = config.object("permission_policy");
  policy?.only("type");
  const word = policy?.word("type", ["always_allow", "always_ask", "auto"]);
  return { disabled: !enabled, permission: word === undefined ? Permission.UNSPECIFIED : PERMISSIONS[word] };
}

const PERMISSIONS = {
  always_allow: Permission.ALWAYS_ALLOW,
  always_ask: Permission.ALWAYS_ASK,
  auto: Permission.AUTO,
} as const;

/** An agent that names itself by its id is `self`, as it is shown. */
function multiagentOf(fields: Fields | undefined, agentId: string): AgentSpec["multiagent"] {
  if (fields === undefined) return undefined;
  fields.word("type", ["coordinator"]);
  fields.only("type", "agents");
  const agents = (fields.list("agents") ?? []).map((member, at) => {
    const said = typeof member === "string" ? { id: member } : member;
    const named = fieldsOf(said, `${fields.at("agents")}[${at}]`);
    const isSelf = named.word("type", ["agent", "self"]) === "self";
    named.only(...(isSelf ? ["type"] : ["type", "id", "version"]));
    if (isSelf || named.value.id === agentId) return { kind: { case: "self", value: true } } as const;
    const value = { id: named.requiredText("id"), version: named.count("version") ?? 0 };
    return { kind: { case: "agent", value } } as const;
  });
  return create(MultiagentSchema, { agents });
}

function applyExtension(spec: AgentSpec, fields: Fields): void {
  fields.only(
    "loop",
    "loop_settings",
    "queued_messages",
    "on_interrupt",
    "max_output_tokens",
    "thinking_budget_tokens",
  );
  if (fields.has("loop")) spec.loop = fields.text("loop") ?? "";
  if (fields.has("loop_settings")) {
    const settings = fields.object("loop_settings");
    spec.loopSettings = settings === undefined ? "" : JSON.stringify(settings.value);
  }
  if (fields.has("queued_messages")) {
    const word = fields.word("queued_messages", ["next_turn", "next_step"]);
    spec.queuedMessages = word === "next_step" ? QueuedMessages.NEXT_STEP : QueuedMessages.NEXT_TURN;
  }
  if (fields.has("on_interrupt")) {
    const word = fields.word("on_interrupt", ["cancel_calls", "leave_calls"]);
    spec.onInterrupt = word === "leave_calls" ? OnInterrupt.LEAVE_CALLS : OnInterrupt.CANCEL_CALLS;
  }
  spec.model ??= create(ModelSchema);
  spec.model.maxOutputTokens = fields.integer("max_output_tokens") ?? spec.model.maxOutputTokens;
  spec.model.thinkingBudgetTokens =
    fields.integer("thinking_budget_tokens") ?? spec.model.thinkingBudgetTokens;
}
