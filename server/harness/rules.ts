/** Decisions of work distribution, without effects. */
import { SILENT_DEATHS_BEFORE_ALONE } from "./limits.ts";

/** What placement knows of a connected harness. */
export interface HarnessLoad {
  readonly loops: ReadonlySet<string>;
  readonly capacity: number;
  readonly sessions: number;
  /** Runs one session that nothing may share a process with (E4). */
  readonly reserved: boolean;
  readonly leaving: boolean;
}

export interface Need {
  readonly loop: string;
  readonly silentDeaths: number;
}

/** Whether a session that has killed its harness often enough must be alone in one (E4). */
export function mustRunAlone(need: { silentDeaths: number }): boolean {
  return need.silentDeaths >= SILENT_DEATHS_BEFORE_ALONE;
}

/** Whether it has killed the harness that it had for itself, too. */
export function isPoison(need: { silentDeaths: number }): boolean {
  return need.silentDeaths > SILENT_DEATHS_BEFORE_ALONE;
}

export function canTake(harness: HarnessLoad, need: Need): boolean {
  if (harness.leaving || harness.reserved || !harness.loops.has(need.loop)) return false;
  return mustRunAlone(need) ? harness.sessions === 0 : harness.sessions < harness.capacity;
}

/** The harness with the smallest share of its capacity in use, of those that can take the session. */
export function choose<H extends HarnessLoad>(harnesses: Iterable<H>, need: Need): H | undefined {
  let best: H | undefined;
  for (const harness of harnesses) {
    if (!canTake(harness, need)) continue;
    if (best === undefined || harness.sessions / harness.capacity < best.sessions / best.capacity)
      best = harness;
  }
  return best;
}
