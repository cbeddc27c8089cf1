/** Hands in Postgres. Transactions lock the session's row first, then hands, then executions. */
import { notFound, TendonError } from "../../../kit/errors.ts";
import { digestOfTools, type ToolRecord, toolListText } from "../hand-agents.ts";
import type { HandEvent, HandRecord, HandStateName, HandStore, LeaseClaim, StaleHand } from "../hands.ts";
import { LIVING_HANDS } from "./hand-agents.ts";
import { appendToLog } from "./hand-log.ts";
import { outputs } from "./hand-outputs.ts";
import { owners } from "./hand-owners.ts";
import { freePlaces, parking } from "./hand-parking.ts";
import { openHand } from "./open-hand.ts";
import { listPage } from "./page.ts";
import type { Pool } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

export const HAND_COLUMNS = `hand_id, workspace_id, session_id, slot, environment_id, environment, resources, hand_agent_id, driver, state,
  state_detail, owner_number, tools_digest, created_at, last_used_at, destroy_pending, left_processes, lost_position`;

export interface HandRow {
  hand_id: string;
  workspace_id: string;
  session_id: string | null;
  slot: string;
  environment_id: string;
  environment: string;
  resources: string;
  hand_agent_id: string | null;
  driver: string;
  state: HandStateName;
  state_detail: string;
  owner_number: number;
  tools_digest: string | null;
  created_at: Date;
  last_used_at: Date | null;
  destroy_pending: boolean;
  left_processes: string;
  lost_position: number | null;
}

/** The columns of a query that joins other tables. */
export function prefixedHandColumns(table: string): string {
  return HAND_COLUMNS.split(/,\s+/)
    .map((column) => `${table}.${column}`)
    .join(", ");
}

export function createHandStore(pool: Pool): HandStore {
  return {
    open: (request) => inTransaction(pool, (transaction) => openHand(transaction, request)),
    async find(handId) {
      const { rows } = await pool.query<HandRow>(`select ${HAND_COLUMNS} from hands where hand_id = $1`, [
        handId,
      ]);
      return rows[0] && toHand(rows[0]);
    },
    async usable(sessionId, slot) {
      const { rows } = await pool.query<HandRow>(
        `select ${HAND_COLUMNS} from hands where session_id = (
           select coalesce(hands_session_id, session_id) from sessions where session_id = $1
         ) and slot = $2 and state in ('ready', 'parked') and not ($2 = '' and exists (
           select from session_servers d join sessions s on d.session_id = coalesce(s.root_session_id, s.session_id)
           where s.session_id = $1 and d.served_by = 'worker'))`,
        [sessionId, slot],
      );
      return rows[0] && toHand(rows[0]);
    },
    async workspaceOfSession(sessionId) {
      const { rows } = await pool.query<{ workspace_id: string }>(
        "select workspace_id from sessions where session_id = $1",
        [sessionId],
      );
      return rows[0]?.workspace_id;
    },
    list({ workspaceId, sessionId, includeEnded, page }) {
      const values: unknown[] = [];
      const where: string[] = [];
      if (workspaceId !== undefined) where.push(`workspace_id = $${values.push(workspaceId)}`);
      if (sessionId !== "") where.push(`session_id = $${values.push(sessionId)}`);
      if (!includeEnded) where.push(LIVING_HANDS);
      const query = { columns: HAND_COLUMNS, from: "hands", where, values, page };
      return listPage<HandRow, HandRecord>(pool, { ...query, at: "created_at", id: "hand_id" }, toHand);
    },
    place: (request) => inTransaction(pool, (transaction) => place(transaction, request)),
    async setDetail(handId, stateDetail) {
      await pool.query("update hands set state_detail = $2 where hand_id = $1 and state_detail <> $2", [
        handId,
        stateDetail,
      ]);
    },
    ...changes(pool),
    ...lists(pool),
    ...parking(pool),
    ...outputs(pool),
    ...owners(pool),
    pinTools: (sessionId, slot, choose) => pinTools(pool, sessionId, slot, choose),
  };
}

function changes(pool: Pool): Pick<HandStore, "ready" | "report" | "end" | "destroyed"> {
  return {
    ready: ({ handId, stateDetail, events, notice }) =>
      inTransaction(pool, async (transaction) => {
        const hand = await lockHand(transaction, handId);
        if (hand?.state !== "provisioning") return undefined;
        const advance = await tell(transaction, hand, ...events);
        return {
          hand: await write(
            transaction,
            handId,
            `state = 'ready', ready_at = clock_timestamp(), state_detail = $2,
             notice = concat_ws(E'\\n', nullif(notice, ''), nullif($3, ''))`,
            [stateDetail, notice],
          ),
          advance: advance?.advance,
        };
      }),
    report: ({ handId, handAgentId, state, stateDetail, leftProcesses, event }) =>
      inTransaction(pool, async (transaction) => {
        const hand = await lockHand(transaction, handId);
        if (hand?.handAgentId !== handAgentId || (hand.state !== "ready" && hand.state !== "parked"))
          return undefined;
        const changed = hand.state !== state;
        // A call is on its way that resumes it.
        if (changed && state === "parked" && (await hasOpenExecution(transaction, hand))) return undefined;
        // Why it was parked, the server knows better than the agent.
        const detail = state === "parked" && !changed ? hand.stateDetail : stateDetail || hand.stateDetail;
        const advance = changed && event ? await tell(transaction, hand, event) : undefined;
        return {
          hand: await write(
            transaction,
            handId,
            `state = $2, state_detail = $3, left_processes = $4,
             parked_at = case when $2 <> 'parked' then null else coalesce(parked_at, clock_timestamp()) end`,
            [state, detail, leftProcesses],
          ),
          advance: advance?.advance,
        };
      }),
    end: ({ handId, state, stateDetail, destroyPending, event, lease, onlyUnused }) =>
      inTransaction(pool, async (transaction) => {
        const hand = await lockHand(transaction, handId, lease);
        if (hand === undefined || hand.state === "lost" || hand.state === "released") return undefined;
        if (onlyUnused && !(await isGuess(transaction, handId))) return undefined;
        // A hand that was never ready was never told of.
        const entry =
          event && hand.state !== "provisioning" ? await tell(transaction, hand, event) : undefined;
        return {
          hand: await write(
            transaction,
            handId,
            `state = $2, state_detail = $3, destroy_pending = $4 and hand_agent_id is not null, lost_position = $5,
             ended_at = clock_timestamp(), left_processes = '[]',
             request_id = case when state = 'provisioning' then null else request_id end`,
            [state, stateDetail, destroyPending, state === "lost" ? (entry?.position ?? null) : null],
          ),
          advance: entry?.advance,
        };
      }),
    async destroyed(handId) {
      await pool.query("update hands set destroy_pending = false where hand_id = $1 and destroy_pending", [
        handId,
      ]);
    },
  };
}

/** Nothing has used it, and nobody but a guess has asked for it. */
const GUESS = "speculative and state = 'ready' and last_used_at is null";

/** Kept so long for calls that wait for a client. */
const GUESS_FOR_CLIENT_S = 600;

/** Of a hand that is locked. */
async function isGuess(transaction: Transaction, handId: string): Promise<boolean> {
  const { rowCount } = await transaction.query(`select 1 from hands where hand_id = $1 and ${GUESS}`, [
    handId,
  ]);
  return rowCount === 1;
}

function lists(
  pool: Pool,
): Pick<HandStore, "ofAgent" | "undestroyed" | "ofSession" | "guessedInVain" | "known" | "stale"> {
  return {
    async guessedInVain(limit) {
      // A turn that waits for a client goes on: its calls may come to need the hand. A client may take for ever.
      const { rows } = await pool.query<HandRow>(
        `select ${HAND_COLUMNS} from hands where ${GUESS} and exists (select from sessions s
           where s.session_id = hands.session_id and s.status in ('idle', 'terminated')
             and (s.stop_reason <> 'requires_action'
               or s.updated_at < clock_timestamp() - $2::integer * interval '1 second'))
         order by created_at limit $1`,
        [limit, GUESS_FOR_CLIENT_S],
      );
      return rows.map(toHand);
    },
    async ofAgent(handAgentId) {
      const { rows } = await pool.query<HandRow>(
        `select ${HAND_COLUMNS} from hands where hand_agent_id = $1 and (${LIVING_HANDS} or destroy_pending)
         order by created_at`,
        [handAgentId],
      );
      return rows.map(toHand);
    },
    async undestroyed(handAgentIds, limit) {
      const { rows } = await pool.query<HandRow>(
        `select ${HAND_COLUMNS} from hands where hand_agent_id = any($1) and destroy_pending order by random() limit $2`,
        [handAgentIds, limit],
      );
      return rows.map(toHand);
    },
    async ofSession(sessionId) {
      const { rows } = await pool.query<HandRow>(
        `select ${HAND_COLUMNS} from hands where session_id = $1 and ${LIVING_HANDS}`,
        [sessionId],
      );
      return rows.map(toHand);
    },
    async known(handIds) {
      const { rows } = await pool.query<{ hand_id: string }>(
        "select hand_id from hands where hand_id = any($1)",
        [handIds],
      );
      return new Set(rows.map((row) => row.hand_id));
    },
    stale: (request) => stale(pool, request),
  };
}

/** Locks the hand and, before it, its session; with a lease, the epoch must be the newest (E1). */
export async function lockHand(
  transaction: Transaction,
  handId: string,
  lease?: LeaseClaim,
): Promise<HandRecord | undefined> {
  const seen = await transaction.query<{ session_id: string | null }>(
    "select session_id from hands where hand_id = $1",
    [handId],
  );
  const sessionId = seen.rows[0]?.session_id;
  if (sessionId) await lockSession(transaction, sessionId, lease);
  const { rows } = await transaction.query<HandRow>(
    `select ${HAND_COLUMNS} from hands where hand_id = $1 for update`,
    [handId],
  );
  return rows[0] && toHand(rows[0]);
}

export interface LockedSession {
  workspace_id: string;
  environment_id: string;
  slot_environment_ids: string;
  archived: boolean;
}

/** NOT_FOUND, LEASE_FENCED. */
export async function lockSession(
  transaction: Transaction,
  sessionId: string,
  lease: LeaseClaim | undefined,
): Promise<LockedSession> {
  const { rows } = await transaction.query<LockedSession & { lease_id: string | null; lease_epoch: number }>(
    `select workspace_id, environment_id, slot_environment_ids, archived_at is not null as archived, lease_id, lease_epoch
     from sessions where session_id = $1 for no key update`,
    [sessionId],
  );
  const session = rows[0];
  if (session === undefined) throw notFound("session", sessionId);
  if (lease && (session.lease_id !== lease.leaseId || BigInt(session.lease_epoch) !== lease.epoch)) {
    throw new TendonError(
      "LEASE_FENCED",
      `lease "${lease.leaseId}" with epoch ${lease.epoch} is not the session's newest`,
      { epoch: String(session.lease_epoch) },
    );
  }
  return session;
}

export async function tell(transaction: Transaction, hand: HandRecord, ...events: readonly HandEvent[]) {
  return hand.sessionId === undefined ? undefined : appendToLog(transaction, hand.sessionId, ...events);
}

export async function hasOpenExecution(transaction: Transaction, hand: HandRecord): Promise<boolean> {
  const { rowCount } = await transaction.query(
    "select 1 from executions where hand_agent_id = $1 and hand_id = $2 and finished_at is null limit 1",
    [hand.handAgentId, hand.handId],
  );
  return rowCount === 1;
}

export async function write(
  transaction: Transaction,
  handId: string,
  assignments: string,
  values: readonly unknown[],
): Promise<HandRecord> {
  const { rows } = await transaction.query<HandRow>(
    `update hands set ${assignments} where hand_id = $1 returning ${HAND_COLUMNS}`,
    [handId, ...values],
  );
  return toHand(rows[0]!);
}

async function place(
  transaction: Transaction,
  request: Parameters<HandStore["place"]>[0],
): Promise<HandRecord | undefined> {
  if ((await freePlaces(transaction, request.handAgentId)) <= 0) return undefined;
  const { rows } = await transaction.query<HandRow>(
    `update hands set hand_agent_id = $2, driver = $3, tools_digest = $4, state_detail = $5
     where hand_id = $1 and hand_agent_id is null and state = 'provisioning' returning ${HAND_COLUMNS}`,
    [request.handId, request.handAgentId, request.driver, request.toolsDigest, request.stateDetail],
  );
  return rows[0] && toHand(rows[0]);
}

async function stale(
  pool: Pool,
  { provisioningForMs, offlineForMs, limit }: Parameters<HandStore["stale"]>[0],
): Promise<StaleHand[]> {
  const { rows } = await pool.query<HandRow & { why: StaleHand["why"] }>(
    `select h.*, why from hands h
       left join hand_agents a using (hand_agent_id) left join sessions s using (session_id),
     lateral (select case
       when a.revoked_at is not null then 'agent_revoked'
       when h.of_session and (s.session_id is null or s.archived_at is not null) then 'session_ended'
       when h.state = 'provisioning' and h.created_at < clock_timestamp() - $1 * interval '1 millisecond' then 'provisioning'
       when h.hand_agent_id is not null and coalesce(a.last_seen_at, a.enrolled_at) < clock_timestamp() - $2 * interval '1 millisecond' then 'agent_gone'
     end as why) judged
     where h.${LIVING_HANDS} and why is not null order by h.hand_id limit $3`,
    [provisioningForMs, offlineForMs, limit],
  );
  return rows.map((row) => ({ hand: toHand(row), why: row.why }));
}

async function pinTools(
  pool: Pool,
  sessionId: string,
  slot: string,
  choose: Parameters<HandStore["pinTools"]>[2],
) {
  const pinned = async () => {
    const { rows } = await pool.query<{ digest: string; tools: string }>(
      "select digest, tools from session_slots join tool_lists on digest = tools_digest where session_id = $1 and slot = $2",
      [sessionId, slot],
    );
    return rows[0] && { digest: rows[0].digest, tools: JSON.parse(rows[0].tools) as ToolRecord[] };
  };
  const known = await pinned();
  if (known !== undefined) return known;
  const tools = await choose();
  const digest = digestOfTools(tools);
  const { rowCount } = await pool.query(
    `with listed as (insert into tool_lists (digest, tools) values ($3, $4) on conflict do nothing)
     insert into session_slots (session_id, slot, tools_digest) values ($1, $2, $3) on conflict do nothing`,
    [sessionId, slot, digest, toolListText(tools)],
  );
  return rowCount === 1 ? { digest, tools } : ((await pinned()) ?? { digest, tools });
}

export function toHand(row: HandRow): HandRecord {
  return {
    handId: row.hand_id,
    workspaceId: row.workspace_id,
    sessionId: row.session_id ?? undefined,
    slot: row.slot,
    environmentId: row.environment_id,
    environment: row.environment,
    resources: row.resources,
    handAgentId: row.hand_agent_id ?? undefined,
    driver: row.driver,
    state: row.state,
    stateDetail: row.state_detail,
    ownerNumber: row.owner_number,
    toolsDigest: row.tools_digest ?? undefined,
    createdAt: row.created_at,
    lastUsedAt: row.last_used_at ?? undefined,
    destroyPending: row.destroy_pending,
    leftProcesses: row.left_processes,
  };
}
