/**
 * What a model is told about its session's skills: one text behind the system prompt. Pure, and made of what was set when the
 * session was made, so that it is the same bytes in every request of the session.
 */
import type { Agent } from "../proto/gen/tendon/v1/agent_pb.js";

const INTRODUCTION =
  "You have skills: directories of instructions and programs, each for one kind of work, in the working directory of your " +
  "execution environment. When something to do is what a skill is for, read its SKILL.md first and follow it.";

/** The agent as its loop is to see it. Only skills that hands are given have names. */
export function withSkillNote(agent: Agent): Agent {
  const { spec } = agent;
  const skills = spec?.skills.filter(({ name }) => name !== "") ?? [];
  if (spec === undefined || skills.length === 0) return agent;
  const entries = skills.map(
    ({ name, directory, description }) =>
      `- skills/${directory || name}/SKILL.md (${name}): ${description.trim().replaceAll(/\s*\n\s*/g, " ")}`,
  );
  const note = ["<skills>", INTRODUCTION, ...entries, "</skills>"].join("\n");
  const system = spec.system.trim() === "" ? note : `${spec.system}\n\n${note}`;
  return { ...agent, spec: { ...spec, system } };
}
