/** Skills of agents: there, each once, and with a tool that reads them. */
import { clone, create } from "@bufbuild/protobuf";
import { invalidField, notFound } from "../../kit/errors.ts";
import {
  type AgentSkill,
  AgentSkillSchema,
  type AgentSpec,
  AgentSpecSchema,
} from "../../proto/gen/tendon/v1/agent_pb.js";
import type { SkillVersion } from "../../proto/gen/tendon/v1/skill_pb.js";
import type { AgentSkills } from "../ports/skills.ts";
import type { SkillStore } from "../store/skills.ts";

const READ = "read";

export function createAgentSkills(skills: Pick<SkillStore, "find" | "findVersion">): AgentSkills {
  return {
    async check(spec, workspaceId) {
      checkShape(spec);
      for (const [at, skill] of spec.skills.entries()) await versionOf(skills, skill, workspaceId, at);
    },
    async resolve(spec, workspaceId) {
      if (spec.skills.length === 0) return spec;
      checkShape(spec);
      const names = new Set<string>();
      const resolved: AgentSkill[] = [];
      for (const [at, skill] of spec.skills.entries()) {
        const { id: versionId, skillId, name, description } = await versionOf(skills, skill, workspaceId, at);
        if (names.has(name)) throw invalidField(`spec.skills[${at}]`, `another skill is called "${name}"`);
        names.add(name);
        resolved.push(create(AgentSkillSchema, { skillId, versionId, name, description }));
      }
      const own = clone(AgentSpecSchema, spec);
      own.skills = resolved;
      return own;
    },
  };
}

function checkShape({ skills, tools }: AgentSpec): void {
  if (skills.length === 0) return;
  const isRead = tools.some(({ kind }) => {
    if (kind.case !== "handToolset") return false;
    const { tools: policies, defaultPolicy } = kind.value;
    return !(policies[READ] ?? defaultPolicy)?.disabled;
  });
  if (!isRead) throw invalidField("spec.skills", "skills need a toolset of hands with read");
  const seen = new Set<string>();
  for (const [at, { skillId, name, description }] of skills.entries()) {
    if (seen.has(skillId)) throw invalidField(`spec.skills[${at}].skill_id`, "is named before");
    if (name !== "" || description !== "")
      throw invalidField(`spec.skills[${at}].name`, "is the skill's to say; leave it unset");
    seen.add(skillId);
  }
}

async function versionOf(
  skills: Pick<SkillStore, "find" | "findVersion">,
  { skillId, versionId }: AgentSkill,
  workspaceId: string,
  at: number,
): Promise<SkillVersion> {
  const field = `spec.skills[${at}]`;
  if (skillId.includes("\0") || versionId.includes("\0"))
    throw invalidField(field, "must not hold a NUL character");
  const skill = await skills.find(skillId);
  if (skill?.workspaceId !== workspaceId) throw notFound("skill", skillId);
  const wanted = versionId || skill.latestVersionId;
  const version = wanted === "" ? undefined : await skills.findVersion(skillId, wanted);
  if (version === undefined) throw notFound("skill version", wanted || skillId);
  return version;
}
