/** A batch of appends as one statement, and each item's verdict. The decisions stand in `append_events` (migration 7). */
import { invalidField, notFound, TendonError } from "../../../kit/errors.ts";
import { type EventFacts, type EventFold, factsOf } from "../event-facts.ts";
import type { Appended, AppendRequest, EventRecord, NewEvent } from "../events.ts";
import { leaseFenced, sessionArchived } from "../refusals.ts";
import type { Queryable } from "./pool.ts";

/** An append with what its events mean, worked out before it waits for its turn. */
export interface AppendItem {
  readonly request: AppendRequest;
  readonly facts: readonly EventFacts[];
  readonly bytes: number;
}

export type Verdict =
  | { readonly kind: "done"; readonly appended: Appended }
  | { readonly kind: "refused"; readonly error: TendonError }
  /** Somebody else has the session's row right now. */
  | { readonly kind: "busy" };

export function appendItem(request: AppendRequest): AppendItem {
  let bytes = 0;
  const facts = request.events.map((event) => {
    bytes += Buffer.byteLength(event.payload) + (event.internal ? Buffer.byteLength(event.internal) : 0);
    return factsOf(event, request.authority === "server");
  });
  return { request, facts, bytes };
}

/** What `append_events` says about an item. */
interface ItemAnswer {
  verdict: string;
  /** Index within the item of the event that the verdict is about. */
  badEvent: number;
  /** Position of the first event that was appended. */
  firstPosition: number;
  head: number;
  /** The session's newest. */
  epoch: string;
  hasWork: boolean;
  at: Date;
  /** By event: what the log had already. */
  found: ({ position: number; id: string | undefined } | undefined)[];
}

/**
 * Appends all items, each with its own verdict. Items of one session keep their order. No two of them may hold the same
 * event id or answer the same call: what the log has is looked up for all at once. With `waits` it waits for rows that
 * others have locked, at most 10 s, and no verdict is `busy`.
 */
export async function appendBatch(
  queryable: Queryable,
  items: readonly AppendItem[],
  waits: boolean,
): Promise<Verdict[]> {
  const [only] = items;
  if (only && items.length === 1 && !waits && isPlain(only)) {
    const appended = await appendPlain(queryable, only);
    if (appended) return [{ kind: "done", appended }];
  }
  const { sql, values } = statementFor(items, waits);
  const { rows } = await queryable.query<{ answer: string }>(sql, values);
  const [time, ...lines] = rows[0]!.answer.split("\n");
  const at = new Date(Number(time));
  const rested = lines[items.length];
  let firstEvent = 1;
  return items.map((item, index) => {
    const verdict = verdictOf(item, parseAnswer(lines[index]!, firstEvent, at));
    firstEvent += item.request.events.length;
    if (!rested || verdict.kind !== "done" || !rested.split(" ").includes(item.request.sessionId))
      return verdict;
    return { kind: "done", appended: { ...verdict.appended, checkpointDue: true } };
  });
}

/** One event that says nothing about calls, its session or other events: append_event takes it, at half the price. */
function isPlain({ request, facts }: AppendItem): boolean {
  const [fact] = facts;
  if (!fact || facts.length !== 1 || fact.answers !== undefined || fact.fold) return false;
  if (request.events.some(isNoted)) return false;
  return fact.consumed.length === 0 && (fact.call === undefined || request.authority !== "client");
}

/** Undefined when something speaks against it; then nothing has changed. */
async function appendPlain(
  queryable: Queryable,
  { request, facts }: AppendItem,
): Promise<Appended | undefined> {
  const event = request.events[0]!;
  const { rows } = await queryable.query<{ answer: string | null }>(
    "select append_event($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) as answer",
    [
      request.sessionId,
      request.authority === "server",
      String(request.expectedPosition ?? -1n),
      request.lease?.leaseId ?? "",
      String(request.lease?.epoch ?? 0n),
      event.id,
      event.type,
      event.threadId,
      event.payload,
      event.internal ?? null,
      facts[0]!.isWork,
    ],
  );
  const answer = rows[0]?.answer;
  if (!answer) return undefined;
  const [at, position, hasWork] = answer.split(" ");
  const added = [recordOf(event, Number(position), new Date(Number(at)))];
  const receipts = [{ id: event.id, position: Number(position), duplicate: false }];
  return { receipts, head: Number(position), hasWork: hasWork === "true", added };
}

const PARAMETERS = 25;
const STATEMENT = `select append_events(${Array.from({ length: PARAMETERS }, (_, index) => `$${index + 1}`).join(", ")}) as answer`;

/** Webhooks tell of these; of all others that webhooks tell, the database hears by rows that they change. */
const NOTED: ReadonlySet<string> = new Set([
  "span.outcome_evaluation_end",
  "session.threads_ask",
  "session.threads_go_on",
]);
const isNoted = ({ type }: NewEvent) => NOTED.has(type);

/** What is to be told is noted behind the append, by the same statement; most batches hold nothing of it. */
function statementFor(items: readonly AppendItem[], waits: boolean): { sql: string; values: unknown[] } {
  const values = encode(items, waits);
  const noted = items.flatMap(({ request: { sessionId, events } }) =>
    events.filter(isNoted).map(({ id }) => ({ sessionId, id })),
  );
  if (noted.length === 0) return { sql: STATEMENT, values };
  const sql = `with appended as materialized (${STATEMENT})
    select answer, note_said($${PARAMETERS + 1}::text[], $${PARAMETERS + 2}::text[]) from appended`;
  return { sql, values: [...values, noted.map(({ sessionId }) => sessionId), noted.map(({ id }) => id)] };
}

/** The parameters of `append_events`, in its order. */
function encode(items: readonly AppendItem[], waits: boolean): unknown[] {
  // All writers lock rows in this order.
  const sessionIds = [...new Set(items.map(({ request }) => request.sessionId))].sort();
  const slots = new Map(sessionIds.map((id, index) => [id, index + 1]));
  const { events, sparse, sessions, first } = flatten(items);
  return [
    waits,
    sessionIds,
    items.map(({ request }) => slots.get(request.sessionId)),
    first,
    items.map(({ request }) => request.authority === "server"),
    items.map(({ request }) => String(request.expectedPosition ?? -1n)),
    items.map(({ request }) => request.lease?.leaseId ?? ""),
    items.map(({ request }) => String(request.lease?.epoch ?? 0n)),
    sessions,
    events.map(({ event }) => event.id),
    events.map(({ event }) => event.type),
    events.map(({ event }) => event.threadId),
    events.map(({ event }) => event.payload),
    events.map(({ event }) => event.internal ?? null),
    events.map(({ facts }) => facts.answers ?? null),
    events.map(({ facts }) => facts.isWork),
    sparse.answers,
    sparse.calls.map(({ event }) => event),
    sparse.calls.map(({ call }) => call),
    sparse.folds.map(({ event }) => event),
    sparse.folds.map(({ fold }) => statusOf(fold)),
    sparse.folds.map(({ fold }) => stopOf(fold)),
    sparse.folds.flatMap(({ fold }) => countsOf(fold)),
    sparse.consumed.map(({ event }) => event),
    sparse.consumed.map(({ id }) => id),
  ];
}

/** As `append_events` takes folds (migrations 8 and 22). */
function statusOf(fold: EventFold): string {
  if (fold.kind === "status") return fold.status;
  return fold.kind === "searches" ? "searched" : "";
}

function stopOf(fold: EventFold): string {
  if (fold.kind === "status") return fold.stopReason;
  return fold.kind === "searches" ? String(fold.nanoUsd) : costText(fold.listCost);
}

function countsOf(fold: EventFold): number[] {
  if (fold.kind === "searches") return [fold.count, 0, 0, 0];
  return fold.kind === "usage" ? [...fold.tokens] : [0, 0, 0, 0];
}

function costText(cost: Extract<EventFold, { kind: "usage" }>["listCost"]): string {
  if (cost === undefined) return "";
  return cost === "unpriced" ? "-" : String(cost.nanoUsd);
}

/** One list of events for the batch, and what only few of them have, each with its event's number from 1. */
function flatten(items: readonly AppendItem[]) {
  const events: { event: NewEvent; facts: EventFacts }[] = [];
  const sessions: string[] = [];
  const first = [1];
  const answers: number[] = [];
  const calls: { event: number; call: string }[] = [];
  const folds: { event: number; fold: EventFold }[] = [];
  const consumed: { event: number; id: string }[] = [];
  for (const { request, facts: itemFacts } of items) {
    for (const [at, event] of request.events.entries()) {
      const facts = itemFacts[at]!;
      const number = events.push({ event, facts });
      sessions.push(request.sessionId);
      if (facts.answers !== undefined) answers.push(number);
      // Brains and the server know which calls there are.
      if (facts.call !== undefined && request.authority === "client")
        calls.push({ event: number, call: facts.call });
      if (facts.fold) folds.push({ event: number, fold: facts.fold });
      for (const id of facts.consumed) consumed.push({ event: number, id });
    }
    first.push(events.length + 1);
  }
  return { events, sessions, first, sparse: { answers, calls, folds, consumed } };
}

/** `firstEvent` is the item's first event, counted from 1 over the batch. */
function parseAnswer(line: string, firstEvent: number, at: Date): ItemAnswer {
  const [verdict = "", bad, firstPosition, head, epoch = "", work, ...pairs] = line.split(" ");
  const found: ItemAnswer["found"] = [];
  for (let index = 0; index < pairs.length; index += 2) {
    const position = pairs[index];
    const as = pairs[index + 1];
    const id = as === "same" || as === "differs" ? undefined : as;
    found.push(position === "-" ? undefined : { position: Number(position), id });
  }
  return {
    verdict,
    badEvent: Number(bad) - firstEvent,
    firstPosition: Number(firstPosition),
    head: Number(head),
    epoch,
    hasWork: work === "true",
    at,
    found,
  };
}

function verdictOf(item: AppendItem, answer: ItemAnswer): Verdict {
  if (answer.verdict === "busy") return { kind: "busy" };
  if (answer.verdict !== "appended" && answer.verdict !== "known") {
    return { kind: "refused", error: refusal(item, answer) };
  }
  const added: EventRecord[] = [];
  const receipts = item.request.events.map((event, index) => {
    const found = answer.found[index];
    if (found) return { id: found.id ?? event.id, position: found.position, duplicate: true };
    const position = answer.firstPosition + added.length;
    added.push(recordOf(event, position, answer.at));
    return { id: event.id, position, duplicate: false };
  });
  return { kind: "done", appended: { receipts, head: answer.head, hasWork: answer.hasWork, added } };
}

function recordOf(event: NewEvent, position: number, createdAt: Date): EventRecord {
  return {
    id: event.id,
    position,
    type: event.type,
    threadId: event.threadId,
    createdAt,
    payload: event.payload,
    payloadOmitted: undefined,
    internal: event.internal,
    internalOmitted: undefined,
    processedAt: undefined,
  };
}

function refusal(item: AppendItem, answer: ItemAnswer): TendonError {
  const { request } = item;
  switch (answer.verdict) {
    case "missing":
      return notFound("session", request.sessionId);
    case "fenced":
      return leaseFenced(answer.epoch);
    case "archived":
      return sessionArchived(request.sessionId);
    case "mismatch":
      return new TendonError(
        "POSITION_MISMATCH",
        `the newest event has position ${answer.head}, not ${request.expectedPosition}`,
        { head: String(answer.head) },
      );
    default:
      return eventRefusal(item, answer);
  }
}

function eventRefusal({ request, facts }: AppendItem, answer: ItemAnswer): TendonError {
  const at = answer.badEvent;
  const event = request.events[at];
  const found = answer.found[at];
  const call = facts[at]?.call ?? "";
  const metadata = { field: `events[${at}].id`, event_id: event?.id ?? "", position: `${found?.position}` };
  switch (answer.verdict) {
    case "differs":
      return new TendonError(
        "EVENT_CONTENT_DIFFERS",
        `events[${at}].id: "${event?.id}" is in the log already, with another type, thread, payload or internal`,
        metadata,
      );
    case "mixed":
      return new TendonError(
        "EVENT_CONTENT_DIFFERS",
        `events[${at}].id: "${event?.id}" is in the log already, but an event before it in the request is not; send what is new by itself`,
        metadata,
      );
    case "answered":
      return new TendonError(
        "CALL_ALREADY_ANSWERED",
        `events[${at}]: the call "${call}" has a result already`,
        {
          field: `events[${at}]`,
          tool_use_id: call,
          event_id: found?.id ?? "",
          position: `${found?.position}`,
        },
      );
    case "no_call": {
      const field = event?.type === "user.custom_tool_result" ? "custom_tool_use_id" : "tool_use_id";
      return invalidField(
        `events[${at}].payload.${field}`,
        `the session has no tool call with the id "${call}"`,
      );
    }
    default:
      throw new Error(`append_events gave the unknown verdict "${answer.verdict}"`);
  }
}
