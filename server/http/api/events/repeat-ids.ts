/** Ids of events by which a repeat with the same `Idempotency-Key` is known: the log takes each id once (pure). */
import { createHash } from "node:crypto";
import { isTendonError, TendonError } from "../../../../kit/errors.ts";
import { ID_PREFIXES } from "../../../../kit/ids.ts";
import type { EventInput } from "../../../../proto/gen/tendon/v1/event_pb.js";

/**
 * Events without an id of their own get one. The last one's says that it is the last, so that a request of more or fewer
 * events is no repeat.
 */
export function withRepeatIds(
  events: readonly EventInput[],
  sessionId: string,
  repeatId: string,
): EventInput[] {
  if (repeatId === "") return [...events];
  return events.map((event, at) => {
    if (event.id !== "") return event;
    const place = at === events.length - 1 ? "last" : `${at}`;
    const digest = createHash("sha256").update(`${sessionId}\n${repeatId}\n${place}`).digest("base64url");
    return { ...event, id: `${ID_PREFIXES.event}${digest}` };
  });
}

/** Of an event whose id was made from the key it is the key that had another content. */
export function asReusedKey(error: unknown, said: readonly EventInput[]): unknown {
  if (!isTendonError(error, "EVENT_CONTENT_DIFFERS")) return error;
  if (said.some(({ id }) => id === error.metadata.event_id)) return error;
  const field = "request_id";
  const message = `${field}: was used before with other content; use a new one`;
  return new TendonError("REQUEST_ID_REUSED", message, { field });
}
