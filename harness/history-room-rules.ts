/** Decisions about the memory that histories of sessions may take, without effects. */
import type { Event } from "../proto/gen/tendon/v1/event_pb.js";

/** What the history of every session may take beside the budget: most sessions never have more. */
export const OWN_BYTES = 2 * 1024 * 1024;
/** A session that holds room for so long has had a turn, and may be asked to make room for one that waits. */
export const TURN_MS = 20_000;

/** What an event takes in memory: a text with any character beyond ASCII takes two bytes for each of its characters. */
export function bytesOf({ payload, internal }: Pick<Event, "payload" | "internal">): number {
  return textBytes(payload) + textBytes(internal);
}

function textBytes(text: string): number {
  return Buffer.byteLength(text) === text.length ? text.length : 2 * text.length;
}

/** Of the budget, for a history of so many bytes. */
export function shareOf(bytes: number): number {
  return Math.max(0, bytes - OWN_BYTES);
}

/** A session that takes part of the budget. */
export interface Holder {
  /** Of the budget. */
  readonly bytes: number;
  /** How long it has taken part. */
  readonly heldMs: number;
  /** For room itself: it gets nowhere with what it holds. */
  readonly waits: boolean;
  /** It was asked to make room, and does so with its next step. */
  readonly leaves: boolean;
}

/**
 * Who is to make room for so many bytes: those that wait themselves, then those that have had their turn, the largest first,
 * so that few are disturbed. Nobody while those that leave already are enough.
 */
export function chooseToLeave<H extends Holder>(missingBytes: number, holders: readonly H[]): H[] {
  const leaving = holders.filter(({ leaves }) => leaves).reduce((sum, { bytes }) => sum + bytes, 0);
  const able = holders
    .filter(({ leaves, bytes, waits, heldMs }) => !leaves && bytes > 0 && (waits || heldMs >= TURN_MS))
    .sort((a, b) => Number(b.waits) - Number(a.waits) || b.bytes - a.bytes);
  const chosen: H[] = [];
  let missing = missingBytes - leaving;
  for (const holder of able) {
    if (missing <= 0) break;
    chosen.push(holder);
    missing -= holder.bytes;
  }
  return chosen;
}
