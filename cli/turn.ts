/** Follows a session until it rests. */
import { systemClock } from "../kit/clock.ts";
import type { Client } from "../kit/rpc/client.ts";
import { EventOrder, type SessionService } from "../proto/gen/tendon/v1/session_service_pb.js";
import { REST_TYPES, RestState } from "./rest-state.ts";
import { type Watched, type WatchOptions, watchSession } from "./watch-session.ts";

export interface TurnEnd {
  /** Such as "end_turn" or "retries_exhausted"; "interrupted" by the signal. */
  readonly reason: string;
  /** Position of the last event that was seen. */
  readonly position: bigint;
}

type FollowOptions = Omit<WatchOptions, "types" | "previews" | "sessions"> & {
  readonly sessions: Pick<Client<typeof SessionService>, "watchEvents" | "getEvents">;
  readonly previews?: boolean;
  /** Also waits for the checkpoint that is signed where the session rests, but no longer than this. */
  readonly checkpointWithinMs?: number | undefined;
};

const READ_WITHIN = { deadlineMs: 30_000 };
/** Where servers sign. */
const SIGNED_TYPES = new Set(["session.status_idle", "session.status_terminated", "session.forked"]);
/** Events before the beginning that are looked at for what still waits. */
const MAX_BEFORE = 1_000;
/** Texts are of no interest there. */
const INLINE_LIMIT_BYTES = 16_384;

/** Shows everything after a position until the session rests, but no sooner than all that is in the log now was shown. */
export async function followTurn(options: FollowOptions, show: (seen: Watched) => void): Promise<TurnEnd> {
  const { state, after, head } = await stateBefore(options);
  let position = after;
  if (position >= head && state.reason !== undefined) return { reason: state.reason, position };
  const { checkpointWithinMs, clock = systemClock } = options;
  const enough = new AbortController();
  const signal = options.signal ? AbortSignal.any([options.signal, enough.signal]) : enough.signal;
  let stopWaiting = () => {};
  let end: TurnEnd | undefined;
  let [restedAt, signedUpTo] = [0n, 0n];
  try {
    for await (const seen of watchSession({
      ...options,
      after,
      previews: options.previews ?? true,
      signal,
    })) {
      // The rest has been shown: what follows is another turn's.
      if (end === undefined || "checkpoint" in seen) show(seen);
      if ("checkpoint" in seen) signedUpTo = seen.checkpoint.position;
      if ("event" in seen && end === undefined) {
        position = seen.event.position;
        state.take(seen.event);
        if (SIGNED_TYPES.has(seen.event.type)) restedAt = position;
        const { reason } = state;
        if (reason === undefined || position < head) continue;
        end = { reason, position };
        if (checkpointWithinMs !== undefined)
          stopWaiting = clock.after(checkpointWithinMs, () => enough.abort());
      }
      if (end && (checkpointWithinMs === undefined || signedUpTo >= restedAt)) return end;
    }
  } finally {
    stopWaiting();
  }
  return end ?? { reason: "interrupted", position };
}

/** What is known of the session up to the position, which is the head's for -1. */
async function stateBefore({ sessions, sessionId, after }: FollowOptions) {
  const state = new RestState();
  const slice = await sessions.getEvents(
    {
      sessionId,
      beforePosition: after < 0n ? 0n : after + 1n,
      types: [...REST_TYPES],
      order: EventOrder.DESCENDING,
      limit: MAX_BEFORE,
      inlineLimitBytes: INLINE_LIMIT_BYTES,
    },
    READ_WITHIN,
  );
  for (const event of [...slice.events].reverse()) state.take(event);
  return { state, head: slice.head, after: after < 0n ? slice.head : after };
}
