/** Skills of the agents that work in a hand, as files that it is given when it is made. */
import { create, fromJsonString } from "@bufbuild/protobuf";
import { AgentSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { type HandResource, HandResourceSchema } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { HandRecord } from "../store/hands.ts";
import type { HandDeps } from "./deps.ts";

/**
 * Those of the session's agent, and of the agents that it may call: their threads work here too. Below the hand's working
 * directory, where foreign workers have them too. Those that were deleted are left out.
 */
export async function skillFiles(
  { store }: Pick<HandDeps, "store">,
  { sessionId, workspaceId }: Pick<HandRecord, "sessionId" | "workspaceId">,
): Promise<HandResource[]> {
  const session = sessionId === undefined ? undefined : await store.sessions.find(sessionId);
  if (session === undefined) return [];
  const agent = fromJsonString(AgentSchema, session.agent, { ignoreUnknownFields: true });
  const skills = [agent.spec, ...(agent.spec?.multiagent?.agents ?? [])].flatMap((of) => of?.skills ?? []);
  const byDirectory = new Map(
    skills.flatMap(({ versionId, name, directory }): [string, string][] =>
      versionId === "" || name === "" ? [] : [[directory || name, versionId]],
    ),
  );
  if (byDirectory.size === 0) return [];
  const versions = await store.skills.findVersions([...new Set(byDirectory.values())], workspaceId);
  const filesOf = new Map(versions.map(({ id, files }) => [id, files]));
  return [...byDirectory].flatMap(([directory, versionId]) =>
    (filesOf.get(versionId) ?? []).map(({ path, sha256, executable }) =>
      create(HandResourceSchema, {
        kind: { case: "storedFile", value: { path: `skills/${directory}/${path}`, sha256, executable } },
      }),
    ),
  );
}
