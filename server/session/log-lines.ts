/**
 * The lines of an exported log (pure): one that describes the session, one for each event, one that says how many events
 * there were and what digest all bytes before it have. Texts of events are JSON strings, so they come back byte for byte.
 */
import { invalidField } from "../../kit/errors.ts";
import { isId } from "../../kit/ids.ts";
import type { EventRecord } from "../store/events.ts";
import type { SessionRecord } from "../store/sessions.ts";

/** Grows when lines change in a way that older readers would get wrong. */
export const LOG_VERSION = 1;

export interface LogHeader {
  /** JSON value of an Agent. */
  readonly agent: unknown;
  readonly environmentId: string;
  readonly slotEnvironmentIds: Readonly<Record<string, string>>;
  readonly title: string;
  readonly metadata: Readonly<Record<string, string>>;
  readonly archived: boolean;
}

export interface LogEvent {
  readonly position: number;
  readonly id: string;
  readonly type: string;
  readonly threadId: string;
  readonly createdAt: Date;
  readonly payload: string;
  readonly internal: string | undefined;
}

export type LogLine =
  | { readonly kind: "event"; readonly event: LogEvent }
  | { readonly kind: "end"; readonly events: number; readonly sha256: string };

export function headerLine(session: SessionRecord, withInternal: boolean, at: Date): string {
  return JSON.stringify({
    tendon_log: LOG_VERSION,
    exported_at: at,
    with_internal: withInternal,
    session: {
      id: session.sessionId,
      agent: JSON.parse(session.agent),
      environment_id: session.environmentId,
      slot_environment_ids: session.slotEnvironmentIds,
      title: session.title,
      metadata: session.metadata,
      head: session.head,
      created_at: session.createdAt,
      ...(session.archivedAt && { archived_at: session.archivedAt }),
      ...(session.forkedFromSessionId !== "" && {
        forked_from_session_id: session.forkedFromSessionId,
        forked_from_position: session.forkedFromPosition,
      }),
    },
  });
}

export function eventLine(event: EventRecord): string {
  if (event.payload === undefined || event.internalOmitted) throw new Error("an event without its texts");
  return JSON.stringify({
    position: event.position,
    id: event.id,
    type: event.type,
    ...(event.threadId !== "" && { thread_id: event.threadId }),
    created_at: event.createdAt,
    payload: event.payload,
    ...(event.internal !== undefined && { internal: event.internal }),
  });
}

export function endLine(events: number, sha256: string): string {
  return JSON.stringify({ end: { events, sha256 } });
}

/** Throws INVALID_FIELD with the place in the line. */
export function parseHeader(text: string, path: string): LogHeader {
  const line = parseLine(text, path);
  if (line.tendon_log === undefined) throw invalidField(path, "is not the first line of an exported log");
  if (line.tendon_log !== LOG_VERSION) {
    throw invalidField(`${path}.tendon_log`, `this server reads version ${LOG_VERSION} only`);
  }
  const session = objectOf(line.session, `${path}.session`);
  return {
    agent: objectOf(session.agent, `${path}.session.agent`),
    environmentId: textOf(session.environment_id, `${path}.session.environment_id`),
    slotEnvironmentIds: textsOf(session.slot_environment_ids, `${path}.session.slot_environment_ids`),
    title: textOf(session.title, `${path}.session.title`),
    metadata: textsOf(session.metadata, `${path}.session.metadata`),
    archived: session.archived_at !== undefined,
  };
}

/** Throws INVALID_FIELD with the place in the line. What the texts hold is for the caller to check. */
export function parseLogLine(text: string, path: string): LogLine {
  const line = parseLine(text, path);
  if (line.end !== undefined) {
    const end = objectOf(line.end, `${path}.end`);
    return {
      kind: "end",
      events: numberOf(end.events, `${path}.end.events`),
      sha256: textOf(end.sha256, `${path}.end.sha256`),
    };
  }
  const id = textOf(line.id, `${path}.id`);
  if (!isId("event", id)) throw invalidField(`${path}.id`, "is no id of an event");
  const type = textOf(line.type, `${path}.type`);
  if (type.length > 128 || !EVENT_TYPE.test(type))
    throw invalidField(`${path}.type`, "is no type of an event");
  return {
    kind: "event",
    event: {
      position: numberOf(line.position, `${path}.position`),
      id,
      type,
      threadId: line.thread_id === undefined ? "" : textOf(line.thread_id, `${path}.thread_id`),
      createdAt: timeOf(line.created_at, `${path}.created_at`),
      payload: textOf(line.payload, `${path}.payload`),
      internal: line.internal === undefined ? undefined : textOf(line.internal, `${path}.internal`),
    },
  };
}

/** As in the contract's EventInput. */
const EVENT_TYPE = /^[a-z][a-z0-9_-]*(\.[a-z][a-z0-9_-]*)+$/;

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

type Fields = Record<string, unknown>;

function parseLine(text: string, path: string): Fields {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw invalidField(path, "is not JSON");
  }
  return objectOf(value, path);
}

function objectOf(value: unknown, path: string): Fields {
  if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as Fields;
  throw invalidField(path, "must be an object");
}

function textOf(value: unknown, path: string): string {
  if (typeof value === "string") return value;
  throw invalidField(path, "must be a string");
}

function textsOf(value: unknown, path: string): Record<string, string> {
  const texts = Object.entries(objectOf(value ?? {}, path));
  return Object.fromEntries(texts.map(([key, text]) => [key, textOf(text, `${path}["${key}"]`)]));
}

function numberOf(value: unknown, path: string): number {
  if (typeof value === "number" && Number.isSafeInteger(value) && value >= 0) return value;
  throw invalidField(path, "must be a whole number");
}

function timeOf(value: unknown, path: string): Date {
  const text = textOf(value, path);
  const time = new Date(text);
  if (TIME.test(text) && time.toISOString() === text) return time;
  throw invalidField(path, "must be a time such as 2030-01-31T12:00:00.000Z");
}
