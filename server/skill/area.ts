/** Puts the parts that know skills together. */
import { bindService } from "../../kit/rpc/service.ts";
import { SkillService } from "../../proto/gen/tendon/v1/skill_service_pb.js";
import type { Area } from "../ports/area.ts";
import type { AgentSkills } from "../ports/skills.ts";
import type { AgentStore } from "../store/agents.ts";
import { createAgentSkills } from "./agent-skills.ts";
import { type SkillServiceDeps, SkillServiceHandler } from "./service.ts";

export interface SkillArea extends Area {
  readonly ofAgents: AgentSkills;
}

export interface SkillAreaDeps extends SkillServiceDeps {
  readonly store: SkillServiceDeps["store"] & { readonly agents: Pick<AgentStore, "find"> };
}

export function createSkillArea(deps: SkillAreaDeps): SkillArea {
  return {
    name: "skill",
    services: [bindService(SkillService, new SkillServiceHandler(deps))],
    ofAgents: createAgentSkills(deps.store.skills, deps.store.agents),
  };
}
