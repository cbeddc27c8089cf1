/** Writes a log as lines, a slice at a time. */
import { createHash } from "node:crypto";
import type { Checkpoint } from "../../kit/chain/checkpoint.ts";
import { notFound } from "../../kit/errors.ts";
import { MAX_EVENT_BYTES } from "../../kit/limits.ts";
import type { SigningKey } from "../../kit/sign/key-file.ts";
import type { CheckpointStore } from "../store/checkpoints.ts";
import type { EventRecord, EventStore } from "../store/events.ts";
import type { SessionRecord } from "../store/sessions.ts";
import { endLine, eventLine, headerLine } from "./log-lines.ts";

const SLICE_EVENTS = 1000;
const SLICE_BYTES = 4 * 1024 * 1024;
const CHUNK_BYTES = 512 * 1024;

export interface ExportDeps {
  readonly events: Pick<EventStore, "read">;
  readonly checkpoints: Pick<CheckpointStore, "list">;
  readonly signingKey: Pick<SigningKey, "publicKey">;
}

/** Up to the head that the session had. NOT_FOUND when the session is deleted meanwhile. */
export async function* exportLog(
  deps: ExportDeps,
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
  yield* put(headerLine(session, { ...options, ownKey: deps.signingKey.publicKey.x }));
  for (let position = 0; position < session.head; ) {
    const { events, checkpoints } = await sliceOf(deps, session, position, options.withInternal);
    for (const event of events) {
      if (event.position !== position + 1) break;
      position = event.position;
      yield* put(eventLine(event, checkpoints.get(position)));
    }
    const last = events.at(-1)?.position;
    if (last === position) continue;
    // What was there goes out: whoever looks for changes sees where it ends.
    yield* flush();
    throw notFound("session", session.sessionId);
  }
  yield* put(endLine(session.head, hash.copy().digest("hex")));
  yield* flush();
}

/** The next events, and what was signed at them. */
async function sliceOf(
  { events, checkpoints }: ExportDeps,
  { sessionId, head, chain }: SessionRecord,
  afterPosition: number,
  withInternal: boolean,
): Promise<{ events: EventRecord[]; checkpoints: Map<number, Checkpoint> }> {
  const slice = await events.read({
    sessionId,
    afterPosition,
    beforePosition: head + 1,
    limit: SLICE_EVENTS,
    maxBytes: SLICE_BYTES,
    inlineLimitBytes: MAX_EVENT_BYTES,
    withInternal,
    withHashes: chain !== undefined,
  });
  const last = slice.events.at(-1)?.position ?? afterPosition;
  if (chain === undefined) return { events: slice.events, checkpoints: new Map() };
  const bounds = { sessionId, fromPosition: afterPosition + 1, toPosition: last, limit: SLICE_EVENTS };
  const signed = await checkpoints.list(bounds);
  return { events: slice.events, checkpoints: new Map(signed.map((one) => [one.position, one])) };
}
