/** Files that the hand's session was given, for the agent that keeps them in the hand. */
import { notFound } from "../../kit/errors.ts";
import type {
  ListHandFilesRequest,
  ReadHandFileRequest,
  ReadHandFileResponse,
} from "../../proto/gen/tendon/v1/hand_agent_service_pb.js";
import { resourcesOf } from "../ports/session-message.ts";
import type { HandDeps } from "./deps.ts";
import { ownHand } from "./hand-mounts.ts";

type UploadDeps = Pick<HandDeps, "store">;

export async function listHandFiles(deps: UploadDeps, request: ListHandFilesRequest, handAgentId: string) {
  const { hand, sessionId } = await ownHand(deps, request, handAgentId);
  return { files: await filesOf(deps, sessionId, hand.workspaceId) };
}

export async function* readHandFile(
  deps: UploadDeps,
  request: ReadHandFileRequest,
  handAgentId: string,
): AsyncGenerator<Pick<ReadHandFileResponse, "chunk">> {
  const { sha256 } = request;
  const { hand, sessionId } = await ownHand(deps, request, handAgentId);
  const { workspaceId } = hand;
  const isGiven = (await filesOf(deps, sessionId, workspaceId)).some((file) => file.sha256 === sha256);
  if (!isGiven) throw notFound("file of the hand's session", sha256);
  for await (const chunk of deps.store.blobs.read({ workspaceId, sha256 })) yield { chunk };
}

async function filesOf({ store }: UploadDeps, sessionId: string, workspaceId: string) {
  const session = await store.sessions.find(sessionId);
  const given = resourcesOf(session?.resources ?? "[]").flatMap(({ kind }) =>
    kind.case === "file" ? [kind.value] : [],
  );
  const ids = given.map(({ fileId }) => fileId);
  const found = ids.length === 0 ? [] : await store.files.findAll(ids, workspaceId);
  const byId = new Map(found.map((file) => [file.id, file]));
  return given.flatMap(({ fileId, mountPath: path }) => {
    const file = byId.get(fileId);
    return file === undefined ? [] : [{ path, sha256: file.sha256, sizeBytes: file.sizeBytes }];
  });
}
