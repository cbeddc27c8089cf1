/** Skills of a session's agent, as files that its hands are given when they are made. */
import { create, fromJsonString } from "@bufbuild/protobuf";
import { AgentSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { type HandResource, HandResourceSchema } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { HandRecord } from "../store/hands.ts";
import type { HandDeps } from "./deps.ts";

/** Below the hand's working directory, where foreign workers have them too. Those that were deleted are left out. */
export async function skillFiles(
  { store }: Pick<HandDeps, "store">,
  { sessionId, workspaceId }: Pick<HandRecord, "sessionId" | "workspaceId">,
): Promise<HandResource[]> {
  const session = sessionId === undefined ? undefined : await store.sessions.find(sessionId);
  if (session === undefined) return [];
  const agent = fromJsonString(AgentSchema, session.agent, { ignoreUnknownFields: true });
  const ids = (agent.spec?.skills ?? []).map(({ versionId }) => versionId).filter((id) => id !== "");
  if (ids.length === 0) return [];
  const versions = await store.skills.findVersions(ids, workspaceId);
  return versions.flatMap(({ name, files }) =>
    files.map(({ path, sha256, executable }) =>
      create(HandResourceSchema, {
        kind: { case: "storedFile", value: { path: `skills/${name}/${path}`, sha256, executable } },
      }),
    ),
  );
}
