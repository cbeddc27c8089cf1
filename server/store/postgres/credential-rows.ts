/** Rows of credentials and what they mean. */
import { create, fromJsonString } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import {
  type Credential,
  CredentialSchema,
  CredentialUseSchema,
} from "../../../proto/gen/tendon/v1/vault_service_pb.js";
import type { StoredCredential } from "../credentials.ts";
import type { Queryable } from "./pool.ts";
import { timeField } from "./timestamps.ts";

export interface CredentialRow {
  credential_id: string;
  vault_id: string;
  workspace_id: string;
  display_name: string;
  metadata: string;
  use: string;
  destination: string;
  sealing_key_id: string;
  sealed: string | null;
  version: number;
  expires_at: Date | null;
  created_at: Date;
  updated_at: Date;
  archived_at: Date | null;
  is_refreshing: boolean;
  refreshed_at: Date | null;
  refresh_problem: string;
  refresh_broken: boolean;
}

const NAMES = [
  "credential_id",
  "vault_id",
  "workspace_id",
  "display_name",
  "metadata",
  "use",
  "destination",
  "sealing_key_id",
  "sealed",
  "version",
  "expires_at",
  "created_at",
  "updated_at",
  "archived_at",
  "refreshed_at",
  "refresh_problem",
  "refresh_broken",
];

/** For `from credentials c`. */
export const CREDENTIAL_COLUMNS = `${NAMES.map((name) => `c.${name}`).join(", ")},
  (c.refresh_claim_id is not null and c.refresh_claimed_until > clock_timestamp()) as is_refreshing`;

/** Callers who see one workspace alone find nothing of another. */
export async function findCredential(
  db: Queryable,
  credentialId: string,
  workspaceId: string | undefined,
  rest = "",
): Promise<CredentialRow | undefined> {
  const { rows } = await db.query<CredentialRow>(
    `select ${CREDENTIAL_COLUMNS} from credentials c
     where c.credential_id = $1 and ($2::text is null or c.workspace_id = $2) ${rest}`,
    [credentialId, workspaceId ?? null],
  );
  return rows[0];
}

/** The same, but for those in a vault of a session's or a deployment's own: they are changed with its resources alone. */
export async function findListedCredential(
  db: Queryable,
  credentialId: string,
  workspaceId: string | undefined,
  lock = "",
): Promise<CredentialRow | undefined> {
  const own = `select from vaults v where v.vault_id = c.vault_id
    and (v.session_id is not null or v.deployment_id is not null)`;
  return findCredential(db, credentialId, workspaceId, `and not exists (${own}) ${lock}`);
}

export function toStored(row: CredentialRow): StoredCredential {
  return {
    credential: toCredential(row),
    workspaceId: row.workspace_id,
    sealed: row.sealed ?? undefined,
    version: row.version,
    isRefreshing: row.is_refreshing,
  };
}

export function toCredential(row: CredentialRow): Credential {
  return create(CredentialSchema, {
    id: row.credential_id,
    vaultId: row.vault_id,
    displayName: row.display_name,
    use: fromJsonString(CredentialUseSchema, row.use, { ignoreUnknownFields: true }),
    sealingKeyId: row.sealing_key_id,
    metadata: JSON.parse(row.metadata) as Record<string, string>,
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
    refreshProblem: row.refresh_broken ? row.refresh_problem : "",
    ...timeField("archivedAt", row.archived_at),
    ...timeField("expiresAt", row.expires_at),
    ...timeField("refreshedAt", row.refreshed_at),
  });
}
