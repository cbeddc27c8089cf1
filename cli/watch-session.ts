/** Watches a session across disconnects: every event after a position once and in order, previews in between. */
import { Backoff } from "../kit/backoff.ts";
import { type Clock, systemClock } from "../kit/clock.ts";
import { TendonError } from "../kit/errors.ts";
import type { Client } from "../kit/rpc/client.ts";
import type { Checkpoint, Event, Preview } from "../proto/gen/tendon/v1/event_pb.js";
import type { SessionService } from "../proto/gen/tendon/v1/session_service_pb.js";

export type Watched =
  | { readonly event: Event }
  | { readonly preview: Preview }
  /** May come again after a disconnect. */
  | { readonly checkpoint: Checkpoint };

export interface WatchOptions {
  readonly sessions: Pick<Client<typeof SessionService>, "watchEvents">;
  readonly sessionId: string;
  /** Position of the last event that is known; -1 for only what comes. */
  readonly after: bigint;
  readonly types?: readonly string[] | undefined;
  readonly previews: boolean;
  readonly signal?: AbortSignal;
  readonly clock?: Clock;
  /** How long a server may be away before the watch fails with its error. */
  readonly giveUpAfterMs?: number;
  /** Called when the connection was lost and is tried again. */
  onLost?(error: TendonError): void;
}

const BACKOFF = { firstMs: 200, maxMs: 5_000, resetAfterMs: 10_000 };
const DEFAULT_GIVE_UP_MS = 90_000;
const PASSING = new Set(["UNAVAILABLE", "DRAINING"]);

/** Ends only by the signal (quietly), by leaving the loop, or by throwing. */
export async function* watchSession(options: WatchOptions): AsyncGenerator<Watched> {
  const { sessions, sessionId, signal, clock = systemClock } = options;
  const backoff = new Backoff(clock, BACKOFF);
  let after = options.after;
  let lastHeardMs = clock.monotonicMs();
  while (!signal?.aborted) {
    let stands = false;
    try {
      const request = {
        sessionId,
        afterPosition: after,
        types: [...(options.types ?? [])],
        previews: options.previews,
      };
      for await (const { kind } of sessions.watchEvents(request, signal === undefined ? {} : { signal })) {
        if (!stands) backoff.connected();
        stands = true;
        lastHeardMs = clock.monotonicMs();
        if (kind.case === "event") {
          after = kind.value.position;
          yield { event: kind.value };
        } else if (kind.case === "preview") yield { preview: kind.value };
        else if (kind.case === "checkpoint") yield { checkpoint: kind.value };
        else if (kind.case === "progress" && kind.value.position > after) after = kind.value.position;
      }
    } catch (error) {
      if (signal?.aborted) return;
      const isPassing = error instanceof TendonError && PASSING.has(error.reason);
      const awayMs = clock.monotonicMs() - lastHeardMs;
      if (!isPassing || awayMs > (options.giveUpAfterMs ?? DEFAULT_GIVE_UP_MS)) throw error;
      options.onLost?.(error);
    }
    await clock.sleep(backoff.nextDelayMs(), signal).catch(() => {});
  }
}
