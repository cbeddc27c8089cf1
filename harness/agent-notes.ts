/** What a model is told about its session behind the agent's own system prompt, in one order. Pure. */
import type { Agent } from "../proto/gen/tendon/v1/agent_pb.js";
import type { Assignment } from "../proto/gen/tendon/v1/harness_service_pb.js";
import { withMemoryNote } from "./memory-note.ts";
import { withRepositoryNote } from "./repository-note.ts";
import { withSkillNote } from "./skill-note.ts";
import { withWebNote } from "./web/web-note.ts";

/** The session's agent as its loop is to see it. */
export function notedAgent(assignment: Assignment): Agent {
  const { agent, resources } = assignment.session!;
  const withGiven = withRepositoryNote(withMemoryNote(withSkillNote(agent!), resources), resources);
  return withWebNote(withGiven, assignment);
}
