/**
 * What a model is told about its session's git repositories: one text behind the system prompt. Pure, and made of what was set
 * when the session was made, so that it is the same bytes in every request of the session.
 */
import type { Agent } from "../proto/gen/tendon/v1/agent_pb.js";
import type { AttachedGitRepository } from "../proto/gen/tendon/v1/git_pb.js";
import type { SessionResource } from "../proto/gen/tendon/v1/session_pb.js";

const INTRODUCTION =
  "Execution environments have clones of these git repositories, by paths relative to the directory in which commands start. " +
  "git fetch, pull and push work there as they are, without signing in.";
const ROOT = "/workspace/";

/** The agent as its loop is to see it: with the note behind its system prompt. */
export function withRepositoryNote(agent: Agent, resources: readonly SessionResource[]): Agent {
  const { spec } = agent;
  const repositories = resources.flatMap(({ kind }) => (kind.case === "gitRepository" ? [kind.value] : []));
  const hasHands = spec?.tools.some(({ kind }) => kind.case === "handToolset") ?? false;
  if (spec === undefined || repositories.length === 0 || !hasHands) return agent;
  const note = ["<repositories>", INTRODUCTION, ...repositories.map(entryOf), "</repositories>"].join("\n");
  const system = spec.system.trim() === "" ? note : `${spec.system}\n\n${note}`;
  return { ...agent, spec: { ...spec, system } };
}

function entryOf({ url, mountPath, slot, checkout, pushBranches }: AttachedGitRepository): string {
  const { at } = checkout ?? {};
  const more = [
    ...(at?.case === undefined ? [] : [`${at.case} ${at.value}`]),
    ...(pushBranches.length === 0 ? [] : [`may be pushed to: ${pushBranches.join(", ")}`]),
    ...(slot === "" ? [] : [`in the environment "${slot}"`]),
  ];
  const path = mountPath.startsWith(ROOT) ? mountPath.slice(ROOT.length) : mountPath;
  return `- ${path}: ${url}${more.length === 0 ? "" : ` (${more.join("; ")})`}`;
}
