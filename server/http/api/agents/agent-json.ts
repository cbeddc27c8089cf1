/** An agent as existing clients know it (pure). What they have no word for is in fields of our own, which they ignore. */
import { create } from "@bufbuild/protobuf";
import { WEB_TOOL_NAMES } from "../../../../kit/web/tool-names.ts";
import {
  type Agent,
  type AgentSkill,
  type AgentSpec,
  type BrainToolset,
  type HandToolset,
  type McpToolset,
  type Model,
  OnInterrupt,
  Permission,
  QueuedMessages,
  type Tool,
  type ToolPolicy,
  ToolPolicySchema,
  type WebToolset,
} from "../../../../proto/gen/tendon/v1/agent_pb.js";
import { timeJson } from "../time-json.ts";
import type { FindMember } from "./roster.ts";
import { HAND_TOOLS, TOOLSET_TOOLS, TOOLSET_TYPE, WEB_TOOLSET_TYPE } from "./toolset.ts";
import { webSettingsJson } from "./web-tools.ts";

export function agentJson(agent: Agent, find: FindMember) {
  const { id, version, createdAt, updatedAt, archivedAt } = agent;
  return {
    type: "agent",
    id,
    version,
    ...definitionJson(agent.spec!),
    multiagent: multiagentJson(agent, (member) => referenceJson(member, find)),
    metadata: agent.spec!.metadata,
    created_at: timeJson(createdAt),
    updated_at: timeJson(updatedAt),
    archived_at: timeJson(archivedAt),
  };
}

/** As a session shows the agent that it was made with: with all of those that it may call. */
export function sessionAgentJson(agent: Agent, find: FindMember) {
  const whole = (member: AgentReference) => {
    const found = member.id === agent.id ? agent : find(member.id, member.version);
    return found === undefined ? referenceJson(member, find) : threadAgentJson(found);
  };
  return { ...threadAgentJson(agent), multiagent: multiagentJson(agent, whole) };
}

/** As a thread shows it, which calls nobody. */
export function threadAgentJson({ id, version, spec }: Agent) {
  return { type: "agent", id, version, ...definitionJson(spec!) };
}

function definitionJson(spec: AgentSpec) {
  return {
    name: spec.name,
    description: spec.description || null,
    system: spec.system || null,
    model: modelJson(spec.model),
    tools: toolsJson(spec.tools),
    mcp_servers: spec.mcpServers.map(({ name, url }) => ({ type: "url", name, url })),
    skills: spec.skills.map(skillJson),
    execution_identity: { type: "service_account" },
    tendon: extensionJson(spec),
  };
}

function modelJson(model: Model | undefined) {
  const effort = model?.effort ?? "";
  return { id: model?.id ?? "", speed: "standard", ...(effort !== "" && { effort: { type: effort } }) };
}

/** The web's tools are shown in the toolset of the default slot, where there is one. */
export function toolsJson(tools: readonly Tool[]) {
  const web = tools.flatMap(({ kind }) => (kind.case === "webToolset" ? [kind.value] : []))[0];
  const isJoined = tools.some(({ kind }) => kind.case === "handToolset" && kind.value.slot === "");
  return tools.flatMap((tool) => (tool.kind.case === "webToolset" && isJoined ? [] : [toolJson(tool, web)]));
}

function toolJson({ kind }: Tool, web: WebToolset | undefined) {
  switch (kind.case) {
    case "handToolset":
      return handToolsetJson(kind.value, web);
    case "webToolset":
      return webToolsetJson(kind.value);
    case "custom": {
      const { name, description, inputSchema } = kind.value;
      return { type: "custom", name, description, input_schema: JSON.parse(inputSchema) as unknown };
    }
    case "mcpToolset":
      return mcpToolsetJson(kind.value);
    case "brainToolset":
      return brainToolsetJson(kind.value);
    case undefined:
      return { type: "unknown" };
  }
}

function handToolsetJson(
  { slot, defaultPolicy, tools, environmentId }: HandToolset,
  web: WebToolset | undefined,
) {
  const others = Object.keys(tools).filter((name) => !TOOLSET_TOOLS.includes(name));
  return {
    type: TOOLSET_TYPE,
    default_config: configJson(undefined, defaultPolicy, "always_allow"),
    configs: [
      ...[...HAND_TOOLS, ...others.sort()].map((name) => ({
        name,
        type: name,
        ...configJson(tools[name], defaultPolicy, "always_allow"),
      })),
      ...(slot === "" ? webConfigsJson(web) : []),
    ],
    ...(slot !== "" && { slot }),
    ...(environmentId !== "" && { environment_id: environmentId }),
  };
}

/** An agent without them is one that disables them. */
function webConfigsJson(web: WebToolset | undefined) {
  return WEB_TOOL_NAMES.map((name) => ({
    name,
    type: name,
    ...configJson(web?.tools[name], web === undefined ? OFF : web.defaultPolicy, "always_allow"),
    ...webSettingsJson(name, web),
  }));
}

const OFF = create(ToolPolicySchema, { disabled: true });

function webToolsetJson(web: WebToolset) {
  return {
    type: WEB_TOOLSET_TYPE,
    default_config: configJson(undefined, web.defaultPolicy, "always_allow"),
    configs: webConfigsJson(web),
  };
}

function mcpToolsetJson({ serverName, defaultPolicy, tools }: McpToolset) {
  const names = Object.keys(tools).sort();
  return {
    type: "mcp_toolset",
    mcp_server_name: serverName,
    default_config: configJson(undefined, defaultPolicy, "always_ask"),
    configs: names.map((name) => ({ name, ...configJson(tools[name], defaultPolicy, "always_ask") })),
  };
}

function brainToolsetJson({ names, defaultPolicy, tools }: BrainToolset) {
  return {
    type: "tendon_brain_toolset",
    names,
    default_config: configJson(undefined, defaultPolicy, "always_allow"),
    configs: Object.keys(tools)
      .sort()
      .map((name) => ({ name, ...configJson(tools[name], defaultPolicy, "always_allow") })),
  };
}

type PolicyWord = "always_allow" | "always_ask" | "auto";

function configJson(own: ToolPolicy | undefined, base: ToolPolicy | undefined, fallback: PolicyWord) {
  const word = policyWord(own?.permission) ?? policyWord(base?.permission) ?? fallback;
  const isDisabled = own === undefined ? (base?.disabled ?? false) : own.disabled;
  return { enabled: !isDisabled, permission_policy: { type: word } };
}

function policyWord(permission: Permission | undefined): PolicyWord | undefined {
  switch (permission) {
    case Permission.ALWAYS_ALLOW:
      return "always_allow";
    case Permission.ALWAYS_ASK:
      return "always_ask";
    case Permission.AUTO:
      return "auto";
    default:
      return undefined;
  }
}

type AgentReference = Pick<Agent, "id" | "version">;

/** `self` is shown as the agent that it is. */
function multiagentJson({ id, version, spec }: Agent, member: (named: AgentReference) => object) {
  const multiagent = spec?.multiagent;
  if (multiagent === undefined) return null;
  const named = multiagent.agents.map(({ kind }) => (kind.case === "agent" ? kind.value : { id, version }));
  return { type: "coordinator", agents: named.map(member) };
}

/** A version that was left open is the one that a thread would get now. */
function referenceJson({ id, version }: AgentReference, find: FindMember) {
  return { type: "agent", id, version: version || (find(id, version)?.version ?? 1) };
}

/** What only Tendon has. */
function extensionJson({ loop, loopSettings, queuedMessages, onInterrupt, model }: AgentSpec) {
  return {
    loop: loop || "claude",
    ...(loopSettings !== "" && { loop_settings: JSON.parse(loopSettings) as unknown }),
    ...(queuedMessages === QueuedMessages.NEXT_STEP && { queued_messages: "next_step" }),
    ...(onInterrupt === OnInterrupt.LEAVE_CALLS && { on_interrupt: "leave_calls" }),
    ...((model?.maxOutputTokens ?? 0) > 0 && { max_output_tokens: model?.maxOutputTokens }),
    ...((model?.thinkingBudgetTokens ?? 0) > 0 && { thinking_budget_tokens: model?.thinkingBudgetTokens }),
  };
}

function skillJson({ skillId, versionId }: AgentSkill) {
  return { type: "custom", skill_id: skillId, version: versionId || "latest" };
}
