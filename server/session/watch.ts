/**
 * What one caller of WatchEvents is told (L4): history, then what comes, every position once and in order.
 *
 * The cursor alone says what was delivered. The hub only says that there is more; events come from the hub's memory when
 * it has all of them, else from the database, a page at a time. So a slow reader costs one page, whatever it misses.
 */
import { create, type MessageInitShape } from "@bufbuild/protobuf";
import type { Clock } from "../../kit/clock.ts";
import { notFound, TendonError } from "../../kit/errors.ts";
import { encodedOnce } from "../../kit/rpc/codec.ts";
import type { Preview } from "../../proto/gen/tendon/v1/event_pb.js";
import {
  type WatchEventsResponse,
  WatchEventsResponseSchema,
} from "../../proto/gen/tendon/v1/session_service_pb.js";
import type { CheckpointStore } from "../store/checkpoints.ts";
import type { EventRecord, EventStore } from "../store/events.ts";
import type { SessionStore } from "../store/sessions.ts";
import { toCheckpointMessage, toEventMessage } from "./event-message.ts";
import type { Hub } from "./hub.ts";
import type { Watcher } from "./watcher.ts";

export const PROGRESS_EVERY_MS = 10_000;

const PAGE_EVENTS = 256;
const PAGE_BYTES = 1024 * 1024;
const PAGE_CHECKPOINTS = 256;

export interface WatchDeps {
  readonly events: Pick<EventStore, "read">;
  readonly checkpoints: Pick<CheckpointStore, "list">;
  readonly sessions: Pick<SessionStore, "standing">;
  readonly hub: Hub;
  readonly clock: Clock;
}

export interface WatchRequest {
  /** Watches the session already: nothing is missed between looking at the session and this. */
  readonly watcher: Watcher;
  readonly afterPosition: number;
  readonly types: readonly string[];
  readonly inlineLimitBytes: number;
  readonly signal: AbortSignal;
}

type Told = MessageInitShape<typeof WatchEventsResponseSchema>;

export async function* watchLog(deps: WatchDeps, request: WatchRequest): AsyncGenerator<Told> {
  const { watcher, signal } = request;
  const isDue = { progress: true };
  const stopTicking = deps.clock.every(PROGRESS_EVERY_MS, () => {
    isDue.progress = true;
    watcher.notify();
  });
  const onAbort = () => watcher.notify();
  signal.addEventListener("abort", onAbort, { once: true });
  try {
    yield* tellLog(deps, request, isDue);
  } finally {
    stopTicking();
    signal.removeEventListener("abort", onAbort);
  }
}

async function* tellLog(
  deps: WatchDeps,
  request: WatchRequest,
  isDue: { progress: boolean },
): AsyncGenerator<Told> {
  const { watcher, signal } = request;
  let cursor = request.afterPosition;
  // That of the cursor itself may have been signed after its event was delivered.
  let checkpointed = Math.max(cursor - 1, 0);
  while (!signal.aborted) {
    if (watcher.draining)
      throw new TendonError("DRAINING", "the server stops; watch again from the last position");
    for (const preview of watcher.takePreviews()) {
      yield toldToMany(preview, () => ({ kind: { case: "preview", value: preview } }));
    }
    if (watcher.ended === "deleted") return;
    if (watcher.head > cursor) {
      const page = await nextPage(deps, request, cursor);
      for (const event of page.events) {
        yield toldToMany(event, () => ({ kind: { case: "event", value: toEventMessage(event, false) } }));
      }
      cursor = page.cursor;
      continue;
    }
    if (watcher.checkpointPosition > checkpointed) {
      const page = await nextCheckpoints(deps, request, checkpointed);
      for (const checkpoint of page.checkpoints) {
        yield { kind: { case: "checkpoint", value: toCheckpointMessage(checkpoint) } };
      }
      checkpointed = page.position;
      continue;
    }
    if (watcher.ended === "archived") {
      const standing = await deps.sessions.standing(watcher.sessionId);
      if (standing === undefined) return;
      watcher.advance(standing.head);
      watcher.checkpointed(standing.checkpointPosition);
      if (watcher.head > cursor || watcher.checkpointPosition > checkpointed) continue;
    }
    if (isDue.progress || watcher.ended) {
      isDue.progress = false;
      yield { kind: { case: "progress", value: { position: BigInt(cursor) } } };
    }
    if (watcher.ended) return;
    await watcher.wait();
  }
}

const toldMessages = new WeakMap<object, WatchEventsResponse>();

/** What the hub keeps in memory goes to all watchers of its session: its message is made once. */
function toldToMany(what: EventRecord | Preview, make: () => Told): WatchEventsResponse {
  let message = toldMessages.get(what);
  if (message === undefined) {
    message = encodedOnce(create(WatchEventsResponseSchema, make()));
    toldMessages.set(what, message);
  }
  return message;
}

/** The next events after the cursor, and where the cursor is once they are delivered. */
async function nextPage(
  { events, hub }: WatchDeps,
  { watcher, types, inlineLimitBytes }: WatchRequest,
  cursor: number,
): Promise<{ events: EventRecord[]; cursor: number }> {
  const inMemory = hub.tailAfter(watcher.sessionId, cursor);
  if (inMemory?.length && inMemory.every((event) => sizeOf(event) <= inlineLimitBytes)) {
    const wanted = inMemory.filter(({ type }) => types.length === 0 || types.includes(type));
    return { events: wanted, cursor: inMemory.at(-1)!.position };
  }
  // Everything up to here is committed, so a page that is not cut short has all of it (L1).
  const target = watcher.head;
  const slice = await events.read({
    sessionId: watcher.sessionId,
    afterPosition: cursor,
    types,
    limit: PAGE_EVENTS,
    maxBytes: PAGE_BYTES,
    inlineLimitBytes,
    withInternal: false,
  });
  const last = slice.events.at(-1)?.position ?? cursor;
  return { events: slice.events, cursor: slice.hasMore ? last : Math.max(target, last) };
}

/** The next checkpoints after a position, and up to where there are no others. Their events are delivered already. */
async function nextCheckpoints({ checkpoints }: WatchDeps, { watcher }: WatchRequest, position: number) {
  const target = watcher.checkpointPosition;
  const page = await checkpoints.list({
    sessionId: watcher.sessionId,
    fromPosition: position + 1,
    toPosition: target,
    limit: PAGE_CHECKPOINTS,
  });
  const isCut = page.length === PAGE_CHECKPOINTS;
  return { checkpoints: page, position: isCut ? page.at(-1)!.position : target };
}

function sizeOf(event: EventRecord): number {
  return Buffer.byteLength(event.payload ?? "");
}

/** Where a watch begins. Throws NOT_FOUND, RESYNC for a position that the log has not reached. */
export function startOf(
  sessionId: string,
  afterPosition: bigint,
  head: number | undefined,
  field = "after_position",
): number {
  if (head === undefined) throw notFound("session", sessionId);
  if (afterPosition === -1n) return head;
  if (afterPosition > BigInt(head)) {
    throw new TendonError(
      "RESYNC",
      `${field}: ${afterPosition} is after the newest event, which has position ${head}; read the session again`,
      { field, head: String(head) },
    );
  }
  return Number(afterPosition);
}
