/** Decisions of work distribution, without effects. */
import { BARREN_DEATHS_BEFORE_ALONE, type Room, SILENT_DEATHS_BEFORE_ALONE } from "../store/leases.ts";

/** What placement knows of a connected harness. */
export interface HarnessLoad {
  readonly loops: ReadonlySet<string>;
  readonly capacity: number;
  readonly sessions: number;
  /** Runs one session that nothing may share a process with (E4). */
  readonly alone: boolean;
  /** Empties, so that such a session can have it. */
  readonly keptFree: boolean;
  readonly leaving: boolean;
}

/** How often in a row the session's holders have died: without an event of it, and without its getting anywhere. */
export interface Deaths {
  readonly silentDeaths: number;
  readonly barrenDeaths: number;
}

export interface Need extends Deaths {
  readonly loop: string;
}

/** Whether a session that has killed its harness often enough must be alone in one (E4). */
export function mustRunAlone({ silentDeaths, barrenDeaths }: Deaths): boolean {
  return silentDeaths >= SILENT_DEATHS_BEFORE_ALONE || barrenDeaths >= BARREN_DEATHS_BEFORE_ALONE;
}

/** Whether it has killed the harness that it had for itself, too. */
export function isPoison({ silentDeaths, barrenDeaths }: Deaths): boolean {
  return silentDeaths > SILENT_DEATHS_BEFORE_ALONE || barrenDeaths > BARREN_DEATHS_BEFORE_ALONE;
}

/** Where these harnesses have room, each kind of place once. */
export function roomsOf(
  harnesses: Iterable<HarnessLoad & { readonly workspaceId: string | undefined }>,
): Room[] {
  const rooms = new Map<string, Room>();
  for (const harness of harnesses) {
    const { workspaceId } = harness;
    for (const loop of harness.loops) {
      if (canTake(harness, { loop, silentDeaths: 0, barrenDeaths: 0 }))
        rooms.set(`${loop}\n${workspaceId ?? ""}`, { loop, workspaceId });
    }
  }
  return [...rooms.values()];
}

export function canTake(harness: HarnessLoad, need: Need): boolean {
  if (harness.leaving || harness.alone || !harness.loops.has(need.loop)) return false;
  if (mustRunAlone(need)) return harness.sessions === 0;
  return !harness.keptFree && harness.sessions < harness.capacity;
}

/** The harness with the smallest share of its capacity in use, of those that can take the session. */
export function choose<H extends HarnessLoad>(harnesses: Iterable<H>, need: Need): H | undefined {
  return leastLoaded([...harnesses].filter((harness) => canTake(harness, need)));
}

/**
 * The harness to empty for a session that must run alone when none is empty, or undefined when that would leave the
 * others without one: then the session waits until one is empty by itself.
 */
export function chooseToEmpty<H extends HarnessLoad>(harnesses: Iterable<H>, need: Need): H | undefined {
  const able = [...harnesses].filter((harness) => !harness.leaving && harness.loops.has(need.loop));
  const free = able.filter((harness) => !harness.alone && !harness.keptFree);
  return free.length >= 2 ? leastLoaded(free) : undefined;
}

function leastLoaded<H extends HarnessLoad>(harnesses: readonly H[]): H | undefined {
  let best: H | undefined;
  for (const harness of harnesses) {
    if (best === undefined || harness.sessions / harness.capacity < best.sessions / best.capacity)
      best = harness;
  }
  return best;
}
