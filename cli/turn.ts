/** Follows a session until it rests. */
import { consumedIds, stopReasonOf } from "./event-payload.ts";
import { type Watched, type WatchOptions, watchSession } from "./watch-session.ts";

export interface TurnEnd {
  /** Such as "end_turn" or "retries_exhausted"; "interrupted" by the signal. */
  readonly reason: string;
  /** Position of the last event that was seen. */
  readonly position: bigint;
}

type FollowOptions = Omit<WatchOptions, "types" | "previews"> & {
  readonly previews?: boolean;
  /** Ids of messages that the turn has to take in: the end of an earlier turn does not count while they are queued. */
  readonly sent?: readonly string[];
};

/** Shows everything after a position until the session is idle. */
export async function followTurn(options: FollowOptions, show: (seen: Watched) => void): Promise<TurnEnd> {
  const queued = new Set(options.sent);
  let position = options.after;
  for await (const seen of watchSession({ ...options, previews: options.previews ?? true })) {
    show(seen);
    if (!("event" in seen)) continue;
    position = seen.event.position;
    for (const id of consumedIds(seen.event)) queued.delete(id);
    const reason = stopReasonOf(seen.event);
    if (reason !== undefined && (queued.size === 0 || reason !== "end_turn")) return { reason, position };
  }
  return { reason: "interrupted", position };
}
