/** Writes a log as lines, a slice at a time. */
import { createHash } from "node:crypto";
import { notFound } from "../../kit/errors.ts";
import type { EventStore } from "../store/events.ts";
import type { SessionRecord } from "../store/sessions.ts";
import { endLine, eventLine, headerLine } from "./log-lines.ts";
import { MAX_EVENT_BYTES } from "./rules.ts";

const SLICE_EVENTS = 1000;
const SLICE_BYTES = 4 * 1024 * 1024;
const CHUNK_BYTES = 512 * 1024;

/** Up to the head that the session had. NOT_FOUND when the session is deleted meanwhile. */
export async function* exportLog(
  events: Pick<EventStore, "read">,
  session: SessionRecord,
  options: { withInternal: boolean; at: Date },
): AsyncGenerator<{ chunk: Uint8Array }> {
  const hash = createHash("sha256");
  let held: Buffer[] = [];
  let heldBytes = 0;
  // Small lines go out together, large ones in pieces.
  function* put(line: string): Generator<{ chunk: Uint8Array }> {
    const bytes = Buffer.from(`${line}\n`);
    hash.update(bytes);
    held.push(bytes);
    heldBytes += bytes.length;
    if (heldBytes >= CHUNK_BYTES) yield* flush();
  }
  function* flush(): Generator<{ chunk: Uint8Array }> {
    const bytes = held.length === 1 ? held[0]! : Buffer.concat(held);
    held = [];
    heldBytes = 0;
    for (let at = 0; at < bytes.length; at += CHUNK_BYTES)
      yield { chunk: bytes.subarray(at, at + CHUNK_BYTES) };
  }
  yield* put(headerLine(session, options.withInternal, options.at));
  for (let position = 0; position < session.head; ) {
    const slice = await events.read({
      sessionId: session.sessionId,
      afterPosition: position,
      beforePosition: session.head + 1,
      limit: SLICE_EVENTS,
      maxBytes: SLICE_BYTES,
      inlineLimitBytes: MAX_EVENT_BYTES,
      withInternal: options.withInternal,
    });
    for (const event of slice.events) {
      if (event.position !== position + 1) throw notFound("session", session.sessionId);
      position = event.position;
      yield* put(eventLine(event));
    }
    if (slice.events.length === 0) throw notFound("session", session.sessionId);
  }
  yield* put(endLine(session.head, hash.copy().digest("hex")));
  yield* flush();
}
