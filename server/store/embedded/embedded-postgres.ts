/**
 * The Postgres that a default installation brings along.
 *
 * O1 One owner: whoever uses it holds a session lock; a second program gets one clear error, never a fight.
 * O2 Postgres may outlive its owner (which was killed); the next owner adopts it, and from then on its end is the adopter's task.
 * O3 There is never a second Postgres on one cluster: Postgres' own lock file decides, we only read it.
 * O4 A Postgres that dies under a living owner is started again; only when that fails is it lost.
 */
import { Backoff } from "../../../kit/backoff.ts";
import type { Clock } from "../../../kit/clock.ts";
import { isTendonError, messageOf } from "../../../kit/errors.ts";
import type { Logger } from "../../../kit/log.ts";
import type { DirectConnection } from "../postgres/direct-connection.ts";
import { ensureCluster } from "./cluster.ts";
import { EmbeddedPostgresError } from "./embedded-postgres-error.ts";
import { claimOwnership, DATABASE, databaseUrl, ensureDatabase } from "./ownership.ts";
import { type Placement, placePostgres } from "./placement.ts";
import { boundLog } from "./postgres-log.ts";
import {
  findPostmaster,
  type Postmaster,
  spawnPostmaster,
  startFailure,
  stopPostmaster,
  untilReady,
} from "./postmaster.ts";
import { ensureSocketDir, removeSocketDir } from "./socket-dir.ts";

export interface EmbeddedPostgresOptions {
  /** Tendon's data directory; everything goes to its folder `postgres`. Made if missing. */
  dataDir: string;
  clock: Clock;
  log: Logger;
}

export interface EmbeddedPostgres {
  /** A connection URL with the unix socket's folder in `host`, as libpq reads it. The same for as long as it runs, also after a restart by us. */
  readonly url: string;
  /** Process id of the Postgres server; another one after a restart. */
  readonly pid: number;
  /** Whether it was left behind by an earlier program. */
  readonly adopted: boolean;
  /** Resolves with the reason if Postgres went away and could not be started again; never after `stop`. */
  readonly lost: Promise<Error>;
  /** Ends Postgres within 8 s. May be called twice; never rejects. */
  stop(): Promise<void>;
}

/** Recovery after a crash reads at most `max_wal_size` of log: seconds. */
const READY_WITHIN_MS = 60_000;

/** How long the rest of an old Postgres, one that is just stopping, or recovery may keep us waiting. */
const TAKE_OVER_WITHIN_MS = 30_000;
const AGAIN_AFTER_MS = 100;

const LOG_CHECK_EVERY_MS = 60_000;

/** How often a dead Postgres is brought back before it counts as lost; the waits double, also for one that dies again and again. */
const REVIVE_ATTEMPTS = 5;
const REVIVE_BACKOFF = { firstMs: 100, maxMs: 10_000, resetAfterMs: 60_000 };

interface Running {
  postmaster: Postmaster;
  socketDir: string;
  owner: DirectConnection;
}

/** Starts Postgres, or adopts the one that runs on this data directory. Throws `EmbeddedPostgresError` with a line that says what to do. */
export async function startEmbeddedPostgres(options: EmbeddedPostgresOptions): Promise<EmbeddedPostgres> {
  const { dataDir, clock, log } = options;
  const startedMs = clock.monotonicMs();
  const placement = await placePostgres(dataDir, log);
  await ensureCluster(placement, clock, log);
  const running = await bringUp(placement, options);
  const { pid, adopted } = running.postmaster;
  log.info(
    {
      postgresPid: pid,
      adopted,
      runAs: placement.runAs.kind,
      tookMs: Math.round(clock.monotonicMs() - startedMs),
    },
    adopted ? "took over the running Postgres" : "Postgres is running",
  );
  return new OwnedPostgres(placement, options, running);
}

/** Find or start, wait, claim; again while an old Postgres' end, another start, or recovery after a crash is under way. */
async function bringUp(placement: Placement, options: EmbeddedPostgresOptions): Promise<Running> {
  const { clock, log } = options;
  const deadlineMs = clock.monotonicMs() + TAKE_OVER_WITHIN_MS;
  for (;;) {
    const found = await findPostmaster(placement.cluster);
    const postmaster = found ?? (await spawnPostmaster(placement, await ensureSocketDir(placement)));
    const outcome = await claim(postmaster, placement, options);
    if (!("notYet" in outcome)) return outcome;
    if (clock.monotonicMs() >= deadlineMs) throw new EmbeddedPostgresError("failed", outcome.notYet);
    log.debug({ cluster: placement.cluster, reason: outcome.notYet }, "Postgres is not ours yet");
    await clock.sleep(AGAIN_AFTER_MS);
  }
}

/** Ours, or why not yet, in the words to end with if it stays so. */
async function claim(
  postmaster: Postmaster,
  placement: Placement,
  { dataDir, clock }: EmbeddedPostgresOptions,
): Promise<Running | { notYet: string }> {
  const { cluster, logPath } = placement;
  let owner: DirectConnection | undefined;
  try {
    const socketDir = await untilReady(postmaster, placement, clock, READY_WITHIN_MS);
    if (socketDir === undefined) {
      const failure = postmaster.adopted ? "again" : await startFailure(postmaster, placement);
      if (failure !== "again") throw failure;
      return {
        notYet: `Another Postgres still has ${cluster}: wait until it has ended, or look for it with ps; more in ${logPath}.`,
      };
    }
    owner = await claimOwnership(socketDir, dataDir, clock);
    await ensureDatabase(owner);
    return { postmaster, socketDir, owner };
  } catch (error) {
    // O1: someone else's now, also when we started it.
    if (error instanceof EmbeddedPostgresError && error.problem === "in_use") throw error;
    if (!postmaster.adopted) await stopPostmaster(postmaster, clock);
    await owner?.close();
    if (error instanceof EmbeddedPostgresError) throw error;
    const message = `Postgres (process ${postmaster.pid}) runs on ${cluster} but does not answer: ${messageOf(error)}. End it with kill -INT ${postmaster.pid} and start again.`;
    // Its former owner is just stopping it, or it recovers from a crash.
    if (postmaster.adopted && isTendonError(error, "UNAVAILABLE")) return { notYet: message };
    throw new EmbeddedPostgresError("failed", message, { cause: error });
  }
}

class OwnedPostgres implements EmbeddedPostgres {
  readonly url: string;
  readonly lost: Promise<Error>;
  private readonly placement: Placement;
  private readonly options: EmbeddedPostgresOptions;
  private readonly stopLogCheck: () => void;
  private readonly backoff: Backoff;
  private readonly stopRequested = new AbortController();
  private running: Running;
  private reviving: Promise<void> = Promise.resolve();
  private stopping: Promise<void> | undefined;
  private reportLost: (error: Error) => void = () => {};

  constructor(placement: Placement, options: EmbeddedPostgresOptions, running: Running) {
    this.placement = placement;
    this.options = options;
    this.running = running;
    this.backoff = new Backoff(options.clock, REVIVE_BACKOFF);
    this.url = databaseUrl(running.socketDir, DATABASE);
    this.lost = new Promise((resolve) => {
      this.reportLost = resolve;
    });
    this.stopLogCheck = options.clock.every(LOG_CHECK_EVERY_MS, () => {
      boundLog(placement.logPath).catch((error) =>
        options.log.warn({ error: messageOf(error) }, "Postgres' log could not be cut"),
      );
    });
    this.watch(running);
  }

  get pid(): number {
    return this.running.postmaster.pid;
  }

  get adopted(): boolean {
    return this.running.postmaster.adopted;
  }

  stop(): Promise<void> {
    this.stopping ??= this.shutDown();
    return this.stopping;
  }

  /** The owner's connection ends when Postgres does, whole or in part: one thing to watch. */
  private watch(running: Running): void {
    this.backoff.connected();
    void running.owner.ended.then(() => {
      if (!this.stopRequested.signal.aborted) this.reviving = this.revive();
    });
  }

  private async revive(): Promise<void> {
    const { clock, log } = this.options;
    const stop = this.stopRequested.signal;
    let last: unknown;
    for (let attempt = 0; attempt < REVIVE_ATTEMPTS; attempt++) {
      try {
        await clock.sleep(this.backoff.nextDelayMs(), stop);
        log.warn(
          { postgresPid: this.pid },
          "the connection to the embedded Postgres ended; bringing it back",
        );
        this.running = await bringUp(this.placement, this.options);
        log.info({ postgresPid: this.pid }, "Postgres is running again");
        this.watch(this.running);
        return;
      } catch (error) {
        if (stop.aborted) return;
        last = error;
        log.error({ error: messageOf(error) }, "Postgres could not be brought back");
        if (error instanceof EmbeddedPostgresError && error.problem === "in_use") break;
      }
    }
    this.reportLost(last instanceof Error ? last : new Error(messageOf(last)));
  }

  private async shutDown(): Promise<void> {
    const { clock, log } = this.options;
    this.stopRequested.abort();
    this.stopLogCheck();
    await this.reviving;
    const { postmaster, owner, socketDir } = this.running;
    try {
      if (owner.isOpen()) await stopPostmaster(postmaster, clock);
      else await this.stopIfStillOurs(socketDir);
      await owner.close();
      await removeSocketDir(this.placement, socketDir);
    } catch (error) {
      log.warn({ error: messageOf(error) }, "Postgres did not stop cleanly");
    }
  }

  /** O1: only the owner ends it. Our session was cut, so the lock is taken once more; it is refused if there is a new owner. */
  private async stopIfStillOurs(socketDir: string): Promise<void> {
    const { dataDir, clock } = this.options;
    const found = await findPostmaster(this.placement.cluster);
    if (!found) return;
    const owner = await claimOwnership(socketDir, dataDir, clock);
    await stopPostmaster(found, clock);
    await owner.close();
  }
}
