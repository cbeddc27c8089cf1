/**
 * The lines of an exported log (pure): one that describes the session, one for each event, one that says how many events
 * there were and what digest all bytes before it have. Texts of events are JSON strings, so they come back byte for byte.
 */
import type { Checkpoint } from "../chain/checkpoint.ts";
import { type ChainOrigin, NEW_CHAIN, type SessionChain } from "../chain/event-hash.ts";
import { invalidField } from "../errors.ts";
import { isId } from "../ids.ts";
import { MAX_EVENT_BYTES } from "../limits.ts";

/** Grows when lines change in a way that older readers would get wrong. */
export const LOG_VERSION = 1;

/** A text of JSON grows at most twofold as a JSON string: quotes, backslashes and line ends get a backslash. */
export const MAX_LINE_BYTES = 2 * MAX_EVENT_BYTES + 64 * 1024;

export interface LogHeader {
  readonly sessionId: string;
  readonly exportedAt: Date;
  readonly withInternal: boolean;
  /** Public key of the server that wrote it; empty for a log without hashes. */
  readonly serverKey: string;
  /** Position of the newest event. */
  readonly head: number;
  /** Undefined for a log without hashes. */
  readonly chain: SessionChain | undefined;
  /** Whether the server said that nothing waits for a brain or is with one; true where it did not say. */
  readonly isAtRest: boolean;
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
  /** Undefined in a log without hashes. */
  readonly hash: string | undefined;
  /** Of an internal that was not exported. */
  readonly internalSha256: string | undefined;
  /** What was signed at this event. */
  readonly checkpoint: Omit<Checkpoint, "sessionId" | "position"> | undefined;
}

export type LogLine =
  | { readonly kind: "event"; readonly event: LogEvent }
  | { readonly kind: "end"; readonly events: number; readonly sha256: string };

/** Throws INVALID_FIELD with the place in the line. */
export function parseHeader(text: string, path: string): LogHeader {
  const line = parseLine(text, path);
  if (line.tendon_log === undefined) throw invalidField(path, "is not the first line of an exported log");
  if (line.tendon_log !== LOG_VERSION) {
    throw invalidField(`${path}.tendon_log`, `only version ${LOG_VERSION} is known here`);
  }
  const session = objectOf(line.session, `${path}.session`);
  return {
    isAtRest: session.at_rest !== false,
    exportedAt: timeOf(line.exported_at, `${path}.exported_at`),
    withInternal: line.with_internal === true,
    serverKey: line.server_key === undefined ? "" : textOf(line.server_key, `${path}.server_key`),
    sessionId: textOf(session.id, `${path}.session.id`),
    head: numberOf(session.head, `${path}.session.head`),
    chain: session.chain === undefined ? undefined : chainOf(session.chain, `${path}.session.chain`),
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
      hash: line.hash === undefined ? undefined : hashOf(line.hash, `${path}.hash`),
      internalSha256:
        line.internal_sha256 === undefined
          ? undefined
          : hashOf(line.internal_sha256, `${path}.internal_sha256`),
      checkpoint:
        line.checkpoint === undefined ? undefined : checkpointOf(line.checkpoint, `${path}.checkpoint`),
    },
  };
}

function chainOf(value: unknown, path: string): SessionChain {
  const { origin, hash } = objectOf(value, path);
  return {
    origin: originOf(objectOf(origin, `${path}.origin`), `${path}.origin`),
    hash: hashOf(hash, `${path}.hash`),
  };
}

function checkpointOf(value: unknown, path: string): NonNullable<LogEvent["checkpoint"]> {
  const checkpoint = objectOf(value, path);
  return {
    hash: hashOf(checkpoint.hash, `${path}.hash`),
    signedAt: timeOf(checkpoint.signed_at, `${path}.signed_at`),
    publicKey: textOf(checkpoint.public_key, `${path}.public_key`),
    signature: Buffer.from(textOf(checkpoint.signature, `${path}.signature`), "base64url"),
  };
}

function originOf(origin: Fields, path: string): ChainOrigin {
  const { kind } = origin;
  if (kind === "new") return NEW_CHAIN;
  if (kind !== "fork" && kind !== "import") throw invalidField(`${path}.kind`, "is none that is known here");
  return {
    kind,
    sessionId: textOf(origin.session_id, `${path}.session_id`),
    position: numberOf(origin.position, `${path}.position`),
    hash: textOf(origin.hash, `${path}.hash`),
  };
}

function hashOf(value: unknown, path: string): string {
  const text = textOf(value, path);
  if (/^[0-9a-f]{64}$/.test(text)) return text;
  throw invalidField(path, "must be a SHA-256 in lower-case hex");
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
