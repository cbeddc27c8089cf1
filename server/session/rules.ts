/** Who may append what, and who may read what (pure). */
import { invalidField, notFound, TendonError } from "../../kit/errors.ts";
import { isId, newId } from "../../kit/ids.ts";
import { MAX_EVENT_BYTES } from "../../kit/limits.ts";
import type { EventInput, LeaseProof } from "../../proto/gen/tendon/v1/event_pb.js";
import { maySee, type Principal } from "../ports/principal.ts";
import { ANSWER_FIELDS, factsOf } from "../store/event-facts.ts";
import type { AppendRequest, Authority, NewEvent } from "../store/events.ts";
import { leaseFenced } from "../store/refusals.ts";
import type { SessionStanding } from "../store/sessions.ts";
import { CLIENT_TYPES, checkPayloadShape } from "./payload-shapes.ts";

/** Written by brains and the server alone; what comes after the dot is theirs to choose. */
const BRAIN_PREFIXES = new Set(["agent", "session", "span", "brain", "hand", "workflow_run"]);

/** Of the platform's types that clients write: others that begin so are misspelt, or of another version; nobody would act on them. */
const CLIENT_PREFIXES = new Set(["user", "system"]);

/** What a worker, or the holder of a session token, may say: results of the calls that it was given. */
const WORKER_TYPES = new Set(["user.tool_result", "user.custom_tool_result"]);

/** Facts about a session that never change. */
export type SessionPlace = Pick<SessionStanding, "workspaceId" | "environmentId" | "slotEnvironmentIds">;

/** Throws NOT_FOUND unless the caller may know of the session. */
export function checkMaySee(principal: Principal, sessionId: string, place: SessionPlace): void {
  if (!sees(principal, sessionId, place)) throw notFound("session", sessionId);
}

function sees(principal: Principal, sessionId: string, place: SessionPlace): boolean {
  if (!maySee(principal, place.workspaceId)) return false;
  if (principal.kind === "session" || principal.kind === "work_item")
    return principal.sessionId === sessionId;
  if (principal.kind === "worker") {
    const environments = [place.environmentId, ...Object.values(place.slotEnvironmentIds)];
    return environments.includes(principal.environmentId);
  }
  return true;
}

/** Throws unless the proof is that of the session's newest lease and the caller one that can hold leases. */
export function checkReadsInternal(principal: Principal, lease: LeaseProof, standing: SessionStanding): void {
  if (principal.kind !== "harness") {
    throw new TendonError("ROLE_NOT_ALLOWED", "lease: only a harness holds leases", { field: "lease" });
  }
  if (lease.leaseId !== standing.leaseId || lease.epoch !== standing.leaseEpoch) {
    throw leaseFenced(String(standing.leaseEpoch));
  }
}

/** What the caller asks to append, checked. Throws INVALID_FIELD, EVENT_TYPE_NOT_ALLOWED, MESSAGE_TOO_LARGE. */
export function checkEmit(
  principal: Principal,
  events: readonly EventInput[],
  lease: LeaseProof | undefined,
  field = "events",
): Pick<AppendRequest, "events" | "authority"> {
  const authority = authorityOf(principal, lease);
  for (const [index, { type, internal }] of events.entries()) {
    checkType(principal, authority, type, `${field}[${index}].type`);
    if (internal !== "" && authority !== "brain") {
      throw invalidField(`${field}[${index}].internal`, "only the holder of the session's lease may set it");
    }
  }
  return { authority, events: checkEvents(events, authority, field) };
}

/** An event of an imported log. `path` says which. As `checkEmit`, but admins may bring what brains and the server wrote. */
export function checkImported(principal: Principal, event: EventInput, path: string): NewEvent {
  const isAdmin = principal.kind === "admin";
  if (!isAdmin) {
    checkType(principal, "client", event.type, `${path}.type`);
    if (event.internal !== "") {
      throw new TendonError("ROLE_NOT_ALLOWED", `${path}.internal: only an admin may bring it`, {
        field: path,
      });
    }
  }
  return checkEvents([event], isAdmin ? "server" : "client", path)[0]!;
}

/** ROLE_NOT_ALLOWED for anyone else. */
export function checkIsAdmin(principal: Principal, field: string): void {
  if (principal.kind === "admin") return;
  throw new TendonError("ROLE_NOT_ALLOWED", `${field}: only an admin may see what brains see`, { field });
}

function authorityOf(principal: Principal, lease: LeaseProof | undefined): Authority {
  if (principal.kind === "harness") {
    if (lease === undefined)
      throw invalidField("lease", "a harness appends only with the lease of the session");
    return "brain";
  }
  if (lease !== undefined) throw invalidField("lease", "only a harness holds leases");
  return "client";
}

/** Of a key that opens one session, or one environment's work, and nothing else of its workspace. */
export function isBound({ kind }: Principal): boolean {
  return kind === "worker" || kind === "session" || kind === "work_item";
}

function checkType(principal: Principal, authority: Authority, type: string, path: string): void {
  const prefix = type.slice(0, type.indexOf("."));
  if (authority === "brain") {
    if (BRAIN_PREFIXES.has(prefix)) return;
    throw typeNotAllowed(path, type, "a harness appends what brains say");
  }
  if (isBound(principal)) {
    if (WORKER_TYPES.has(type)) return;
    throw typeNotAllowed(
      path,
      type,
      `a ${principal.kind} key appends only ${[...WORKER_TYPES].join(" and ")}`,
    );
  }
  const isOurs = BRAIN_PREFIXES.has(prefix) || CLIENT_PREFIXES.has(prefix);
  if (isOurs && !CLIENT_TYPES.has(type)) {
    throw typeNotAllowed(
      path,
      type,
      `clients append ${[...CLIENT_TYPES].join(", ")} and types with a prefix of their own, such as acme.created`,
    );
  }
}

function typeNotAllowed(path: string, type: string, why: string): TendonError {
  return new TendonError("EVENT_TYPE_NOT_ALLOWED", `${path}: "${type}" is not yours to append; ${why}`, {
    field: path,
    type,
  });
}

/** Checks what holds for every writer, and gives events without an id one. The texts stay as they came. */
export function checkEvents(
  events: readonly EventInput[],
  authority: Authority,
  field = "events",
): NewEvent[] {
  const firstOf = new Map<string, number>();
  const firstAnswer = new Map<string, string>();
  return events.map((event, index) => {
    const path = `${field}[${index}]`;
    const first = firstOf.get(event.id);
    if (event.id !== "" && first !== undefined) {
      throw invalidField(`${path}.id`, `the same as ${field}[${first}].id`);
    }
    firstOf.set(event.id, index);
    if (event.threadId !== "" && !isId("thread", event.threadId)) {
      throw invalidField(`${path}.thread_id`, "no id of a thread");
    }
    const payload = event.payload === "" ? "{}" : event.payload;
    checkSize(payload, event.internal, path);
    const value = parseObject(payload, `${path}.payload`);
    if (event.internal !== "") parseJson(event.internal, `${path}.internal`);
    if (authority === "client") checkPayloadShape(event.type, value, `${path}.payload`);
    checkAnswer(event.type, payload, firstAnswer, path);
    return {
      id: event.id === "" ? newId("event") : event.id,
      type: event.type,
      threadId: event.threadId,
      payload,
      internal: event.internal === "" ? undefined : event.internal,
    };
  });
}

/** A result names its call, and no two results of a request the same one (X3). */
function checkAnswer(type: string, payload: string, firstAnswer: Map<string, string>, path: string): void {
  const field = ANSWER_FIELDS[type];
  if (field === undefined) return;
  const { answers } = factsOf({ type, payload }, false);
  if (answers === undefined) throw invalidField(`${path}.payload.${field}`, "must be the id of a tool call");
  const first = firstAnswer.get(answers);
  if (first !== undefined) throw invalidField(`${path}.payload.${field}`, `${first} answers the same call`);
  firstAnswer.set(answers, path);
}

/** MESSAGE_TOO_LARGE. */
export function checkSize(payload: string, internal: string, path: string): void {
  const bytes = Buffer.byteLength(payload) + Buffer.byteLength(internal);
  if (bytes <= MAX_EVENT_BYTES) return;
  throw new TendonError(
    "MESSAGE_TOO_LARGE",
    `${path}: the event has ${bytes} bytes, at most ${MAX_EVENT_BYTES} are kept`,
    { field: path, bytes: String(bytes), limit: String(MAX_EVENT_BYTES) },
  );
}

function parseObject(text: string, path: string): Record<string, unknown> {
  const value = parseJson(text, path);
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw invalidField(path, "must be JSON text of one object");
  }
  return value as Record<string, unknown>;
}

function parseJson(text: string, path: string): unknown {
  // Half of a surrogate pair has no UTF-8: it would not be kept as it came. Escaped, it is text like any other.
  if (!isWellFormed(text)) throw invalidField(path, "has half of a surrogate pair; escape it, or mend it");
  try {
    return JSON.parse(text);
  } catch (error) {
    throw invalidField(path, `is not JSON: ${(error as Error).message.slice(0, 200)}`);
  }
}

const LONE_SURROGATE = /[\uD800-\uDFFF]/u;

function isWellFormed(text: string): boolean {
  return !LONE_SURROGATE.test(text);
}
