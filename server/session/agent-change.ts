/** What a session changes of its agent for itself: tools, and the MCP servers that they are of. */
import { clone, create, fromJsonString, toJsonString } from "@bufbuild/protobuf";
import { invalidField, isTendonError } from "../../kit/errors.ts";
import {
  AgentSchema,
  type AgentSpec,
  AgentSpecSchema,
  type Tool,
} from "../../proto/gen/tendon/v1/agent_pb.js";
import type { AgentChange } from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { AgentRules } from "../ports/agent-rules.ts";
import type { SessionRecord } from "../store/sessions.ts";

/** The session's agent afterwards: JSON text of an Agent. INVALID_FIELD. */
export async function changedAgent(
  rules: AgentRules,
  session: Pick<SessionRecord, "agent" | "environmentId" | "slotEnvironmentIds" | "workspaceId">,
  { tools, mcpServers }: AgentChange,
): Promise<string> {
  const agent = fromJsonString(AgentSchema, session.agent, { ignoreUnknownFields: true });
  const spec = agent.spec ?? create(AgentSpecSchema);
  const changed: AgentSpec = { ...clone(AgentSpecSchema, spec), tools, mcpServers };
  checkSlots(tools, session);
  await inWordsOfTheChange(() => rules.check(asDefined(changed), session.workspaceId));
  return toJsonString(AgentSchema, { ...agent, spec: changed });
}

/** Where a session's hands come from is settled when it is made. */
function checkSlots(
  tools: readonly Tool[],
  { environmentId, slotEnvironmentIds }: Pick<SessionRecord, "environmentId" | "slotEnvironmentIds">,
): void {
  const environments: Readonly<Record<string, string>> = { ...slotEnvironmentIds, "": environmentId };
  for (const [at, { kind }] of tools.entries()) {
    if (kind.case !== "handToolset") continue;
    const { slot, environmentId: wanted } = kind.value;
    const path = `agent.tools[${at}].hand_toolset`;
    if (!Object.hasOwn(environments, slot))
      throw invalidField(`${path}.slot`, "the session has no such slot");
    if (wanted !== "" && wanted !== environments[slot])
      throw invalidField(`${path}.environment_id`, "the session's environments cannot be changed");
  }
}

/** As the agent was defined: what a session shows of skills besides is not an agent's to say. */
function asDefined(spec: AgentSpec): AgentSpec {
  const defined = clone(AgentSpecSchema, spec);
  for (const skill of defined.skills) Object.assign(skill, { name: "", description: "", directory: "" });
  for (const member of defined.multiagent?.agents ?? []) member.skills = [];
  return defined;
}

/** The rules speak of an agent's `spec`. */
async function inWordsOfTheChange(check: () => Promise<void>): Promise<void> {
  try {
    await check();
  } catch (error) {
    if (!isTendonError(error, "INVALID_FIELD")) throw error;
    const { field = "" } = error.metadata;
    throw invalidField(field.replace(/^spec\./, "agent."), error.message.slice(`${field}: `.length));
  }
}
