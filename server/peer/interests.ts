/** Which sessions other replicas want previews of, as they announced it. Only a replica that keeps saying so gets any. */
import type { Clock } from "../../kit/clock.ts";

export const ANNOUNCE_EVERY_MS = 5_000;
const FORGET_AFTER_MS = 15_000;
const MAX_REPLICAS = 256;
export const MAX_WATCHED = 100_000;

export interface Announcement {
  readonly replicaId: string;
  readonly fromScratch: boolean;
  readonly watched: readonly string[];
  readonly unwatched: readonly string[];
}

export class Interests {
  private readonly clock: Clock;
  private readonly byReplica = new Map<string, { sessions: Set<string>; untilMs: number }>();

  constructor(clock: Clock) {
    this.clock = clock;
  }

  /** False when it builds on what is not known here: the replica has to start over. */
  take({ replicaId, fromScratch, watched, unwatched }: Announcement): boolean {
    const known = this.living(replicaId);
    if (known === undefined && !fromScratch) return false;
    const sessions = fromScratch || known === undefined ? new Set<string>() : known.sessions;
    for (const sessionId of unwatched) sessions.delete(sessionId);
    for (const sessionId of watched) if (sessions.size < MAX_WATCHED) sessions.add(sessionId);
    if (known === undefined) this.makeRoom();
    this.byReplica.set(replicaId, { sessions, untilMs: this.clock.monotonicMs() + FORGET_AFTER_MS });
    return true;
  }

  wants(replicaId: string, sessionId: string): boolean {
    return this.living(replicaId)?.sessions.has(sessionId) ?? false;
  }

  /** Sessions that others want now; one that two replicas want counts twice. */
  get size(): number {
    let size = 0;
    for (const replicaId of this.byReplica.keys()) size += this.living(replicaId)?.sessions.size ?? 0;
    return size;
  }

  private living(replicaId: string) {
    const known = this.byReplica.get(replicaId);
    return known !== undefined && known.untilMs > this.clock.monotonicMs() ? known : undefined;
  }

  private makeRoom(): void {
    for (const replicaId of this.byReplica.keys()) {
      if (this.living(replicaId) === undefined || this.byReplica.size >= MAX_REPLICAS) {
        this.byReplica.delete(replicaId);
      }
    }
  }
}
