import { createHash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { invalidField, notFound } from "../../../kit/errors.ts";
import { newId } from "../../../kit/ids.ts";
import { type File, FileSchema } from "../../../proto/gen/tendon/v1/file_pb.js";
import type { BlobRecord } from "../blobs.ts";
import type { FileCopy, FileStore, NewFile, NewOutput } from "../files.ts";
import type { LogAdvance } from "../session-append.ts";
import { insertAudit } from "./audit.ts";
import { referToBlob, releaseBlobsOf, writeBlob } from "./blobs.ts";
import { appendToLog } from "./hand-log.ts";
import { listPage } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { claimRequestId, wasAsked } from "./request-ids.ts";
import { timeField } from "./timestamps.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

interface Row {
  file_id: string;
  workspace_id: string;
  filename: string;
  mime_type: string;
  size_bytes: number;
  sha256: string;
  session_id: string | null;
  is_output: boolean;
  created_at: Date;
  expires_at: Date | null;
}

const COLUMNS = `file_id, workspace_id, filename, mime_type, size_bytes, encode(sha256, 'hex') as sha256, session_id,
  is_output, created_at, expires_at`;

export function createFileStore(pool: Pool): FileStore {
  return {
    create: (file) => createFile(pool, file),
    async find(fileId) {
      const row = await findRow(pool, fileId);
      return row && toFile(row);
    },
    async findAll(fileIds, workspaceId) {
      const { rows } = await pool.query<Row>(
        `select ${COLUMNS} from files where file_id = any($1) and ($2::text is null or workspace_id = $2)
           and ${THERE} order by created_at desc, file_id desc`,
        [fileIds, workspaceId ?? null],
      );
      return rows.map(toFile);
    },
    list({ workspaceId, sessionId, page }) {
      const values: unknown[] = [];
      const where: string[] = [THERE];
      if (workspaceId !== undefined) where.push(`workspace_id = $${values.push(workspaceId)}`);
      if (sessionId !== "") where.push(`session_id = $${values.push(sessionId)}`);
      const query = { columns: COLUMNS, from: "files", where, values, page };
      return listPage<Row, File>(pool, { ...query, at: "created_at", id: "file_id" }, toFile);
    },
    delete: (fileId, workspaceId, audit) =>
      inTransaction(pool, async (transaction) => {
        const { rows } = await transaction.query<{ workspace_id: string; filename: string }>(
          `delete from files where file_id = $1 and ($2::text is null or workspace_id = $2)
             returning workspace_id, filename`,
          [fileId, workspaceId ?? null],
        );
        const [gone] = rows;
        if (gone === undefined) return false;
        await releaseBlobsOf(transaction, { workspaceId: gone.workspace_id, owners: [fileId] });
        const detail = { filename: gone.filename };
        await insertAudit(transaction, { ...audit, workspaceId: gone.workspace_id, detail });
        return true;
      }),
    deleteExpired: (limit) => inTransaction(pool, (transaction) => deleteExpired(transaction, limit)),
    async outputs(sessionId) {
      const { rows } = await pool.query<Row>(
        `select distinct on (filename) ${COLUMNS} from files where session_id = $1 and is_output
           order by filename, created_at desc, file_id desc`,
        [sessionId],
      );
      return rows.map(toFile);
    },
    async outputUsage(sessionId) {
      const { rows } = await pool.query<{ files: number; bytes: number }>(
        `select count(*)::integer as files, coalesce(sum(size_bytes), 0)::bigint as bytes from files
           where session_id = $1 and is_output`,
        [sessionId],
      );
      return rows[0]!;
    },
    storeOutput: (output) => storeOutput(pool, output),
    noteOutput: (sessionId, event) =>
      inTransaction(pool, async (transaction) => (await appendToLog(transaction, sessionId, event)).advance),
  };
}

/** One whose time is over is not there any more, whether it is deleted yet or not. */
const THERE = "(expires_at is null or expires_at > clock_timestamp())";

async function findRow(db: Queryable, fileId: string): Promise<Row | undefined> {
  const { rows } = await db.query<Row>(`select ${COLUMNS} from files where file_id = $1`, [fileId]);
  return rows[0];
}

/** Ends the transaction of a blob that is not wanted after all. */
class NotWanted extends Error {
  readonly earlierId: string | undefined;

  constructor(earlierId: string | undefined) {
    super("the bytes are there already");
    this.earlierId = earlierId;
  }
}

async function createFile(pool: Pool, file: NewFile): Promise<File> {
  const { fileId, workspaceId, filename, mimeType, bytes, maxBytes, requestId } = file;
  let row: Row | undefined;
  try {
    const after = async (transaction: Transaction, blob: BlobRecord) => {
      const { sha256, expiresInSeconds } = file.end();
      if (sha256 !== "" && sha256 !== blob.sha256)
        throw invalidField("end.sha256", `the bytes have the digest ${blob.sha256}`);
      const asked = JSON.stringify([filename, mimeType, blob.sha256, expiresInSeconds]);
      const contentHash = createHash("sha256").update(asked).digest();
      const claim = { requestId, contentHash, workspaceId, scope: "file", subjectId: fileId };
      const earlier = await claimRequestId(transaction, claim);
      if (earlier !== undefined) throw new NotWanted(earlier);
      row = await insert(transaction, { ...file, blob, sessionId: null, isOutput: false, expiresInSeconds });
    };
    const isRepeat = await wasAsked(pool, { workspaceId, scope: "file", requestId });
    await writeBlob(pool, { workspaceId, owner: fileId, bytes, maxBytes }, { after, isRepeat });
  } catch (error) {
    if (!(error instanceof NotWanted)) throw error;
    row = await findRow(pool, error.earlierId!);
    if (row === undefined) throw notFound("file", error.earlierId!);
  }
  return toFile(row!);
}

interface Insert {
  readonly fileId: string;
  readonly filename: string;
  readonly mimeType: string;
  readonly blob: BlobRecord;
  readonly sessionId: string | null;
  readonly isOutput: boolean;
  readonly expiresInSeconds: number;
}

async function insert(
  transaction: Transaction,
  { fileId, filename, mimeType, blob, sessionId, isOutput, expiresInSeconds }: Insert,
): Promise<Row> {
  const { rows } = await transaction.query<Row>(
    `insert into files (file_id, workspace_id, filename, mime_type, size_bytes, sha256, session_id, is_output, expires_at)
       values ($1, $2, $3, $4, $5, $6, $7, $8,
         case when $9::bigint > 0 then clock_timestamp() + $9 * interval '1 second' end) returning ${COLUMNS}`,
    [
      ...[fileId, blob.workspaceId, filename, mimeType, blob.sizeBytes, Buffer.from(blob.sha256, "hex")],
      ...[sessionId, isOutput, expiresInSeconds],
    ],
  );
  return rows[0]!;
}

/** One at a time of each session, so that two that bring the same do not both make a file of it. */
async function storeOutput(
  pool: Pool,
  output: NewOutput,
): Promise<{ file: File; advance: LogAdvance } | undefined> {
  const { fileId, workspaceId, sessionId, path, mimeType, bytes, maxBytes, sha256 } = output;
  let stored: { file: File; advance: LogAdvance } | undefined;
  const write = { workspaceId, owner: fileId, bytes, maxBytes, sha256 };
  try {
    const before = async (transaction: Transaction) => {
      const session = await transaction.query(
        "select 1 from sessions where session_id = $1 for no key update",
        [sessionId],
      );
      if (session.rowCount === 0) throw notFound("session", sessionId);
    };
    const after = async (transaction: Transaction, blob: BlobRecord) => {
      const { rows } = await transaction.query<{ sha256: string }>(
        `select encode(sha256, 'hex') as sha256 from files where session_id = $1 and is_output and filename = $2
           order by created_at desc, file_id desc limit 1`,
        [sessionId, path],
      );
      if (rows[0]?.sha256 === sha256) throw new NotWanted(undefined);
      const facts = { fileId, filename: path, mimeType, sessionId, isOutput: true, expiresInSeconds: 0 };
      const row = await insert(transaction, { ...facts, blob });
      const { advance } = await appendToLog(transaction, sessionId, output.event);
      stored = { file: toFile(row), advance };
    };
    await writeBlob(pool, write, { before, after });
  } catch (error) {
    if (!(error instanceof NotWanted)) throw error;
  }
  return stored;
}

async function deleteExpired(transaction: Transaction, limit: number): Promise<number> {
  const { rows } = await transaction.query<{ workspace_id: string; file_id: string }>(
    `delete from files where file_id in (
       select file_id from files where expires_at <= clock_timestamp() order by expires_at limit $1 for update skip locked)
     returning workspace_id, file_id`,
    [limit],
  );
  const workspaces = [...new Set(rows.map((row) => row.workspace_id))].toSorted();
  for (const workspaceId of workspaces) {
    const owners = rows.filter((row) => row.workspace_id === workspaceId).map((row) => row.file_id);
    await releaseBlobsOf(transaction, { workspaceId, owners });
  }
  return rows.length;
}

/** In the transaction that gives them to the session. NOT_FOUND for an original that is gone. */
export async function copyFiles(
  transaction: Transaction,
  { workspaceId, sessionId }: { workspaceId: string; sessionId: string },
  copies: readonly FileCopy[],
): Promise<void> {
  for (const { fileId, originalId } of copies) {
    const { rows } = await transaction.query<{ sha256: string }>(
      `insert into files (file_id, workspace_id, filename, mime_type, size_bytes, sha256, session_id)
         select $1, workspace_id, filename, mime_type, size_bytes, sha256, $2 from files
           where file_id = $3 and workspace_id = $4 and ${THERE}
       returning encode(sha256, 'hex') as sha256`,
      [fileId, sessionId, originalId, workspaceId],
    );
    const sha256 = rows[0]?.sha256;
    const isThere =
      sha256 !== undefined && (await referToBlob(transaction, { workspaceId, sha256, owner: fileId }));
    if (!isThere) throw notFound("file", originalId);
  }
}

/** In the transaction that makes the fork: its files are copies of its own, and those that are gone are left out. */
export async function forkFiles(
  transaction: Transaction,
  { workspaceId, sessionId }: { workspaceId: string; sessionId: string },
): Promise<void> {
  const { rows } = await transaction.query<{ resources: string }>(
    "select resources from sessions where session_id = $1",
    [sessionId],
  );
  const resources = JSON.parse(rows[0]?.resources ?? "[]") as { file?: { fileId: string } }[];
  const given = resources.flatMap(({ file }) => (file === undefined ? [] : [file.fileId]));
  if (given.length === 0) return;
  const found = await transaction.query<{ file_id: string }>(
    "select file_id from files where file_id = any($1) for key share",
    [given],
  );
  const copies = found.rows.map((row) => ({ fileId: newId("file"), originalId: row.file_id }));
  await copyFiles(transaction, { workspaceId, sessionId }, copies);
  const idOf = new Map(copies.map(({ fileId, originalId }) => [originalId, fileId]));
  const own = resources.flatMap((resource) => {
    if (resource.file === undefined) return [resource];
    const fileId = idOf.get(resource.file.fileId);
    return fileId === undefined ? [] : [{ ...resource, file: { ...resource.file, fileId } }];
  });
  await transaction.query("update sessions set resources = $2 where session_id = $1", [
    sessionId,
    JSON.stringify(own),
  ]);
}

/** In the transaction that deletes the session, before it does. */
export async function releaseFilesOf(transaction: Transaction, sessionId: string): Promise<void> {
  const { rows } = await transaction.query<{ workspace_id: string; file_id: string }>(
    "delete from files where session_id = $1 returning workspace_id, file_id",
    [sessionId],
  );
  const workspaceId = rows[0]?.workspace_id;
  if (workspaceId === undefined) return;
  await releaseBlobsOf(transaction, { workspaceId, owners: rows.map((row) => row.file_id) });
}

function toFile(row: Row): File {
  return create(FileSchema, {
    id: row.file_id,
    workspaceId: row.workspace_id,
    filename: row.filename,
    mimeType: row.mime_type,
    sizeBytes: BigInt(row.size_bytes),
    sha256: row.sha256,
    sessionId: row.session_id ?? "",
    isOutput: row.is_output,
    createdAt: timestampFromDate(row.created_at),
    ...timeField("expiresAt", row.expires_at),
  });
}
