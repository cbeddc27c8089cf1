import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { newId } from "../../../kit/ids.ts";
import { type AuditEntry, AuditEntrySchema } from "../../../proto/gen/tendon/v1/admin_service_pb.js";
import type { AuditInput, AuditStore } from "../audit.ts";
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
}

export function createAuditStore(pool: Pool): AuditStore {
  return {
    record: (entry) => insertAudit(pool, entry),
    list({ workspaceId, subject, page }) {
      const values: unknown[] = [];
      const where: string[] = [];
      if (workspaceId !== undefined) where.push(`workspace_id = $${values.push(workspaceId)}`);
      if (subject !== undefined) where.push(`subject = $${values.push(subject)}`);
      const columns = "audit_id, at, workspace_id, actor, action, subject, detail";
      return listPage<Row, AuditEntry>(
        pool,
        { columns, from: "audit_entries", where, values, at: "at", id: "audit_id", page },
        toEntry,
      );
    },
  };
}

/** Writes an entry, in the caller's transaction. */
export async function insertAudit(db: Queryable, entry: AuditInput): Promise<void> {
  await db.query(
    `insert into audit_entries (audit_id, workspace_id, actor, action, subject, detail) values ($1, $2, $3, $4, $5, $6)`,
    [
      newId("audit"),
      entry.workspaceId ?? null,
      entry.actor,
      entry.action,
      entry.subject,
      JSON.stringify(entry.detail ?? {}),
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
  });
}
