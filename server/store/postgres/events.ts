import type {
  Appended,
  EventRecord,
  EventSlice,
  EventStore,
  HeadHint,
  NewEvent,
  OmittedRecord,
  ReadRequest,
  SessionHead,
} from "../events.ts";
import { AppendQueue, type AppendQueueOptions } from "./append-queue.ts";
import { keepTrace, withTrace } from "./event-traces.ts";
import { encodeHints, HINT_CHANNEL } from "./head-hints.ts";
import type { Pool } from "./pool.ts";

/** Sessions that wait for a brain, in one answer of `heads`; the others are found in the next. */
const MAX_WAITING_HEADS = 500;

/** A text that is left out is read for its digest all the same: a slice of many such texts must end too. */
const OMITTED_PART = 64;

export function createEventStore(pool: Pool, options: AppendQueueOptions = {}): EventStore {
  const queue = new AppendQueue(pool, options);
  return {
    async append(request) {
      const appended = await queue.append(request);
      if (request.traceParent === undefined) return appended;
      return keepTraceOf(pool, request.sessionId, appended, request.traceParent);
    },
    keepTrace: (sessionId, appended, traceParent) => keepTraceOf(pool, sessionId, appended, traceParent),
    repeated: (sessionId, events) => repeated(pool, sessionId, events),
    read: (request) => read(pool, request),
    async positionOf(sessionId, eventId) {
      const { rows } = await pool.query<{ position: number }>(
        "select position from events where session_id = $1 and event_id = $2",
        [sessionId, eventId],
      );
      return rows[0]?.position;
    },
    async firstOfTypes({ sessionId, types, afterPosition, beforePosition, descending }) {
      // Each type's own first one: one step into the index for each.
      const [first, order] = descending ? ["max", "desc"] : ["min", "asc"];
      const { rows } = await pool.query<{ position: number | null }>(
        `select ${first}(e.position) as position from unnest($2::text[]) as wanted(type) cross join lateral (
           select position from events where session_id = $1 and type = wanted.type and position > $3
             and ($4::bigint is null or position < $4) order by position ${order} limit 1) e`,
        [sessionId, types, afterPosition, beforePosition ?? null],
      );
      return rows[0]?.position ?? undefined;
    },
    async readText({ sessionId, eventId, text, offsetBytes, maxBytes }) {
      // A text is cut in bytes, which may be inside a character.
      const { rows } = await pool.query<{ chunk: Buffer | null; size: number | null }>(
        `select substring(convert_to(${text}, 'UTF8') from $3::integer + 1 for $4::integer) as chunk, octet_length(${text}) as size
           from events where session_id = $1 and event_id = $2`,
        [sessionId, eventId, offsetBytes, maxBytes],
      );
      const row = rows[0];
      return row?.chunk && row.size !== null ? { chunk: row.chunk, sizeBytes: row.size } : undefined;
    },
    heads: (request) => heads(pool, request),
    async hint(hints: readonly HeadHint[]) {
      await pool.query("select pg_notify($1, payload) from unnest($2::text[]) as payload", [
        HINT_CHANNEL,
        encodeHints(hints),
      ]);
    },
    close: () => queue.close(),
  };
}

async function keepTraceOf(
  pool: Pool,
  sessionId: string,
  appended: Appended,
  traceParent: string,
): Promise<Appended> {
  const eventIds = appended.added.map(({ id }) => id);
  if (eventIds.length === 0) return appended;
  // The events are in the log: a trace that cannot be kept is no failure of theirs.
  return keepTrace(pool, sessionId, eventIds, traceParent).then(
    () => withTrace(appended, traceParent),
    () => appended,
  );
}

interface EventRow {
  position: number;
  event_id: string;
  type: string;
  thread_id: string;
  created_at: Date;
  payload: string | null;
  payload_size: number;
  payload_sha256: string | null;
  internal: string | null;
  internal_size: number | null;
  internal_sha256: string | null;
  processed_at: Date | null;
  trace_parent: string | null;
  hash: string | null;
  hidden_sha256: string | null;
  found: number;
}

async function repeated(pool: Pool, sessionId: string, events: readonly NewEvent[]) {
  const { rows } = await pool.query<{ id: string; position: number; head: number }>(
    `select e.event_id as id, e.position, s.head
       from unnest($2::text[], $3::text[], $4::text[], $5::text[]) with ordinality as u(id, type, thread, payload, n)
         join sessions s on s.session_id = $1
         join events e on e.session_id = s.session_id and e.event_id = u.id and e.type = u.type
           and e.thread_id = u.thread and e.payload = u.payload
       order by u.n`,
    [
      sessionId,
      events.map(({ id }) => id),
      events.map(({ type }) => type),
      events.map(({ threadId }) => threadId),
      events.map(({ payload }) => payload),
    ],
  );
  if (rows.length < events.length) return undefined;
  const receipts = rows.map(({ id, position }) => ({ id, position, duplicate: true }));
  return { receipts, head: rows[0]!.head };
}

async function read(pool: Pool, request: ReadRequest): Promise<EventSlice> {
  const { rows } = await pool.query<EventRow>(readStatement(request), [
    request.sessionId,
    request.afterPosition,
    request.beforePosition ?? null,
    request.types?.length ? request.types : null,
    request.limit + 1,
    request.inlineLimitBytes,
    request.maxBytes,
  ]);
  // One more than asked for is read, to know whether there is one.
  const events = rows.slice(0, request.limit).map((row) => toRecord(row));
  return { events, hasMore: (rows[0]?.found ?? 0) > events.length };
}

/**
 * Walks the primary key (or the index by type) from the cursor. Sizes come from the rows' heads; a text is fetched only
 * for events that the limits let through.
 * What lies beyond the session's head is no part of the log: nothing that Tendon does leaves it there.
 */
function readStatement(request: ReadRequest): string {
  const { descending, types, withInternal, withHashes, beforePosition } = request;
  const order = descending ? "desc" : "asc";
  const [hashes, hashColumns] = withHashes ? hashesOf(withInternal) : ["", ""];
  const inline = (column: string) => `case when ${column}_size <= $6 then ${column} end as ${column},
      case when ${column}_size > $6 then encode(sha256(convert_to(${column}, 'UTF8')), 'hex') end as ${column}_sha256`;
  return `
    select position, event_id, type, thread_id, created_at, found, payload_size, ${inline("payload")},
      internal_size, ${inline("internal")}, ${hashes}
      (select m.created_at from consumed_inputs c join events m on m.session_id = c.session_id and m.position = c.position
         where c.session_id = $1 and c.event_id = sized.event_id) as processed_at,
      ${withInternal ? TRACE_PARENT : "null::text"} as trace_parent
    from (
      select *, count(*) over () as found,
          sum(case when payload_size <= $6 then payload_size else payload_size / ${OMITTED_PART} end
            + case when internal_size is null then 0 when internal_size <= $6 then internal_size
                else internal_size / ${OMITTED_PART} end)
            over (order by position ${order}) as bytes,
          row_number() over (order by position ${order}) as place
        from (
          select position, event_id, type, thread_id, created_at, payload, octet_length(payload) as payload_size,
              ${withInternal ? "internal, octet_length(internal)" : "null::text as internal, null::integer"} as internal_size
              ${hashColumns}
            from events
            where session_id = $1 and position > $2 ${beforePosition === undefined ? "and $3::bigint is null" : "and position < $3::bigint"}
              and position <= (select head from sessions where session_id = $1)
              ${types?.length ? "and type = any($4::text[])" : "and $4::text[] is null"}
            order by position ${order} limit $5
        ) slice
    ) sized
    where place = 1 or bytes <= $7
    order by position ${order}`;
}

const TRACE_PARENT =
  "(select trace_parent from event_traces t where t.session_id = $1 and t.event_id = sized.event_id)";

/** Of the slice, and of what it is cut from. */
function hashesOf(withInternal: boolean): [string, string] {
  if (withInternal) return ["encode(hash, 'hex') as hash,", ", hash"];
  const hidden = "case when hash is not null then encode(sha256(convert_to(hidden, 'UTF8')), 'hex') end";
  return [`encode(hash, 'hex') as hash, ${hidden} as hidden_sha256,`, ", hash, internal as hidden"];
}

function toRecord(row: EventRow): EventRecord {
  return {
    id: row.event_id,
    position: row.position,
    type: row.type,
    threadId: row.thread_id,
    createdAt: row.created_at,
    payload: row.payload ?? undefined,
    payloadOmitted: omitted(row.payload_size, row.payload_sha256),
    internal: row.internal ?? undefined,
    internalOmitted: omitted(row.internal_size, row.internal_sha256),
    processedAt: row.processed_at ?? undefined,
    ...(row.trace_parent !== null && { traceParent: row.trace_parent }),
    hash: row.hash ?? undefined,
    internalSha256: row.hidden_sha256 ?? undefined,
  };
}

function omitted(sizeBytes: number | null, sha256: string | null): OmittedRecord | undefined {
  return sha256 === null || sizeBytes === null ? undefined : { sizeBytes, sha256 };
}

async function heads(
  pool: Pool,
  request: { sessionIds: readonly string[]; replicaId: string },
): Promise<SessionHead[]> {
  const columns = `session_id, head, checkpoint_position, work_position > rested_position as has_work, archived_at is not null as archived,
    work_position > rested_position and archived_at is null and lease_id is null
      and (not_before is null or not_before <= clock_timestamp()) as waiting`;
  const { rows } = await pool.query<{
    session_id: string;
    head: number;
    checkpoint_position: number;
    has_work: boolean;
    archived: boolean;
    waiting: boolean;
  }>(
    `select ${columns} from sessions where session_id = any($1)
     union select ${columns} from sessions where lease_id is not null and lease_replica_id = $2
     union (select ${columns} from sessions
       where work_position > rested_position and archived_at is null and lease_id is null
         and (not_before is null or not_before <= clock_timestamp())
       order by work_since limit ${MAX_WAITING_HEADS})`,
    [request.sessionIds, request.replicaId],
  );
  return rows.map((row) => ({
    sessionId: row.session_id,
    head: BigInt(row.head),
    hasWork: row.has_work,
    archived: row.archived,
    waiting: row.waiting,
    checkpointPosition: row.checkpoint_position,
  }));
}
