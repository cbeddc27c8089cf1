import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { AgentSchema } from "../proto/gen/tendon/v1/agent_pb.js";
import { withSkillNote } from "./skill-note.ts";

test("the model is told of skills behind the system prompt, where they are and what for; of none nothing", () => {
  const skills = [
    { skillId: "skill_1", versionId: "skver_1", name: "pdf", description: "Reads\n  forms." },
    { skillId: "skill_2" },
  ];
  const agent = create(AgentSchema, { spec: { system: "Be kind.", skills } });
  const { system } = withSkillNote(agent).spec!;
  expect(system).toMatch(/^Be kind\.\n\n<skills>\n/);
  expect(system).toContain("- skills/pdf/SKILL.md (pdf): Reads forms.\n</skills>");
  expect(withSkillNote(agent).spec!.system).toBe(system);
  const without = create(AgentSchema, { spec: { system: "Be kind.", skills: [{ skillId: "skill_2" }] } });
  expect(withSkillNote(without)).toBe(without);
});
