/** Skills of agents: there, each once, and with a tool that reads them. */
import { clone, create } from "@bufbuild/protobuf";
import { invalidField, isTendonError, notFound } from "../../kit/errors.ts";
import {
  type AgentMember,
  type AgentSkill,
  AgentSkillSchema,
  type AgentSpec,
  AgentSpecSchema,
} from "../../proto/gen/tendon/v1/agent_pb.js";
import type { SkillVersion } from "../../proto/gen/tendon/v1/skill_pb.js";
import type { AgentSkills } from "../ports/skills.ts";
import type { AgentStore } from "../store/agents.ts";
import type { SkillStore } from "../store/skills.ts";

const READ = "read";
/** Of an agent and those that it may call, each counted once. */
const MAX_SKILLS = 500;

interface Stores {
  readonly skills: Pick<SkillStore, "find" | "findVersion">;
  readonly agents: Pick<AgentStore, "find">;
}

export function createAgentSkills(
  skills: Pick<SkillStore, "find" | "findVersion">,
  agents: Pick<AgentStore, "find">,
): AgentSkills {
  const stores = { skills, agents };
  return {
    async check(spec, workspaceId) {
      checkShape(spec);
      for (const [at, skill] of spec.skills.entries()) await versionOf(skills, skill, workspaceId, at);
    },
    async resolve(spec, workspaceId) {
      checkShape(spec);
      const own = clone(AgentSpecSchema, spec);
      own.skills = await resolved(stores, spec, workspaceId);
      return pinMembers(stores, own, workspaceId);
    },
    pinMembers: (spec, workspaceId) => pinMembers(stores, clone(AgentSpecSchema, spec), workspaceId),
  };
}

function checkShape(spec: AgentSpec): void {
  const { skills, multiagent } = spec;
  const pinned = (multiagent?.agents ?? []).findIndex((member) => member.skills.length > 0);
  if (pinned >= 0) throw invalidField(`spec.multiagent.agents[${pinned}].skills`, "is not to be set");
  checkRead(spec);
  const seen = new Set<string>();
  for (const [at, { skillId, name, description, directory }] of skills.entries()) {
    if (seen.has(skillId)) throw invalidField(`spec.skills[${at}].skill_id`, "is named before");
    if (name !== "" || description !== "" || directory !== "")
      throw invalidField(`spec.skills[${at}].name`, "is the skill's to say; leave it unset");
    seen.add(skillId);
  }
}

function checkRead({ skills, tools }: AgentSpec): void {
  if (skills.length === 0) return;
  const isRead = tools.some(({ kind }) => {
    if (kind.case !== "handToolset") return false;
    const { tools: policies, defaultPolicy } = kind.value;
    return !(policies[READ] ?? defaultPolicy)?.disabled;
  });
  if (!isRead) throw invalidField("spec.skills", "skills need a toolset of hands with read");
}

async function resolved({ skills }: Stores, spec: AgentSpec, workspaceId: string): Promise<AgentSkill[]> {
  const names = new Set<string>();
  const found: AgentSkill[] = [];
  for (const [at, skill] of spec.skills.entries()) {
    const version = await versionOf(skills, skill, workspaceId, at);
    const { name } = version;
    if (names.has(name)) throw invalidField(`spec.skills[${at}]`, `another skill is called "${name}"`);
    names.add(name);
    found.push(pinnedSkill(version));
  }
  return found;
}

/** Hands are made with the skills of all agents that may work in them; so these have their versions before. Changes `spec`. */
async function pinMembers(stores: Stores, spec: AgentSpec, workspaceId: string): Promise<AgentSpec> {
  const places = new SkillPlaces(spec.skills);
  for (const member of spec.multiagent?.agents ?? [])
    member.skills = (await skillsOfMember(stores, member, workspaceId)).map((skill) => places.place(skill));
  return spec;
}

/** Without those that are gone: whoever calls that agent does without them, or is told that it is gone itself. */
async function skillsOfMember(
  { skills, agents }: Stores,
  { kind }: AgentMember,
  workspaceId: string,
): Promise<AgentSkill[]> {
  if (kind.case !== "agent") return [];
  const agent = await agents.find(kind.value.id, kind.value.version);
  if (agent?.workspaceId !== workspaceId || agent.archivedAt !== undefined) return [];
  const found: AgentSkill[] = [];
  for (const [at, skill] of (agent.spec?.skills ?? []).entries()) {
    const version = await versionOf(skills, skill, workspaceId, at).catch((error: unknown) => {
      if (isTendonError(error, "NOT_FOUND")) return undefined;
      throw error;
    });
    if (version !== undefined) found.push(pinnedSkill(version));
  }
  return found;
}

/** Directories of skills in the hands of one session: two that differ are not in one, whatever they are called. */
class SkillPlaces {
  private readonly versions = new Map<string, string>();
  private readonly seen = new Set<string>();

  constructor(own: readonly AgentSkill[]) {
    for (const skill of own) this.place(skill);
  }

  place(skill: AgentSkill): AgentSkill {
    const { name, versionId } = skill;
    this.seen.add(versionId);
    if (this.seen.size > MAX_SKILLS)
      throw invalidField("spec.multiagent", `the agents have more than ${MAX_SKILLS} skills together`);
    for (let count = 1; ; count += 1) {
      const directory = count === 1 ? name : `${name}-${count}`;
      const other = this.versions.get(directory);
      if (other !== undefined && other !== versionId) continue;
      this.versions.set(directory, versionId);
      return directory === name ? skill : { ...skill, directory };
    }
  }
}

function pinnedSkill({ id: versionId, skillId, name, description }: SkillVersion): AgentSkill {
  return create(AgentSkillSchema, { skillId, versionId, name, description });
}

async function versionOf(
  skills: Stores["skills"],
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
