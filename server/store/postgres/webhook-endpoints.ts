import { create } from "@bufbuild/protobuf";
import { timestampFromDate } from "@bufbuild/protobuf/wkt";
import { TendonError } from "../../../kit/errors.ts";
import {
  type WebhookEndpoint,
  WebhookEndpointSchema,
  WebhookState,
} from "../../../proto/gen/tendon/v1/webhook_service_pb.js";
import type { SealedText } from "../credentials.ts";
import { SCOPES } from "../request-ids.ts";
import {
  MAX_OLD_SECRETS,
  MAX_WEBHOOK_ENDPOINTS,
  type NewWebhookEndpoint,
  type WebhookEndpointChange,
  type WebhookEndpointStore,
} from "../webhooks.ts";
import { insertAudit } from "./audit.ts";
import { listPage } from "./page.ts";
import type { Pool, Queryable } from "./pool.ts";
import { claimRequestId } from "./request-ids.ts";
import { timeField } from "./timestamps.ts";
import { inTransaction, type Transaction } from "./transaction.ts";
import { eraseDeliveries } from "./webhook-deliveries.ts";

interface Row {
  endpoint_id: string;
  workspace_id: string;
  url: string;
  name: string;
  description: string;
  enabled_events: string[];
  state: string;
  disabled_reason: string;
  failing_since: Date | null;
  dropped_deliveries: number;
  last_dropped_at: Date | null;
  old_secret_until: Date | null;
  created_at: Date;
  updated_at: Date;
}

const COLUMNS = `e.endpoint_id, e.workspace_id, e.url, e.name, e.description, e.enabled_events, e.state, e.disabled_reason,
  e.failing_since, e.dropped_deliveries, e.last_dropped_at, e.created_at, e.updated_at,
  (select max(ends_at) from webhook_secrets s where s.endpoint_id = e.endpoint_id and ends_at > clock_timestamp()) as old_secret_until`;

export function createWebhookEndpointStore(pool: Pool): WebhookEndpointStore {
  return {
    create: (endpoint) => inTransaction(pool, (transaction) => insert(transaction, endpoint)),
    async find(endpointId, workspaceId) {
      const row = await findRow(pool, endpointId, workspaceId);
      return row && toEndpoint(row);
    },
    list(workspaceId, page) {
      const scope = workspaceId === undefined ? [] : [workspaceId];
      const where = scope.map(() => "e.workspace_id = $1");
      const query = { columns: COLUMNS, from: "webhook_endpoints e", where, values: scope, page };
      return listPage<Row, WebhookEndpoint>(
        pool,
        { ...query, at: "e.created_at", id: "e.endpoint_id" },
        toEndpoint,
      );
    },
    update: (change) => inTransaction(pool, (transaction) => update(transaction, change)),
    async delete(endpointId, workspaceId, audit) {
      const deleted = await inTransaction(pool, async (transaction) => {
        const before = await findRow(transaction, endpointId, workspaceId, "for update");
        if (before === undefined) return false;
        await transaction.query("delete from webhook_endpoints where endpoint_id = $1", [endpointId]);
        await insertAudit(transaction, { ...audit, workspaceId: before.workspace_id });
        return true;
      });
      // Not in that transaction: whoever writes an attempt down locks deliveries before endpoints.
      if (deleted) await eraseDeliveries(pool, endpointId);
      return deleted;
    },
    addSecret: ({ endpointId, workspaceId, secret, overlapMs, audit }) =>
      inTransaction(pool, async (transaction) => {
        const before = await findRow(transaction, endpointId, workspaceId, "for update");
        if (before === undefined) return false;
        await addSecret(transaction, endpointId, secret, overlapMs);
        await insertAudit(transaction, { ...audit, workspaceId: before.workspace_id });
        return true;
      }),
    async secretsSealedToOthers(keyId, limit) {
      const { rows } = await pool.query<{
        endpoint_id: string;
        workspace_id: string;
        number: number;
        sealed: string;
      }>(
        `select s.endpoint_id, e.workspace_id, s.number, s.sealed from webhook_secrets s join webhook_endpoints e using (endpoint_id)
         where s.sealing_key_id <> $1 and (s.ends_at is null or s.ends_at > clock_timestamp()) limit $2`,
        [keyId, limit],
      );
      return rows.map(({ endpoint_id: endpointId, workspace_id: workspaceId, number, sealed }) => ({
        ...{ endpointId, workspaceId, number, sealed },
      }));
    },
    async storeResealed({ endpointId, number, sealed }, anew) {
      await pool.query(
        `update webhook_secrets set sealed = $4, sealing_key_id = $5
         where endpoint_id = $1 and number = $2 and sealed = $3`,
        [endpointId, number, sealed, anew.text, anew.keyId],
      );
    },
  };
}

async function findRow(
  db: Queryable,
  endpointId: string,
  workspaceId: string | undefined,
  lock = "",
): Promise<Row | undefined> {
  const { rows } = await db.query<Row>(
    `select ${COLUMNS} from webhook_endpoints e
     where e.endpoint_id = $1 and ($2::text is null or e.workspace_id = $2) ${lock}`,
    [endpointId, workspaceId ?? null],
  );
  return rows[0];
}

/** One at a time for a workspace, so that two at once do not get past the limit. */
async function insert(transaction: Transaction, wanted: NewWebhookEndpoint) {
  const { id, workspaceId, url, name, description, enabledEvents, secret, audit } = wanted;
  const claim = { ...wanted.request, workspaceId, scope: SCOPES.webhookEndpoint, subjectId: id };
  const earlier = await claimRequestId(transaction, claim);
  if (earlier !== undefined) return { endpoint: await stillThere(transaction, earlier), isNew: false };
  await transaction.query("select from workspaces where workspace_id = $1 for no key update", [workspaceId]);
  const { rows } = await transaction.query<{ endpoints: number }>(
    "select count(*)::integer as endpoints from webhook_endpoints where workspace_id = $1",
    [workspaceId],
  );
  if (rows[0]!.endpoints >= MAX_WEBHOOK_ENDPOINTS) {
    throw new TendonError(
      "LIMIT_EXCEEDED",
      `the workspace has all ${MAX_WEBHOOK_ENDPOINTS} webhook endpoints that it may have; delete one`,
      { limit: "webhook_endpoints", most: String(MAX_WEBHOOK_ENDPOINTS) },
    );
  }
  await transaction.query(
    `insert into webhook_endpoints (endpoint_id, workspace_id, url, name, description, enabled_events)
     values ($1, $2, $3, $4, $5, $6)`,
    [id, workspaceId, url, name, description, enabledEvents],
  );
  await addSecret(transaction, id, secret, 0);
  await insertAudit(transaction, { ...audit, workspaceId });
  return { endpoint: toEndpoint((await findRow(transaction, id, undefined))!), isNew: true };
}

async function stillThere(db: Queryable, endpointId: string): Promise<WebhookEndpoint> {
  const row = await findRow(db, endpointId, undefined);
  if (row !== undefined) return toEndpoint(row);
  throw new TendonError("REQUEST_ID_REUSED", "request_id: what it made has been deleted; use a new one", {
    field: "request_id",
  });
}

/** The endpoint's row is locked, or new. */
async function addSecret(
  transaction: Transaction,
  endpointId: string,
  secret: SealedText,
  overlapMs: number,
): Promise<void> {
  await transaction.query(
    `update webhook_secrets set ends_at = clock_timestamp() + $2 * interval '1 millisecond'
     where endpoint_id = $1 and (ends_at is null or ends_at > clock_timestamp() + $2 * interval '1 millisecond')`,
    [endpointId, overlapMs],
  );
  const { rows } = await transaction.query<{ number: number }>(
    `insert into webhook_secrets (endpoint_id, number, sealed, sealing_key_id)
     select $1, coalesce(max(number), 0) + 1, $2, $3 from webhook_secrets where endpoint_id = $1 returning number`,
    [endpointId, secret.text, secret.keyId],
  );
  await transaction.query(
    "delete from webhook_secrets where endpoint_id = $1 and (number < $2 or ends_at <= clock_timestamp())",
    [endpointId, rows[0]!.number - MAX_OLD_SECRETS],
  );
}

async function update(
  transaction: Transaction,
  change: WebhookEndpointChange,
): Promise<WebhookEndpoint | undefined> {
  const { endpointId, workspaceId, audit } = change;
  const before = await findRow(transaction, endpointId, workspaceId, "for no key update");
  if (before === undefined) return undefined;
  const { url = before.url, name = before.name, description = before.description } = change;
  const { enabledEvents = before.enabled_events, state } = change;
  const word = state === undefined ? before.state : wordOf(state);
  const isEnabling = word === "enabled" && before.state === "disabled";
  const wanted = [url, name, description, word, ...enabledEvents];
  const had = [before.url, before.name, before.description, before.state, ...before.enabled_events];
  if (JSON.stringify(wanted) === JSON.stringify(had)) return toEndpoint(before);
  await transaction.query(
    `update webhook_endpoints set url = $2, name = $3, description = $4, enabled_events = $5, state = $6,
       disabled_reason = case when $6 = state then disabled_reason else '' end,
       failing_since = case when $6 = state then failing_since end, updated_at = clock_timestamp()
     where endpoint_id = $1`,
    [endpointId, url, name, description, enabledEvents, word],
  );
  if (isEnabling) await makeDue(transaction, endpointId);
  await insertAudit(transaction, { ...audit, workspaceId: before.workspace_id });
  return toEndpoint((await findRow(transaction, endpointId, undefined))!);
}

/** Who has a lane locked is about to decide by itself when it is due. Looked for once, not again for each lane: hence the array. */
async function makeDue(transaction: Transaction, endpointId: string): Promise<void> {
  await transaction.query(
    `update webhook_lanes set due_at = clock_timestamp() where endpoint_id = $1 and lane = any(array(
       select lane from webhook_lanes where endpoint_id = $1 and claim_id is null for update skip locked))`,
    [endpointId],
  );
}

function wordOf(state: WebhookState): string {
  return state === WebhookState.DISABLED ? "disabled" : "enabled";
}

function toEndpoint(row: Row): WebhookEndpoint {
  return create(WebhookEndpointSchema, {
    id: row.endpoint_id,
    workspaceId: row.workspace_id,
    url: row.url,
    name: row.name,
    description: row.description,
    enabledEvents: row.enabled_events,
    state: row.state === "enabled" ? WebhookState.ENABLED : WebhookState.DISABLED,
    disabledReason: row.disabled_reason,
    createdAt: timestampFromDate(row.created_at),
    updatedAt: timestampFromDate(row.updated_at),
    droppedDeliveries: BigInt(row.dropped_deliveries),
    ...timeField("lastDroppedAt", row.last_dropped_at),
    ...timeField("failingSince", row.failing_since),
    ...timeField("oldSecretUntil", row.old_secret_until),
  });
}
