/** The session log for the other areas: appends as the server, reads with `internal`, and who is told. */

import { notFound } from "../../kit/errors.ts";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import type { CommittedEvent, SessionLog } from "../ports/session-log.ts";
import type { Appended, AppendRequest, EventRecord, EventStore } from "../store/events.ts";
import type { SessionStore } from "../store/sessions.ts";
import { toEventMessage } from "./event-message.ts";
import type { Hub } from "./hub.ts";
import { toReceipt } from "./receipt.ts";
import { checkEvents } from "./rules.ts";

/** Events that are read at once; the bytes are bounded too. */
const READ_EVENTS = 1000;
const INLINE_LIMIT_BYTES = 1024 * 1024;

export interface LogDeps {
  readonly events: EventStore;
  readonly sessions: Pick<SessionStore, "standing">;
  readonly hub: Hub;
}

export function createSessionLog({ events, sessions, hub }: LogDeps): SessionLog {
  const standingHead = async (sessionId: string): Promise<number> => {
    const standing = await sessions.standing(sessionId);
    if (!standing) throw notFound("session", sessionId);
    return standing.head;
  };
  return {
    async append({ sessionId, events: inputs, expectedPosition, lease }) {
      const request: AppendRequest = {
        sessionId,
        events: checkEvents(inputs, "server"),
        authority: "server",
        expectedPosition,
        lease: lease && { leaseId: lease.leaseId, epoch: lease.epoch },
      };
      const appended = await events.append(request);
      announceAppended(hub, sessionId, appended);
      return { receipts: appended.receipts.map(toReceipt), head: BigInt(appended.head) };
    },
    announce: (advance, added) => hub.announce(advance, added?.map(toRecord)),
    onAdvance: (listener) => hub.onAdvance(listener),
    async read({ sessionId, afterPosition, maxBytes }) {
      const head = await standingHead(sessionId);
      const slice = await events.read({
        sessionId,
        afterPosition: Number(afterPosition),
        limit: READ_EVENTS,
        maxBytes,
        inlineLimitBytes: INLINE_LIMIT_BYTES,
        withInternal: true,
      });
      return { events: toMessages(slice.events), head: headOf(head, slice.events), hasMore: slice.hasMore };
    },
    async readTail({ sessionId, maxBytes }) {
      const head = await standingHead(sessionId);
      const slice = await events.read({
        sessionId,
        afterPosition: 0,
        descending: true,
        limit: READ_EVENTS,
        maxBytes,
        inlineLimitBytes: INLINE_LIMIT_BYTES,
        withInternal: true,
      });
      const oldestFirst = slice.events.reverse();
      return { events: toMessages(oldestFirst), head: headOf(head, oldestFirst) };
    },
    publishPreviews: (sessionId, previews) => hub.publishPreviews(sessionId, previews),
  };
}

function toRecord(event: CommittedEvent): EventRecord {
  return { ...event, payloadOmitted: undefined, internalOmitted: undefined, processedAt: undefined };
}

/** Says what an append added; nothing when all of it had been there. */
export function announceAppended(
  hub: Hub,
  sessionId: string,
  { added, head, hasWork, checkpointDue = false }: Appended,
  leaseId?: string,
): void {
  const first = added[0];
  if (!first) return;
  const byLease =
    leaseId === undefined ? {} : { byLease: { leaseId, firstPosition: BigInt(first.position) } };
  hub.announce({ sessionId, head: BigInt(head), hasWork, checkpointDue, ...byLease }, added);
}

/** Events may have been appended after the session was looked at. */
export function headOf(head: number, events: readonly EventRecord[]): bigint {
  return BigInt(Math.max(head, events.at(-1)?.position ?? 0, events[0]?.position ?? 0));
}

function toMessages(events: readonly EventRecord[]): Event[] {
  return events.map((event) => toEventMessage(event, true));
}
