/**
 * Where a request has its cache marks: four at most. Pure.
 *
 * The model API writes a cache entry at each mark and looks for entries at each mark and the 19 blocks before it. So:
 * C1 the end of the request, which the next one reads;
 * C2 the end of the newest request that was answered, where an entry was surely written: however many blocks came since (one
 *    turn of parallel calls has more than 20), this mark finds it exactly. Requests that failed may have written none;
 * C3 the end of what trimming has dealt with, once it has: the next trimming changes only what comes after it;
 * C4 the system prompt, and the last tool while C3 is free: both stay for the session's life, and others share them.
 */
import type { History } from "./history.ts";
import { type BlockPlace, samePlace } from "./message-list.ts";

export interface CachePlan {
  readonly marksTools: boolean;
  /** In messages. */
  readonly places: readonly BlockPlace[];
}

/** A request that `isLast` of its kind has none after it that would read its end. */
export function cachePlan(history: History, hasSystem: boolean, isLast: boolean): CachePlan {
  const { messages, answeredEnd, settledEnd } = history;
  const message = messages.at(-1);
  const end = message && { message, block: message.blocks.length - 1 };
  const places: BlockPlace[] = [];
  for (const place of [isLast ? undefined : end, answeredEnd, settledEnd]) {
    if (place !== undefined && !places.some((other) => samePlace(place, other))) places.push(place);
  }
  return { marksTools: !hasSystem || settledEnd === undefined, places };
}
