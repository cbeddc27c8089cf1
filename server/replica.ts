/** This server among the others: announced in the database, seen by its heartbeats, gone when it stops. */
import type { Clock } from "../kit/clock.ts";
import { messageOf } from "../kit/errors.ts";
import type { Service } from "../kit/lifecycle.ts";
import type { Logger } from "../kit/log.ts";
import type { ReplicaRow, ReplicaStore } from "./store/replicas.ts";

export interface ReplicaDeps {
  readonly row: ReplicaRow;
  readonly replicas: Pick<ReplicaStore, "announce" | "heartbeat" | "retire">;
  readonly clock: Clock;
  readonly log: Logger;
}

/** Others count it as dead after six of these (SEEN_WITHIN_MS). */
const HEARTBEAT_EVERY_MS = 5_000;

export class Replica implements Service {
  readonly name = "replica";
  private readonly deps: ReplicaDeps;
  private stopBeating: (() => void) | undefined;
  private beating: Promise<void> | undefined;

  constructor(deps: ReplicaDeps) {
    this.deps = deps;
  }

  async start(): Promise<void> {
    const { replicas, row, clock } = this.deps;
    await replicas.announce(row);
    this.stopBeating = clock.every(HEARTBEAT_EVERY_MS, () => {
      this.beating ??= this.beat().finally(() => {
        this.beating = undefined;
      });
    });
  }

  async stop(): Promise<void> {
    if (this.stopBeating === undefined) return;
    this.stopBeating();
    this.stopBeating = undefined;
    const { replicas, row, log } = this.deps;
    await this.beating;
    await replicas
      .retire(row.replicaId)
      .catch((error: unknown) => log.warn({ error: messageOf(error) }, "the replica could not say goodbye"));
  }

  private async beat(): Promise<void> {
    const { replicas, row, log } = this.deps;
    try {
      if (!(await replicas.heartbeat(row.replicaId))) await replicas.announce(row);
    } catch (error) {
      log.warn({ error: messageOf(error) }, "no sign of life could be left in the database");
    }
  }
}
