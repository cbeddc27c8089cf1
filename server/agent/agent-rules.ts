/** The rules of agents, for other areas. */
import type { AgentRules } from "../ports/agent-rules.ts";
import type { AgentSkills } from "../ports/skills.ts";
import type { AgentStore } from "../store/agents.ts";
import { checkMembersExist } from "./members.ts";
import { checkAgentSpec } from "./rules.ts";

export function createAgentRules(agents: Pick<AgentStore, "find">, skills: AgentSkills): AgentRules {
  return {
    async check(spec, workspaceId) {
      checkAgentSpec(spec);
      await checkMembersExist(agents, spec, workspaceId);
      await skills.check(spec, workspaceId);
    },
  };
}
