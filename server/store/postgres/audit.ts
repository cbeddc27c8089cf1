import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { newId } from "../../../kit/ids.ts";
import { type AuditEntry, AuditEntrySchema } from "../../../proto/gen/tendon/v1/admin_service_pb.js";
import type { AuditInput, AuditQuery, AuditStore, CredentialRecordInput } from "../audit.ts";
import { listPage } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";

interface Row {
  audit_id: string;
  at: Date;
  workspace_id: string | null;
  actor: string;
  action: string;
  subject: string;
  detail: string;
  session_id: string | null;
}

const COLUMNS = "audit_id, at, workspace_id, actor, action, subject, detail, session_id";

export function createAuditStore(pool: Pool): AuditStore {
  return {
    record: (entry) => insertAudit(pool, entry),
    recordUses: (records, workspaceId) => recordUses(pool, records, workspaceId),
    list(query) {
      const { page, ascending } = query;
      const list = { columns: COLUMNS, from: "audit_entries", ...conditionsOf(query), page, ascending };
      return listPage<Row, AuditEntry>(pool, { ...list, at: "at", id: "audit_id" }, toEntry);
    },
  };
}

function conditionsOf(query: AuditQuery): { where: string[]; values: unknown[] } {
  const values: unknown[] = [];
  const where: string[] = [];
  const add = (condition: string, value: unknown) => {
    if (value !== undefined) where.push(`${condition} $${values.push(value)}`);
  };
  add("workspace_id =", query.workspaceId);
  add("subject =", query.subject);
  add("actor =", query.actor);
  add("session_id =", query.sessionId);
  add("at >=", query.since);
  add("at <", query.until);
  const { action } = query;
  if (action?.endsWith(".")) where.push(`starts_with(action, $${values.push(action)})`);
  else add("action =", action);
  return { where, values };
}

/** One statement. A workspace that the actor may not see is not one that it can write about. */
async function recordUses(
  db: Queryable,
  records: readonly CredentialRecordInput[],
  workspaceId: string | undefined,
): Promise<void> {
  await db.query(
    `insert into audit_entries (audit_id, workspace_id, actor, action, subject, detail, session_id)
     select r.id, coalesce(c.workspace_id, s.workspace_id), r.actor, r.action, r.subject, r.detail, nullif(r.session_id, '')
     from unnest($1::text[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[])
       as r (id, credential_id, session_id, actor, action, subject, detail)
     left join credentials c on c.credential_id = r.credential_id
     left join sessions s on s.session_id = r.session_id
     where $8::text is null or coalesce(c.workspace_id, s.workspace_id) = $8
     on conflict (audit_id) do nothing`,
    [
      records.map(({ id }) => id),
      records.map(({ credentialId }) => credentialId),
      records.map(({ sessionId }) => sessionId),
      records.map(({ actor }) => actor),
      records.map(({ action }) => action),
      records.map(({ subject }) => subject),
      records.map(({ detail }) => JSON.stringify(detail ?? {})),
      workspaceId ?? null,
    ],
  );
}

/** Writes an entry, in the caller's transaction. */
export async function insertAudit(db: Queryable, entry: AuditInput): Promise<void> {
  await db.query(
    `insert into audit_entries (audit_id, workspace_id, actor, action, subject, detail, session_id)
     values ($1, $2, $3, $4, $5, $6, $7)`,
    [
      newId("audit"),
      entry.workspaceId ?? null,
      entry.actor,
      entry.action,
      entry.subject,
      JSON.stringify(entry.detail ?? {}),
      entry.sessionId ?? null,
    ],
  );
}

function toEntry(row: Row): AuditEntry {
  return create(AuditEntrySchema, {
    id: row.audit_id,
    at: timestampFromDate(row.at),
    workspaceId: row.workspace_id ?? "",
    actor: row.actor,
    action: row.action,
    subject: row.subject,
    detail: row.detail,
    sessionId: row.session_id ?? "",
  });
}
