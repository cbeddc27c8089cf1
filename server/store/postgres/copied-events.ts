/** Events that come from another log, written as they were there. */
import { eventHash, sha256Hex } from "../../../kit/chain/event-hash.ts";
import type { CopiedEvent } from "../log-copies.ts";
import type { Transaction } from "./transaction.ts";
import { advanceChain, touchLog } from "./unfinished-logs.ts";

/** See LogCopyStore.add. */
export async function addCopied(
  transaction: Transaction,
  sessionId: string,
  events: readonly CopiedEvent[],
): Promise<number | undefined> {
  const chain = await touchLog(transaction, sessionId);
  const twice = firstTwice(events) ?? (await firstKnown(transaction, sessionId, events));
  if (twice !== undefined) return twice;
  const hashed = hashAll(chain, sessionId, events);
  const isLarge = ({ payload, internal = "" }: CopiedEvent) =>
    payload.length + internal.length > LARGE_TEXT_CHARS;
  await insertMany(
    transaction,
    sessionId,
    hashed.filter((event) => !isLarge(event)),
  );
  for (const event of hashed.filter(isLarge)) {
    await transaction.query(
      `insert into events (session_id, ${EVENT_COLUMNS}, hash) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`,
      [sessionId, ...valuesOf(event)],
    );
  }
  if (chain !== null) {
    await advanceChain(transaction, sessionId, hashed.at(-1)?.hash ?? chain);
  }
  return undefined;
}

interface StoredEvent extends CopiedEvent {
  readonly hash: Buffer | null;
}

/** Events may come from a log that had hashes: those are not its hashes here. */
function hashAll(chain: Buffer | null, sessionId: string, events: readonly CopiedEvent[]): StoredEvent[] {
  if (chain === null) return events.map((event) => ({ ...event, hash: null }));
  let previous = chain.toString("hex");
  return events.map((event) => {
    const { payload, internal } = event;
    const internalSha256 = internal === undefined ? undefined : sha256Hex(internal);
    previous = eventHash(previous, sessionId, {
      ...event,
      payloadSha256: sha256Hex(payload),
      internalSha256,
    });
    return { ...event, hash: Buffer.from(previous, "hex") };
  });
}

/** As part of an array, a text is escaped, sent and taken apart again: ten times the work of a parameter by itself. */
const LARGE_TEXT_CHARS = 64 * 1024;

/** All but the session and the hash, which a copy has for itself. */
export const EVENT_COLUMNS = "position, event_id, type, thread_id, payload, internal, answers, created_at";

function valuesOf(event: StoredEvent): unknown[] {
  const { position, id, type, threadId, payload, internal, answers, createdAt, hash } = event;
  return [position, id, type, threadId, payload, internal ?? null, answers ?? null, createdAt, hash];
}

async function insertMany(
  transaction: Transaction,
  sessionId: string,
  events: readonly StoredEvent[],
): Promise<void> {
  const rows = events.map(valuesOf);
  const columns = `${EVENT_COLUMNS}, hash`.split(", ").map((_, column) => rows.map((row) => row[column]));
  await transaction.query(
    `insert into events (session_id, ${EVENT_COLUMNS}, hash) select $1, u.* from unnest($2::bigint[], $3::text[], $4::text[],
       $5::text[], $6::text[], $7::text[], $8::text[], $9::timestamptz[], $10::bytea[]) as u`,
    [sessionId, ...columns],
  );
}

function firstTwice(events: readonly CopiedEvent[]): number | undefined {
  const seen = new Set<string>();
  for (const { id, answers, position } of events) {
    const names = answers === undefined ? [id] : [id, `answers ${answers}`];
    if (names.some((name) => seen.has(name))) return position;
    for (const name of names) seen.add(name);
  }
  return undefined;
}

async function firstKnown(
  transaction: Transaction,
  sessionId: string,
  events: readonly CopiedEvent[],
): Promise<number | undefined> {
  const { rows } = await transaction.query<{ position: number | null }>(
    `select min(u.position) as position from unnest($2::bigint[], $3::text[], $4::text[]) as u(position, id, answers)
       where exists (select 1 from events where session_id = $1 and event_id = u.id)
         or exists (select 1 from events where session_id = $1 and answers = u.answers)`,
    [
      sessionId,
      events.map(({ position }) => position),
      events.map(({ id }) => id),
      events.map(({ answers }) => answers ?? null),
    ],
  );
  return rows[0]?.position ?? undefined;
}
