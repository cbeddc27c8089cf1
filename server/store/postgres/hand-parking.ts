/** Which hands are unused, and how they give their place back and get one again (H5). */
import type { HandRecord, HandStore, UnusedHandsQuery } from "../hands.ts";
import { PLACED_HANDS } from "./hand-agents.ts";
import {
  HAND_COLUMNS,
  type HandRow,
  hasOpenExecution,
  lockHand,
  prefixedHandColumns,
  tell,
  toHand,
  write,
} from "./hands.ts";
import type { Pool } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

/** A use is seen with microseconds here and with milliseconds there. */
const SAME_USE = "interval '1 millisecond'";

/** Calls of a hand run side by side: the end of the last one is among the newest so many. */
const NEWEST_CALLS = 16;

export function parking(
  pool: Pool,
): Pick<HandStore, "unused" | "park" | "resume" | "longParked" | "aged" | "excessParked"> {
  return {
    unused: (query) => unused(pool, query),
    park: (request) => inTransaction(pool, (transaction) => park(transaction, request)),
    resume: (handId, stateDetail) =>
      inTransaction(pool, (transaction) => resume(transaction, handId, stateDetail)),
    async longParked(keepMs, limit) {
      const { rows } = await pool.query<HandRow>(
        `select ${HAND_COLUMNS} from hands
         where state = 'parked' and parked_at < clock_timestamp()
           - case when keep_parked_ms > 0 then keep_parked_ms else $1 end * interval '1 millisecond'
         order by parked_at, hand_id limit $2`,
        [keepMs, limit],
      );
      return rows.map(toHand);
    },
    async aged(limit) {
      const { rows } = await pool.query<HandRow>(
        `select ${prefixedHandColumns("h")} from hands h left join sessions s using (session_id)
         where h.max_age_ms > 0 and h.state in ('ready', 'parked')
           and h.created_at < clock_timestamp() - h.max_age_ms * interval '1 millisecond'
           and (s.session_id is null
             or not (s.status = 'running' or (s.lease_id is not null and s.lease_expires_at > clock_timestamp())))
           and not exists (select 1 from executions e
             where e.hand_agent_id = h.hand_agent_id and e.hand_id = h.hand_id and e.finished_at is null)
         order by h.created_at, h.hand_id limit $1`,
        [limit],
      );
      return rows.map(toHand);
    },
    async excessParked(mostOfAgent, limit) {
      const { rows } = await pool.query<HandRow>(
        `select ${HAND_COLUMNS} from hands where state = 'parked' and hand_id in (
           select hand_id from (
             select hand_id, row_number() over (partition by hand_agent_id order by parked_at desc, hand_id) as place
             from hands where state = 'parked') ranked
           where place > $1)
         order by parked_at, hand_id limit $2`,
        [mostOfAgent, limit],
      );
      return rows.map(toHand);
    },
  };
}

async function unused(pool: Pool, query: UnusedHandsQuery): Promise<HandRecord[]> {
  const { rows } = await pool.query<HandRow>(
    `select ${prefixedHandColumns("h")} from hands h
       join hand_agents a using (hand_agent_id) left join sessions s using (session_id),
     lateral (select coalesce(h.last_used_at, h.ready_at, h.created_at) as begun,
       clock_timestamp() - case when $3 and h.idle_timeout_ms > 0 then h.idle_timeout_ms else $2 end
         * interval '1 millisecond' as since) judged
     where h.hand_agent_id = any($1) and h.state = 'ready' and begun < since
       and not h.hand_id = any($5)
       and a.drivers::jsonb @> jsonb_build_array(jsonb_build_object('name', h.driver, 'capabilities', array['park']))
       and ($4 or s.session_id is null
         or not (s.status = 'running' or (s.lease_id is not null and s.lease_expires_at > clock_timestamp())))
       and not exists (select 1 from executions e
         where e.hand_agent_id = h.hand_agent_id and e.hand_id = h.hand_id and e.finished_at is null)
       and not exists (select 1 from (
           select e.finished_at from executions e where e.hand_id = h.hand_id
           order by e.bound_at desc limit ${NEWEST_CALLS}) newest
         where newest.finished_at >= since)
     order by h.left_processes <> '[]', begun, h.hand_id limit $6`,
    [
      query.handAgentIds,
      query.unusedForMs,
      query.byIdleTimeout,
      query.alsoRunning,
      query.except,
      query.limit,
    ],
  );
  return rows.map(toHand);
}

async function park(
  transaction: Transaction,
  { hand: seen, stateDetail, event }: Parameters<HandStore["park"]>[0],
): ReturnType<HandStore["park"]> {
  const hand = await lockHand(transaction, seen.handId);
  if (hand?.state !== "ready" || (await hasOpenExecution(transaction, hand))) return undefined;
  const { rowCount } = await transaction.query(
    `select 1 from hands where hand_id = $1
       and (last_used_at is null or last_used_at < $2::timestamptz + ${SAME_USE})`,
    [hand.handId, seen.lastUsedAt ?? null],
  );
  if (rowCount === 0) return undefined;
  const entry = await tell(transaction, hand, event);
  const parked = await write(
    transaction,
    hand.handId,
    "state = 'parked', parked_at = clock_timestamp(), state_detail = $2, left_processes = '[]'",
    [stateDetail],
  );
  return { hand: parked, advance: entry?.advance };
}

async function resume(
  transaction: Transaction,
  handId: string,
  stateDetail: string,
): Promise<HandRecord | "full" | undefined> {
  const seen = await transaction.query<{ hand_agent_id: string | null }>(
    "select hand_agent_id from hands where hand_id = $1 and state = 'parked'",
    [handId],
  );
  const handAgentId = seen.rows[0]?.hand_agent_id;
  if (!handAgentId) return undefined;
  if ((await freePlaces(transaction, handAgentId)) <= 0) return "full";
  const { rows } = await transaction.query<HandRow>(
    `update hands set state = 'ready', parked_at = null, last_used_at = clock_timestamp(), state_detail = $2
     where hand_id = $1 and state = 'parked' returning ${HAND_COLUMNS}`,
    [handId, stateDetail],
  );
  return rows[0] && toHand(rows[0]);
}

/** Free places of an agent that is not revoked. Whoever takes one holds the agent's row until it is taken. */
export async function freePlaces(transaction: Transaction, handAgentId: string): Promise<number> {
  const agents = await transaction.query<{ capacity_hands: number }>(
    "select capacity_hands from hand_agents where hand_agent_id = $1 and revoked_at is null for update",
    [handAgentId],
  );
  // Counted by a statement of its own: one that waits for the lock still sees what was there before it waited.
  const placed = await transaction.query<{ places: number }>(
    `select count(*) as places from hands where hand_agent_id = $1 and ${PLACED_HANDS}`,
    [handAgentId],
  );
  return (agents.rows[0]?.capacity_hands ?? 0) - Number(placed.rows[0]!.places);
}
