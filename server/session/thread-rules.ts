/** Which threads a session may make (pure). */
import { fromJsonString } from "@bufbuild/protobuf";
import { notFound, TendonError } from "../../kit/errors.ts";
import {
  type Agent,
  AgentSchema,
  type AgentSkill,
  type Multiagent,
} from "../../proto/gen/tendon/v1/agent_pb.js";
import type { SessionRecord } from "../store/sessions.ts";

const DEFAULT_MAX_DEPTH = 1;
const DEFAULT_MAX_THREADS = 1_000;
const DEFAULT_MAX_LIVE = 25;

export interface CalledAgent {
  readonly id: string;
  readonly version: number;
  readonly skills: readonly AgentSkill[];
}

export interface TreeBounds {
  readonly maxThreads: number;
  readonly maxLiveThreads: number;
}

/** As the agent at the root has them. THREAD_LIMIT_REACHED for a thread below one at `depth`. */
export function boundsOfTree(root: SessionRecord, depth: number): TreeBounds {
  const { maxDepth = 0, maxThreads = 0, maxLiveThreads = 0 } = multiagentOf(root) ?? {};
  const deepest = maxDepth || DEFAULT_MAX_DEPTH;
  if (depth >= deepest) {
    const why = `threads may be nested ${deepest} deep, and this one is`;
    throw new TendonError("THREAD_LIMIT_REACHED", why, { limit: "max_depth", most: String(deepest) });
  }
  return {
    maxThreads: maxThreads || DEFAULT_MAX_THREADS,
    maxLiveThreads: maxLiveThreads || DEFAULT_MAX_LIVE,
  };
}

/**
 * The member that is meant by an id, a name or `self`, with the skills that its threads have; `names` has the members' names
 * by id. ROLE_NOT_ALLOWED, with the agents that may be called.
 */
export function calledAgent(
  parent: SessionRecord,
  wanted: string,
  names: ReadonlyMap<string, string>,
): CalledAgent | "self" {
  const members = multiagentOf(parent)?.agents ?? [];
  for (const { kind, skills } of members) {
    if (kind.case === "self" && wanted === "self") return "self";
    if (kind.case !== "agent") continue;
    const { id, version } = kind.value;
    if (id === wanted || names.get(id) === wanted) return { id, version, skills };
  }
  const known = members.map(({ kind }) =>
    kind.case === "agent" ? `"${names.get(kind.value.id) ?? kind.value.id}"` : `"self"`,
  );
  const may = known.length === 0 ? "it may call none" : `it may call ${known.join(", ")}`;
  throw new TendonError("ROLE_NOT_ALLOWED", `the session's agent may not call "${wanted}"; ${may}`);
}

/** With the skills that its session has said it has. NOT_FOUND, AGENT_ARCHIVED. */
export function agentOfThread(
  parent: SessionRecord,
  member: ReturnType<typeof calledAgent>,
  found: Agent | undefined,
): Agent {
  if (member === "self") return agentOf(parent);
  if (found === undefined) throw notFound("agent", member.id);
  if (found.archivedAt !== undefined) {
    throw new TendonError("AGENT_ARCHIVED", `the agent "${member.id}" is archived`, { agent_id: member.id });
  }
  if (found.spec === undefined) return found;
  return { ...found, spec: { ...found.spec, skills: [...member.skills] } };
}

function multiagentOf(session: SessionRecord): Multiagent | undefined {
  return agentOf(session).spec?.multiagent;
}

function agentOf({ agent }: SessionRecord): Agent {
  return fromJsonString(AgentSchema, agent, { ignoreUnknownFields: true });
}
