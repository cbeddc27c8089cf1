/** Stores the result of a call at the server, also through the server's restart. */
import type { Clock } from "../kit/clock.ts";
import { isTendonError, messageOf } from "../kit/errors.ts";
import type { Logger } from "../kit/log.ts";

export interface StoredCall {
  readonly sessionId: string;
  readonly toolUseId: string;
}

export const STORE_WITHIN_MS = 10_000;
const STORE_FOR_MS = 60_000;
const STORE_AGAIN_MS = 500;

/** Rejects with what `store` rejects with, after a minute at most. */
export async function storeResult<T>(
  { clock, log }: { readonly clock: Clock; readonly log: Logger },
  { sessionId, toolUseId }: StoredCall,
  store: () => Promise<T>,
): Promise<T> {
  const endsAtMs = clock.monotonicMs() + STORE_FOR_MS;
  for (;;) {
    try {
      return await store();
    } catch (error) {
      const mayPass = isTendonError(error, "UNAVAILABLE") || isTendonError(error, "DEADLINE_EXCEEDED");
      if (!mayPass || clock.monotonicMs() > endsAtMs) {
        log.error({ sessionId, toolUseId, error: messageOf(error) }, "the result of a call was not stored");
        throw error;
      }
      await clock.sleep(STORE_AGAIN_MS);
    }
  }
}
