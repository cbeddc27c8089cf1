/**
 * The hashes of a tamper-evident log (pure). Each event's hash covers the hash before it, so whoever knows one of them knows
 * the log up to there. `event_hash` in the database computes the same.
 */
import { createHash } from "node:crypto";

/** What a session's first event is hashed with comes from here: a chain that begins as a copy says of what. */
export interface ChainOrigin {
  readonly kind: "new" | "fork" | "import";
  /** Session that was copied; empty for a new one. */
  readonly sessionId: string;
  /** Last event that was copied; 0 for a new one. */
  readonly position: number;
  /** The copied session's hash there, lower-case hex; empty when it had none. */
  readonly hash: string;
}

/** How a tamper-evident session is hashed. */
export interface SessionChain {
  readonly origin: ChainOrigin;
  /** Of the newest event, lower-case hex; before the first what that is hashed with. */
  readonly hash: string;
}

export const NEW_CHAIN: ChainOrigin = { kind: "new", sessionId: "", position: 0, hash: "" };

export interface HashedEvent {
  readonly id: string;
  readonly position: number;
  readonly type: string;
  /** To the millisecond. */
  readonly createdAt: Date;
  readonly threadId: string;
  /** Lower-case hex. */
  readonly payloadSha256: string;
  /** Undefined for an event that has no internal. */
  readonly internalSha256: string | undefined;
}

/** Lower-case hex, of the text as UTF-8. */
export function sha256Hex(text: string): string {
  return createHash("sha256").update(text, "utf8").digest("hex");
}

/** Each field with its length in bytes before it: no two lists of fields give the same text. */
export function framed(fields: readonly string[]): string {
  return fields.map((field) => `${Buffer.byteLength(field)}:${field},`).join("");
}

/** The hash "before" a session's first event. */
export function originHash(sessionId: string, origin: ChainOrigin): string {
  const { kind, sessionId: source, position, hash } = origin;
  return sha256Hex(framed(["tendon.chain.1", sessionId, kind, source, String(position), hash]));
}

/** Of an event that follows on the one with the hash `previous`. */
export function eventHash(previous: string, sessionId: string, event: HashedEvent): string {
  return sha256Hex(
    framed([
      "tendon.event.1",
      previous,
      sessionId,
      String(event.position),
      event.id,
      event.type,
      String(event.createdAt.getTime()),
      event.threadId,
      event.payloadSha256,
      event.internalSha256 ?? "",
    ]),
  );
}
