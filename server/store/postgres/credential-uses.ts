/** What proxies and the re-sealing of the server do with credentials. */
import { TendonError } from "../../../kit/errors.ts";
import { newId } from "../../../kit/ids.ts";
import type {
  CredentialOpening,
  CredentialStore,
  RefreshClaimOutcome,
  StoredCredential,
} from "../credentials.ts";
import { insertAudit } from "./audit.ts";
import { CREDENTIAL_COLUMNS, type CredentialRow, findCredential, toStored } from "./credential-rows.ts";
import type { Pool, Queryable } from "./pool.ts";
import { dateOf } from "./timestamps.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

type Uses = Pick<
  CredentialStore,
  | "session"
  | "open"
  | "hasAny"
  | "variables"
  | "variableNames"
  | "claimRefresh"
  | "storeRefreshed"
  | "endRefresh"
  | "sealedToOthers"
  | "storeResealed"
>;

/** What was refreshed just now and is refused all the same is not refreshed again so soon. */
const FRESH_FOR_MS = 60_000;
/** Threads have the vaults of their root. */
const SESSION_WITH_ROOT =
  "from sessions s join sessions r on r.session_id = coalesce(s.root_session_id, s.session_id)";
/**
 * Its own vault, its deployment's, then those that it was given. The session's workspace is asked for at each step: a row that
 * names another's vault leads nowhere.
 */
const THEIR_CREDENTIALS = `${SESSION_WITH_ROOT}
  cross join lateral (
    select vault_id, place from unnest(r.vault_ids) with ordinality as given (vault_id, place)
    union all select vault_id, -1 from vaults where session_id = r.session_id
    union all select vault_id, 0 from vaults where deployment_id = r.deployment_id
  ) as wanted
  join vaults v on v.vault_id = wanted.vault_id and v.workspace_id = s.workspace_id and v.archived_at is null
    and (v.session_id is null or v.session_id = r.session_id)
    and (v.deployment_id is null or v.deployment_id = r.deployment_id)
  join credentials c on c.vault_id = v.vault_id and c.workspace_id = s.workspace_id
    and c.archived_at is null and c.sealed is not null`;
/** Twenty credentials in each of sixteen vaults. */
const MAX_VARIABLES = 320;
/** How soon whoever waits for another's refresh should ask again. */
const ASK_AGAIN_MS = 150;
const FIRST_PAUSE_MS = 5_000;
const MAX_PAUSE_MS = 15 * 60_000;
/** Failures after which the token endpoint may have given a new token that never arrived. */
const IS_UNFINISHED = new Set(["timeout", "connection_lost", "invalid_response"]);

export function credentialUses(pool: Pool): Uses {
  return {
    async session(sessionId) {
      const { rows } = await pool.query<{ workspace_id: string; lease_epoch: number; is_archived: boolean }>(
        `select s.workspace_id, s.lease_epoch, (s.archived_at is not null or r.archived_at is not null) as is_archived
         ${SESSION_WITH_ROOT} where s.session_id = $1`,
        [sessionId],
      );
      const row = rows[0];
      if (row === undefined) return undefined;
      return { workspaceId: row.workspace_id, epoch: BigInt(row.lease_epoch), isArchived: row.is_archived };
    },
    open: (opening) => openCredential(pool, opening),
    async hasAny(sessionId, destinations) {
      const { rowCount } = await pool.query(
        `select 1 ${THEIR_CREDENTIALS} where s.session_id = $1 and c.destination = any($2) limit 1`,
        [sessionId, destinations],
      );
      return rowCount > 0;
    },
    async variableNames(vaultIds, workspaceId) {
      const { rows } = await pool.query<{ name: string }>(
        `select distinct substr(c.destination, length('variable ') + 1) as name
         from vaults v join credentials c on c.vault_id = v.vault_id
         where v.vault_id = any($1) and v.workspace_id = $2 and v.archived_at is null
           and c.archived_at is null and c.sealed is not null and c.destination like 'variable %'
         order by name limit ${MAX_VARIABLES}`,
        [vaultIds, workspaceId],
      );
      return rows.map((row) => row.name);
    },
    async variables(sessionId) {
      const { rows } = await pool.query<CredentialRow>(
        `select distinct on (c.destination) ${CREDENTIAL_COLUMNS} ${SESSION_WITH_ROOT}
         cross join lateral unnest(r.vault_ids) with ordinality as wanted (vault_id, place)
         join vaults v on v.vault_id = wanted.vault_id and v.workspace_id = s.workspace_id and v.archived_at is null
         join credentials c on c.vault_id = v.vault_id and c.workspace_id = s.workspace_id
           and c.archived_at is null and c.sealed is not null and c.destination like 'variable %'
         where s.session_id = $1
         order by c.destination, wanted.place limit ${MAX_VARIABLES}`,
        [sessionId],
      );
      return rows.map(toStored);
    },
    claimRefresh: (claim) => inTransaction(pool, (transaction) => claimRefresh(transaction, claim)),
    storeRefreshed: (refreshed) =>
      inTransaction(pool, (transaction) => storeRefreshed(transaction, refreshed)),
    endRefresh: (end) => inTransaction(pool, (transaction) => endRefresh(transaction, end)),
    async sealedToOthers({ keyId, without, limit }) {
      // Two ranges of the index, which are empty most of the time; "<>" would read all of it.
      const those = (range: string) =>
        `(select ${CREDENTIAL_COLUMNS} from credentials c
          where c.sealed is not null and c.sealing_key_id ${range} $1 and c.credential_id <> all($2) limit $3)`;
      const sql = `${those("<")} union all ${those(">")} limit $3`;
      const { rows } = await pool.query<CredentialRow>(sql, [keyId, without, limit]);
      return rows.map(toStored);
    },
    storeResealed: ({ credentialId, expectedVersion, sealed, audit }) =>
      inTransaction(pool, async (transaction) => {
        const before = await findCredential(transaction, credentialId, undefined, "for update");
        if (before?.version !== expectedVersion || before.sealed === null || before.is_refreshing)
          return false;
        await transaction.query(
          "update credentials set sealed = $2, sealing_key_id = $3, version = version + 1 where credential_id = $1",
          [credentialId, sealed.text, sealed.keyId],
        );
        await insertAudit(transaction, { ...audit, workspaceId: before.workspace_id });
        return true;
      }),
  };
}

/** One statement: what is found is in the audit log once it is committed (S5), and without waiting for a second one. */
export async function openCredential(
  db: Queryable,
  { sessionId, destinations, audit }: CredentialOpening,
): Promise<StoredCredential | undefined> {
  const { rows } = await db.query<CredentialRow>(
    `with found as (
       select ${CREDENTIAL_COLUMNS} ${THEIR_CREDENTIALS}
       where s.session_id = $1 and c.destination = any($2)
       order by wanted.place, array_position($2, c.destination) limit 1),
     noted as (
       insert into audit_entries (audit_id, workspace_id, actor, action, subject, detail, session_id)
       select $3, workspace_id, $4, 'credential.open', credential_id, '{"vault_id":' || to_json(vault_id)::text || $5, $1
       from found)
     select * from found`,
    [sessionId, destinations, newId("audit"), audit.actor, restOfObject(audit.detail)],
  );
  return rows[0] && toStored(rows[0]);
}

/** JSON text of an object's members, to follow others. */
function restOfObject(detail: Readonly<Record<string, string>>): string {
  const text = JSON.stringify(detail);
  return text === "{}" ? text.slice(1) : `,${text.slice(1)}`;
}

interface RefreshRow {
  workspace_id: string;
  sealed: string | null;
  version: number;
  held: boolean;
  held_ms: number;
  holder: string | null;
  broken: boolean;
  problem: string;
  pause_ms: number;
  fresh: boolean;
  unfinished: boolean;
  expires_in_ms: number | null;
}

async function lockForRefresh(
  transaction: Transaction,
  credentialId: string,
  workspaceId: string | undefined,
): Promise<RefreshRow | undefined> {
  const ms = (until: string) =>
    `coalesce(extract(epoch from ${until} - clock_timestamp()) * 1000, 0)::double precision`;
  const { rows } = await transaction.query<RefreshRow>(
    `select workspace_id, sealed, version, refresh_claim_id as holder, refresh_broken as broken, refresh_problem as problem,
       refresh_claim_id is not null and refresh_claimed_until > clock_timestamp() as held,
       ${ms("refresh_claimed_until")} as held_ms, ${ms("refresh_retry_at")} as pause_ms,
       refresh_unfinished or (refresh_claim_id is not null and refresh_claimed_until <= clock_timestamp()) as unfinished,
       coalesce(refreshed_at > clock_timestamp() - interval '${FRESH_FOR_MS} milliseconds', false) as fresh,
       case when expires_at is null then null else ${ms("expires_at")} end as expires_in_ms
     from credentials where credential_id = $1 and ($2::text is null or workspace_id = $2) and archived_at is null
     for update`,
    [credentialId, workspaceId ?? null],
  );
  return rows[0];
}

async function claimRefresh(
  transaction: Transaction,
  claim: Parameters<Uses["claimRefresh"]>[0],
): Promise<RefreshClaimOutcome | undefined> {
  const row = await lockForRefresh(transaction, claim.credentialId, claim.workspaceId);
  if (row === undefined || row.sealed === null) return undefined;
  const refused = refusedClaim(row, claim);
  if (refused !== undefined) return refused;
  await transaction.query(
    `update credentials set refresh_claim_id = $2, refresh_claimed_until = clock_timestamp() + $3 * interval '1 millisecond',
       refresh_unfinished = $4 where credential_id = $1`,
    [claim.credentialId, claim.claimId, claim.ttlMs, row.unfinished],
  );
  const detail = row.unfinished ? { ...claim.audit.detail, after_unfinished: true } : claim.audit.detail;
  await insertAudit(transaction, {
    ...claim.audit,
    workspaceId: row.workspace_id,
    ...(detail && { detail }),
  });
  return { claim: "granted", problem: "" };
}

/** Why this claim is not granted, if it is not. */
function refusedClaim(
  row: RefreshRow,
  { version, claimId, refused }: { version: number; claimId: string; refused: boolean },
): RefreshClaimOutcome | undefined {
  const { problem } = row;
  if (row.version !== version)
    return { claim: "changed", problem, sealed: row.sealed!, version: row.version };
  if (row.held) {
    if (row.holder === claimId) return { claim: "granted", problem: "" };
    return { claim: "held", problem, retryAfterMs: Math.min(ASK_AGAIN_MS, Math.max(1, row.held_ms)) };
  }
  if (row.broken) return { claim: "broken", problem };
  if (row.pause_ms > 0) return { claim: "failed", problem, retryAfterMs: row.pause_ms };
  // After a refresh of which nobody knows how it ended, a second one may end the whole grant: not while a token is good.
  const isGood = row.expires_in_ms !== null && row.expires_in_ms > 0 && !refused;
  if (row.unfinished && isGood) {
    return { claim: "failed", problem: "unfinished_refresh", retryAfterMs: row.expires_in_ms! };
  }
  return row.fresh && (refused || isGood) ? { claim: "fresh", problem } : undefined;
}

async function storeRefreshed(
  transaction: Transaction,
  refreshed: Parameters<Uses["storeRefreshed"]>[0],
): Promise<number | undefined> {
  const { credentialId, expectedVersion, sealed, expiresAtMs, audit } = refreshed;
  const row = await lockForRefresh(transaction, credentialId, refreshed.workspaceId);
  if (row === undefined || row.sealed === null) return undefined;
  if (row.version !== expectedVersion) {
    throw new TendonError(
      "VERSION_MISMATCH",
      `expected_version: the credential is at version ${row.version} by now`,
      {
        field: "expected_version",
        version: String(row.version),
      },
    );
  }
  await transaction.query(
    `update credentials set sealed = $2, sealing_key_id = $3, expires_at = $4, version = version + 1,
       refresh_claim_id = null, refresh_claimed_until = null, refresh_unfinished = false, refresh_failures = 0,
       refresh_retry_at = null, refresh_problem = '', refresh_broken = false, refreshed_at = clock_timestamp()
     where credential_id = $1`,
    [credentialId, sealed.text, sealed.keyId, dateOf(expiresAtMs)],
  );
  await insertAudit(transaction, { ...audit, workspaceId: row.workspace_id });
  return row.version + 1;
}

async function endRefresh(
  transaction: Transaction,
  end: Parameters<Uses["endRefresh"]>[0],
): Promise<boolean | undefined> {
  const { credentialId, claimId, problem, isFinal, audit } = end;
  const row = await lockForRefresh(transaction, credentialId, end.workspaceId);
  if (row === undefined) return undefined;
  if (row.holder !== claimId) return false;
  // The grant is gone because of a refresh that nobody saw the end of: said as that, so that people know what happened.
  const told = isFinal && row.unfinished ? "unfinished_refresh" : problem;
  await transaction.query(
    `update credentials set refresh_claim_id = null, refresh_claimed_until = null, refresh_problem = $2,
       refresh_broken = $3, refresh_unfinished = $6, refresh_failures = refresh_failures + 1,
       refresh_retry_at = clock_timestamp()
         + least($4::double precision, $5 * power(2, least(refresh_failures, 20))) * interval '1 millisecond'
     where credential_id = $1`,
    [credentialId, told, isFinal, MAX_PAUSE_MS, FIRST_PAUSE_MS, row.unfinished || IS_UNFINISHED.has(problem)],
  );
  await insertAudit(transaction, {
    ...audit,
    workspaceId: row.workspace_id,
    detail: { ...audit.detail, problem: told },
  });
  return true;
}
