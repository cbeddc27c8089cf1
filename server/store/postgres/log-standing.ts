/** What was going on at the end of a log, read from its events alone. */
import { CLIENT_WORK, SERVER_WORK } from "../event-facts.ts";
import type { OpenCall } from "../open-calls.ts";
import type { Queryable } from "./pool.ts";
import { openCalls } from "./sessions.ts";

export interface LogStanding {
  readonly openCalls: OpenCall[];
  /** Hands that were given and neither lost nor released. */
  readonly liveHands: { readonly handId: string; readonly slot: string }[];
  /** Where the last brain that was through with its work had come to; 0 when none was. */
  readonly restedPosition: number;
  /** A turn had not ended, or something waited for one. */
  readonly hasWork: boolean;
}

const WORK_TYPES = [...CLIENT_WORK, ...SERVER_WORK];
const STATUS_TYPES = [
  "session.status_running",
  "session.status_rescheduled",
  "session.status_idle",
  "session.status_terminated",
];

export async function standingOf(db: Queryable, sessionId: string): Promise<LogStanding> {
  const { rows } = await db.query<{
    rested: number | null;
    running: boolean;
    work: boolean;
    waiting: boolean;
  }>(
    `with idle as (
       select position, payload from events
         where session_id = $1 and type = 'session.status_idle' and thread_id = '' order by position desc limit 1
     )
     select (select position from idle) as rested,
       coalesce((select type in ('session.status_running', 'session.status_rescheduled') from events
         where session_id = $1 and type = any($2) and thread_id = '' order by position desc limit 1), false) as running,
       exists (select 1 from events where session_id = $1 and type = any($3) and thread_id = ''
         and position > coalesce((select position from idle), 0)) as work,
       -- What waits after the tries were used up goes on waiting for a new message.
       exists (select 1 from events e where session_id = $1 and thread_id = ''
           and type in ('user.message', 'user.define_outcome')
           and not exists (select 1 from consumed_inputs c where c.session_id = $1 and c.event_id = e.event_id))
         and not exists (select 1 from idle where payload like '%retries_exhausted%') as waiting`,
    [sessionId, STATUS_TYPES, WORK_TYPES],
  );
  const row = rows[0]!;
  return {
    openCalls: await openCalls(db, sessionId),
    liveHands: await liveHands(db, sessionId),
    restedPosition: row.rested ?? 0,
    hasWork: row.running || row.work || row.waiting,
  };
}

const HAND_TYPES = ["hand.provisioned", "hand.handed_over", "hand.lost", "hand.released"];

async function liveHands(db: Queryable, sessionId: string): Promise<LogStanding["liveHands"]> {
  const { rows } = await db.query<{ type: string; payload: string }>(
    "select type, payload from events where session_id = $1 and type = any($2) order by position",
    [sessionId, HAND_TYPES],
  );
  const alive = new Map<string, string>();
  for (const { type, payload } of rows) {
    const facts = JSON.parse(payload) as Record<string, unknown>;
    const { hand_id: handId, slot } = facts;
    if (typeof handId !== "string") continue;
    // A session that has given a hand away says to whom.
    const isGiven = type === "hand.handed_over" && facts.to_session_id !== undefined;
    if (type === "hand.lost" || type === "hand.released" || isGiven) alive.delete(handId);
    else alive.set(handId, typeof slot === "string" ? slot : "");
  }
  return [...alive].map(([handId, slot]) => ({ handId, slot }));
}
