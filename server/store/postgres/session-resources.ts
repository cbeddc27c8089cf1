import { fromJson, type JsonValue, toJson } from "@bufbuild/protobuf";
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { invalidField, notFound } from "../../../kit/errors.ts";
import { type SessionResource, SessionResourceSchema } from "../../../proto/gen/tendon/v1/session_pb.js";
import { sessionArchived } from "../refusals.ts";
import { SCOPES } from "../request-ids.ts";
import type { SessionResourceStore } from "../session-resources.ts";
import { releaseBlobsOf } from "./blobs.ts";
import { copyFiles } from "./files.ts";
import type { Pool } from "./pool.ts";
import { claimRequestId } from "./request-ids.ts";
import { findOwnVault, putOwnCredentials } from "./session-vaults.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

export function createSessionResourceStore(pool: Pool): SessionResourceStore {
  return {
    addFile: (request) => inTransaction(pool, (transaction) => addFile(transaction, request)),
    removeFile: (sessionId, resourceId) =>
      inTransaction(pool, (transaction) => removeFile(transaction, sessionId, resourceId)),
    ownVault: (sessionId, destination) => findOwnVault(pool, sessionId, destination),
    setToken: (request) => inTransaction(pool, (transaction) => setToken(transaction, request)),
  };
}

async function addFile(
  transaction: Transaction,
  { sessionId, workspaceId, resource, copy, check, request }: Parameters<SessionResourceStore["addFile"]>[0],
): Promise<SessionResource> {
  const { resources: there } = await findLocked(transaction, sessionId);
  const scope = SCOPES.sessionResource(sessionId);
  const earlier = await claimRequestId(transaction, {
    ...request,
    workspaceId,
    scope,
    subjectId: resource.id,
  });
  if (earlier !== undefined) {
    const first = there.find(({ id }) => id === earlier);
    if (first === undefined) throw notFound("session resource", earlier);
    return first;
  }
  check(there);
  await copyFiles(transaction, { workspaceId, sessionId }, [copy]);
  await write(transaction, sessionId, [...there, resource]);
  return resource;
}

async function removeFile(transaction: Transaction, sessionId: string, resourceId: string): Promise<void> {
  const { resources: there, workspaceId } = await findLocked(transaction, sessionId);
  const gone = there.find(({ id }) => id === resourceId && id !== "");
  if (gone === undefined) throw notFound("session resource", resourceId);
  if (gone.kind.case !== "file")
    throw invalidField(
      "resource_id",
      "only files are taken away again; all else stays for the session's life",
    );
  await write(
    transaction,
    sessionId,
    there.filter((resource) => resource !== gone),
  );
  const { fileId } = gone.kind.value;
  await transaction.query("delete from files where file_id = $1", [fileId]);
  await releaseBlobsOf(transaction, { workspaceId, owners: [fileId] });
}

async function setToken(
  transaction: Transaction,
  { sessionId, resourceId, vault, atMs }: Parameters<SessionResourceStore["setToken"]>[0],
): Promise<SessionResource> {
  const { resources: there, workspaceId } = await findLocked(transaction, sessionId);
  const resource = there.find(({ id }) => id === resourceId && id !== "");
  if (resource?.kind.case !== "gitRepository") throw notFound("repository of the session", resourceId);
  await putOwnCredentials(transaction, { sessionId, workspaceId }, vault);
  resource.kind.value.updatedAt = timestampFromMs(atMs);
  await write(transaction, sessionId, there);
  return resource;
}

async function findLocked(
  transaction: Transaction,
  sessionId: string,
): Promise<{ resources: SessionResource[]; workspaceId: string }> {
  const { rows } = await transaction.query<{ resources: string; workspace_id: string; archived: boolean }>(
    `select resources, workspace_id, archived_at is not null as archived from sessions where session_id = $1
       for no key update`,
    [sessionId],
  );
  const [row] = rows;
  if (row === undefined) throw notFound("session", sessionId);
  if (row.archived) throw sessionArchived(sessionId);
  const resources = (JSON.parse(row.resources) as JsonValue[]).map((resource) =>
    fromJson(SessionResourceSchema, resource, { ignoreUnknownFields: true }),
  );
  return { resources, workspaceId: row.workspace_id };
}

async function write(
  transaction: Transaction,
  sessionId: string,
  resources: readonly SessionResource[],
): Promise<void> {
  const text = JSON.stringify(resources.map((resource) => toJson(SessionResourceSchema, resource)));
  await transaction.query("update sessions set resources = $2, updated_at = now() where session_id = $1", [
    sessionId,
    text,
  ]);
}
