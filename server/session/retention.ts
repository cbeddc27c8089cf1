/** Erases what its workspace does not keep any longer, and what was left half written. Every replica does it; each takes what no other has. */
import { type Clock, within } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Service } from "../../kit/lifecycle.ts";
import type { Logger } from "../../kit/log.ts";
import type { BlobStore } from "../store/blobs.ts";
import type { RetentionStore } from "../store/retention.ts";

export interface RetentionDeps {
  readonly retention: RetentionStore;
  readonly blobs: Pick<BlobStore, "purge">;
  /** Gives up the session's hands and erases it; nobody appends to it any more. */
  readonly erase: (sessionId: string) => Promise<void>;
  readonly clock: Clock;
  readonly log: Logger;
}

const EVERY_MS = 60_000;
/** A round ends after this long at the latest, but for the session it is at; the next goes on. */
const ROUND_MS = 20_000;
const STOP_MS = 1_000;
const SESSIONS_AT_ONCE = 20;
/** Nobody takes this long between two pieces of one copy or file. */
const UNFINISHED_MS = 3_600_000;

export class Retention implements Service {
  readonly name = "retention";
  private readonly deps: RetentionDeps;
  private stopCalling: (() => void) | undefined;
  private running: Promise<void> | undefined;
  private stopping = false;

  constructor(deps: RetentionDeps) {
    this.deps = deps;
  }

  async start(): Promise<void> {
    this.stopCalling = this.deps.clock.every(EVERY_MS, () => void this.round());
  }

  async stop(): Promise<void> {
    this.stopping = true;
    this.stopCalling?.();
    // A long log may take longer than a server has to stop. What is left of it is erased by the next round of any server.
    const running = this.running ?? Promise.resolve();
    await within(this.deps.clock, STOP_MS, running, () => new Error("retention goes on")).catch(() => {});
  }

  /** Never rejects. Calls while one runs join it. */
  round(): Promise<void> {
    this.running ??= this.run()
      .catch((error) => this.deps.log.warn({ error: messageOf(error) }, "retention was cut short"))
      .finally(() => {
        this.running = undefined;
      });
    return this.running;
  }

  private async run(): Promise<void> {
    const { retention, blobs, clock } = this.deps;
    const untilMs = clock.monotonicMs() + ROUND_MS;
    const goesOn = () => !this.stopping && clock.monotonicMs() < untilMs;
    while (goesOn()) if ((await this.eraseSome(goesOn)) < SESSIONS_AT_ONCE) break;
    while (goesOn() && (await retention.eraseUnfinished(UNFINISHED_MS)));
    while (goesOn() && (await blobs.purge(UNFINISHED_MS)));
  }

  /** How many there were. One that cannot be erased now stays for the next round. */
  private async eraseSome(goesOn: () => boolean): Promise<number> {
    const { retention, erase, log } = this.deps;
    const due = await retention.expire(SESSIONS_AT_ONCE);
    let failed = 0;
    for (const sessionId of due) {
      if (!goesOn()) break;
      await erase(sessionId).catch((error) => {
        failed += 1;
        log.warn({ sessionId, error: messageOf(error) }, "a session could not be erased");
      });
    }
    return failed > 0 ? 0 : due.length;
  }
}
