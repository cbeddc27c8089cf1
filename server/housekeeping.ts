/** Forgets what nobody can need any more. Any replica does it; doing it twice does no harm. */
import type { Clock } from "../kit/clock.ts";
import type { Service } from "../kit/lifecycle.ts";
import type { Logger } from "../kit/log.ts";
import { Rounds } from "../kit/rounds.ts";
import type { RequestIdStore } from "./store/request-ids.ts";

export interface HousekeepingDeps {
  readonly requestIds: RequestIdStore;
  readonly clock: Clock;
  readonly log: Logger;
}

const EVERY_MS = 10 * 60_000;

/** A request may be repeated this long; whoever repeats it later makes something new. */
const REQUEST_IDS_KEPT_MS = 7 * 86_400_000;

export function createHousekeeping({ requestIds, clock, log }: HousekeepingDeps): Service {
  return new Rounds({
    name: "housekeeping",
    everyMs: EVERY_MS,
    round: () => requestIds.prune(REQUEST_IDS_KEPT_MS),
    failed: "old request ids could not be forgotten",
    clock,
    log,
  });
}
