import type {
  CallAnswer,
  ClientCall,
  ClientCallStore,
  OverdueSession,
  WaitingCall,
} from "../client-calls.ts";
import { CALL_TYPES } from "../open-calls.ts";
import type { Pool, Queryable } from "./pool.ts";

const CONFIRMATION = "user.tool_confirmation";

export function createClientCallStore(pool: Pool): ClientCallStore {
  return {
    find: (sessionId, callIds) => find(pool, sessionId, callIds),
    async overdue(limit) {
      const { rows } = await pool.query<{ session_id: string; head: number }>(
        `select session_id, head from sessions where answers_due_at <= clock_timestamp() and archived_at is null
         order by answers_due_at limit $1`,
        [limit],
      );
      const sessions: OverdueSession[] = [];
      for (const { session_id: sessionId, head } of rows) {
        sessions.push({ sessionId, head, calls: await waitingCalls(pool, sessionId) });
      }
      return sessions;
    },
    async setDue(sessionId, afterMs) {
      await pool.query(
        `update sessions set answers_due_at = clock_timestamp() + $2::bigint * interval '1 millisecond' where session_id = $1`,
        [sessionId, afterMs === undefined ? null : Math.ceil(afterMs)],
      );
    },
  };
}

interface CallRow {
  event_id: string;
  position: number;
  type: string;
  payload: string;
  result_id: string | null;
  result_position: number;
  result_type: string;
  result_payload: string;
}

async function find(
  db: Queryable,
  sessionId: string,
  callIds: readonly string[],
): Promise<{ head: number; calls: ClientCall[] }> {
  const { rows: sessions } = await db.query<{ head: number }>(
    "select head from sessions where session_id = $1",
    [sessionId],
  );
  const { rows } = await db.query<CallRow>(
    `select c.event_id, c.position, c.type, c.payload, r.event_id as result_id, r.position as result_position,
       r.type as result_type, r.payload as result_payload
     from events c left join events r on r.session_id = c.session_id and r.answers = c.event_id
     where c.session_id = $1 and c.event_id = any($2) and c.type = any($3)`,
    [sessionId, callIds, CALL_TYPES],
  );
  const first = Math.min(...rows.map(({ position }) => position));
  const confirmations = rows.length === 0 ? new Map() : await confirmationsAfter(db, sessionId, first);
  const calls = rows.map((row) => ({
    eventId: row.event_id,
    type: row.type,
    payload: row.payload,
    result:
      row.result_id === null
        ? undefined
        : {
            eventId: row.result_id,
            position: row.result_position,
            type: row.result_type,
            payload: row.result_payload,
          },
    confirmation: confirmations.get(row.event_id),
  }));
  return { head: sessions[0]?.head ?? 0, calls };
}

/** By call: the first one of each. */
async function confirmationsAfter(
  db: Queryable,
  sessionId: string,
  position: number,
): Promise<Map<string, CallAnswer>> {
  const { rows } = await db.query<{ event_id: string; position: number; payload: string }>(
    `select event_id, position, payload from events where session_id = $1 and type = '${CONFIRMATION}' and position > $2
     order by position`,
    [sessionId, position],
  );
  const first = new Map<string, CallAnswer>();
  for (const { event_id: eventId, position: at, payload } of rows) {
    const { tool_use_id: callId } = JSON.parse(payload) as { tool_use_id?: unknown };
    if (typeof callId === "string" && !first.has(callId))
      first.set(callId, { eventId, position: at, type: CONFIRMATION, payload });
  }
  return first;
}

/** Ids are random, so an event that has one in its text speaks of it. */
async function waitingCalls(db: Queryable, sessionId: string): Promise<WaitingCall[]> {
  const { rows } = await db.query<{ event_id: string; type: string; payload: string; waited_ms: number }>(
    `select c.event_id, c.type, c.payload,
       floor(extract(epoch from clock_timestamp() - told.at) * 1000)::bigint as waited_ms
     from events c cross join lateral (
       select min(created_at) as at from events i where i.session_id = c.session_id and i.type = 'session.status_idle'
         and i.position > c.position and position(c.event_id in i.payload) > 0) told
     where c.session_id = $1 and c.type = any($2) and c.thread_id = '' and told.at is not null
       and not exists (select from events r where r.session_id = c.session_id and r.answers = c.event_id)
       and not exists (select from events a where a.session_id = c.session_id and a.type = '${CONFIRMATION}'
         and a.position > c.position and position(c.event_id in a.payload) > 0)
     order by c.position`,
    [sessionId, CALL_TYPES],
  );
  return rows.map((row) => ({
    eventId: row.event_id,
    type: row.type,
    payload: row.payload,
    waitedMs: row.waited_ms,
  }));
}
