/** The agents that an agent may call. */
import { clone } from "@bufbuild/protobuf";
import { invalidField } from "../../kit/errors.ts";
import {
  type Agent,
  type AgentSpec,
  AgentSpecSchema,
  type Multiagent,
} from "../../proto/gen/tendon/v1/agent_pb.js";
import type { AgentStore } from "../store/agents.ts";

/** Each is named once (pure). Throws INVALID_FIELD. */
export function checkMembers({ multiagent }: Pick<AgentSpec, "multiagent">): void {
  const named = new Set<string>();
  for (const [index, { kind }] of membersOf(multiagent).entries()) {
    const path = `spec.multiagent.agents[${index}]`;
    const name = kind.case === "agent" ? kind.value.id : "self";
    if (named.has(name)) throw invalidField(path, `"${name}" is named before`);
    named.add(name);
  }
}

/** Throws INVALID_FIELD for one that is not there, or archived. Gives them by their places in the list. */
export async function checkMembersExist(
  agents: Pick<AgentStore, "find">,
  { multiagent }: AgentSpec,
  workspaceId: string,
): Promise<ReadonlyMap<number, Agent>> {
  const members = new Map<number, Agent>();
  for (const [index, { kind }] of membersOf(multiagent).entries()) {
    if (kind.case !== "agent") continue;
    const path = `spec.multiagent.agents[${index}].agent`;
    const { id, version } = kind.value;
    const found = await agents.find(id, version);
    if (found?.workspaceId !== workspaceId) {
      throw invalidField(path, `there is no agent "${id}"${version === 0 ? "" : ` with version ${version}`}`);
    }
    if (found.archivedAt !== undefined) throw invalidField(path, `the agent "${id}" is archived`);
    members.set(index, found);
  }
  return members;
}

/** Each with the version that was found (pure). */
export function withPinnedMembers(spec: AgentSpec, found: ReadonlyMap<number, Agent>): AgentSpec {
  const pinned = clone(AgentSpecSchema, spec);
  for (const [index, { kind }] of membersOf(pinned.multiagent).entries()) {
    const version = found.get(index)?.version;
    if (kind.case === "agent" && version !== undefined) kind.value.version = version;
  }
  return pinned;
}

function membersOf(multiagent: Multiagent | undefined) {
  return multiagent?.agents ?? [];
}
