/** Skills as existing clients know them (pure). */
import type { Skill, SkillVersion } from "../../../../proto/gen/tendon/v1/skill_pb.js";
import { timeJson } from "../time-json.ts";

export function skillJson({ id, displayName, latestVersionId, createdAt, updatedAt }: Skill) {
  return {
    type: "skill",
    id,
    display_name: displayName,
    latest_version_id: latestVersionId,
    source: { type: "custom" },
    created_at: timeJson(createdAt),
    updated_at: timeJson(updatedAt),
  };
}

export function skillVersionJson({ id, skillId, name, description, createdAt }: SkillVersion) {
  return {
    type: "skill_version",
    id,
    skill_id: skillId,
    name,
    description,
    created_at: timeJson(createdAt),
  };
}
