/** An agent as existing clients know it (pure). What they have no word for is in fields of our own, which they ignore. */
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
} from "../../../../proto/gen/tendon/v1/agent_pb.js";
import { timeJson } from "../time-json.ts";
import { TOOLSET_TOOLS, TOOLSET_TYPE } from "./toolset.ts";

export function agentJson(agent: Agent) {
  const { id, version, createdAt, updatedAt, archivedAt } = agent;
  return {
    type: "agent",
    id,
    version,
    ...definitionJson(agent.spec!),
    metadata: agent.spec!.metadata,
    created_at: timeJson(createdAt),
    updated_at: timeJson(updatedAt),
    archived_at: timeJson(archivedAt),
  };
}

/** As a session shows the agent that it was made with. */
export function sessionAgentJson({ id, version, spec }: Agent) {
  return { type: "agent", id, version, ...definitionJson(spec!) };
}

function definitionJson(spec: AgentSpec) {
  return {
    name: spec.name,
    description: spec.description || null,
    system: spec.system || null,
    model: modelJson(spec.model),
    tools: spec.tools.map(toolJson),
    mcp_servers: spec.mcpServers.map(({ name, url }) => ({ type: "url", name, url })),
    skills: spec.skills.map(skillJson),
    multiagent: multiagentJson(spec),
    execution_identity: { type: "service_account" },
    tendon: extensionJson(spec),
  };
}

function modelJson(model: Model | undefined) {
  const effort = model?.effort ?? "";
  return { id: model?.id ?? "", speed: "standard", ...(effort !== "" && { effort }) };
}

function toolJson({ kind }: Tool) {
  switch (kind.case) {
    case "handToolset":
      return handToolsetJson(kind.value);
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

function handToolsetJson({ slot, defaultPolicy, tools, environmentId }: HandToolset) {
  const others = Object.keys(tools).filter((name) => !TOOLSET_TOOLS.includes(name));
  return {
    type: TOOLSET_TYPE,
    default_config: configJson(undefined, defaultPolicy, "always_allow"),
    configs: [...TOOLSET_TOOLS, ...others.sort()].map((name) => ({
      name,
      type: name,
      ...configJson(tools[name], defaultPolicy, "always_allow"),
    })),
    ...(slot !== "" && { slot }),
    ...(environmentId !== "" && { environment_id: environmentId }),
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

function multiagentJson({ multiagent }: AgentSpec) {
  if (multiagent === undefined) return null;
  return {
    type: "coordinator",
    agents: multiagent.agents.map(({ kind }) =>
      kind.case === "agent"
        ? { type: "agent", id: kind.value.id, ...(kind.value.version > 0 && { version: kind.value.version }) }
        : { type: "self" },
    ),
  };
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
