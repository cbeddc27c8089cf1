/** Writes the lines of an exported log (pure); kit/log-file says what they hold and reads them. */
import type { Checkpoint } from "../../kit/chain/checkpoint.ts";
import type { SessionChain } from "../../kit/chain/event-hash.ts";
import { LOG_VERSION } from "../../kit/log-file/log-lines.ts";
import type { EventRecord } from "../store/events.ts";
import type { SessionRecord } from "../store/sessions.ts";

/** `ownKey`: what this server signs with, as it has it itself, not as the database says. */
export function headerLine(
  session: SessionRecord,
  { withInternal, at, ownKey }: { withInternal: boolean; at: Date; ownKey: string },
): string {
  return JSON.stringify({
    tendon_log: LOG_VERSION,
    exported_at: at,
    with_internal: withInternal,
    ...(session.chain && { server_key: ownKey }),
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
      ...(session.chain && { at_rest: !session.hasWork, chain: chainJson(session.chain) }),
    },
  });
}

function chainJson({ origin, hash }: SessionChain): object {
  const { kind, sessionId, position } = origin;
  const source = { session_id: sessionId, position, hash: origin.hash };
  return { origin: kind === "new" ? { kind } : { kind, ...source }, hash };
}

export function eventLine(event: EventRecord, checkpoint?: Checkpoint): string {
  if (event.payload === undefined || event.internalOmitted) throw new Error("an event without its texts");
  return JSON.stringify({
    position: event.position,
    id: event.id,
    type: event.type,
    ...(event.threadId !== "" && { thread_id: event.threadId }),
    created_at: event.createdAt,
    payload: event.payload,
    ...(event.internal !== undefined && { internal: event.internal }),
    ...(event.internalSha256 !== undefined && { internal_sha256: event.internalSha256 }),
    ...(event.hash !== undefined && { hash: event.hash }),
    ...(checkpoint && { checkpoint: checkpointJson(checkpoint) }),
  });
}

function checkpointJson({ hash, signedAt, publicKey, signature }: Checkpoint): object {
  const text = Buffer.from(signature).toString("base64url");
  return { hash, signed_at: signedAt, public_key: publicKey, signature: text };
}

export function endLine(events: number, sha256: string): string {
  return JSON.stringify({ end: { events, sha256 } });
}
