/** Outcomes are read from the events themselves: whatever wrote a log, or copied it, there is nothing beside it to agree with. */
import { outcomeIdOf } from "../../../kit/ids.ts";
import type { Appended, AppendRequest } from "../events.ts";
import {
  isTerminal,
  type OpenOutcome,
  type OutcomeRecord,
  type OutcomeResult,
  type OutcomeStore,
} from "../outcomes.ts";
import { outcomeActive } from "../refusals.ts";
import { appendWithin } from "./append-within.ts";
import type { Pool, Queryable } from "./pool.ts";
import { inTransaction, type Transaction } from "./transaction.ts";

const DEFINED = "user.define_outcome";
const START = "span.outcome_evaluation_start";
const END = "span.outcome_evaluation_end";
/** Of one session. */
const MAX_SHOWN = 20;
/** Of a description and an explanation. */
const MAX_TEXT_CHARS = 8_000;

export function createOutcomeStore(pool: Pool): OutcomeStore {
  return {
    append: (request) => inTransaction(pool, (transaction) => append(transaction, request)),
    async ofSessions(sessionIds) {
      const { rows } = await pool.query<{ session_id: string }>(
        `select id as session_id from unnest($1::text[]) as asked(id)
         where exists (select from events where session_id = id and type = '${DEFINED}' and thread_id = '')`,
        [sessionIds],
      );
      const found = new Map<string, OutcomeRecord[]>();
      // One by one: what is read of each is much more than what is kept.
      for (const { session_id: id } of rows) found.set(id, (await outcomesOf(pool, id)).map(recordOf));
      return found;
    },
  };
}

async function append(transaction: Transaction, request: AppendRequest): Promise<Appended> {
  const { sessionId, events } = request;
  const ids = events.filter(({ type }) => type === DEFINED).map(({ id }) => id);
  await transaction.query("select from sessions where session_id = $1 for no key update", [sessionId]);
  const open = await openOutcome(transaction, sessionId);
  // Who repeats a request is told what became of it.
  if (open !== undefined && !ids.includes(open.eventId) && !(await isKnown(transaction, sessionId, ids)))
    throw outcomeActive(outcomeIdOf(open.eventId));
  return appendWithin(transaction, request);
}

async function isKnown(db: Queryable, sessionId: string, eventIds: readonly string[]): Promise<boolean> {
  const { rows } = await db.query<{ known: number }>(
    "select count(*)::integer as known from events where session_id = $1 and event_id = any($2)",
    [sessionId, eventIds],
  );
  return rows[0]?.known === eventIds.length;
}

/** What the session works towards, if it does. */
export async function openOutcome(db: Queryable, sessionId: string): Promise<OpenOutcome | undefined> {
  const [newest] = await outcomesOf(db, sessionId, 1);
  if (newest === undefined) return undefined;
  const { result, iteration } = recordOf(newest);
  if (isTerminal(result)) return undefined;
  const startId = result === "evaluating" ? (newest.start_id ?? "") : "";
  return { eventId: newest.event_id, iteration, startId };
}

interface OutcomeRow {
  event_id: string;
  payload: string;
  is_begun: boolean;
  start_id: string | null;
  start_position: number | null;
  end_position: number | null;
  end_payload: string | null;
  ended_at: Date | null;
}

/** The newest ones, oldest first. */
async function outcomesOf(db: Queryable, sessionId: string, limit = MAX_SHOWN): Promise<OutcomeRow[]> {
  const newest = (type: string, columns: string) =>
    `left join lateral (select ${columns} from events where session_id = $1 and type = '${type}'
       and thread_id = '' and position > d.position and (d.next is null or position < d.next)
       order by position desc limit 1)`;
  const { rows } = await db.query<OutcomeRow>(
    `select d.event_id, d.payload,
       exists (select from consumed_inputs c where c.session_id = $1 and c.event_id = d.event_id) as is_begun,
       s.event_id as start_id, s.position as start_position,
       e.position as end_position, e.payload as end_payload, e.created_at as ended_at
     from (select event_id, payload, position, lead(position) over (order by position) as next from events
       where session_id = $1 and type = '${DEFINED}' and thread_id = '' order by position desc limit $2) d
     ${newest(START, "event_id, position")} s on true
     ${newest(END, "position, payload, created_at")} e on true
     order by d.position`,
    [sessionId, limit],
  );
  return rows;
}

function recordOf(row: OutcomeRow): OutcomeRecord {
  const { description } = fieldsOf(row.payload);
  const end = row.end_payload === null ? undefined : fieldsOf(row.end_payload);
  const judged = typeof end?.iteration === "number" ? end.iteration : 0;
  const isOver = isTerminal(end?.result);
  return {
    eventId: row.event_id,
    description: shown(description) ?? "",
    result: resultOf(row, end?.result),
    iteration: end === undefined || isOver ? judged : judged + 1,
    explanation: shown(end?.explanation),
    completedAt: isOver ? (row.ended_at ?? undefined) : undefined,
  };
}

function resultOf(row: OutcomeRow, ended: unknown): OutcomeResult {
  if (isTerminal(ended)) return ended;
  if ((row.start_position ?? 0) > (row.end_position ?? 0)) return "evaluating";
  return row.is_begun ? "running" : "pending";
}

function fieldsOf(payload: string): Record<string, unknown> {
  const value: unknown = JSON.parse(payload);
  return typeof value === "object" && value !== null ? (value as Record<string, unknown>) : {};
}

function shown(text: unknown): string | undefined {
  if (typeof text !== "string") return undefined;
  return text.length > MAX_TEXT_CHARS ? `${text.slice(0, MAX_TEXT_CHARS)}…` : text;
}
