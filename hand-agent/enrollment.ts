/** Joins a server that may not be there yet: asks again, politely, until it answers. */
import { Backoff } from "../kit/backoff.ts";
import type { Clock } from "../kit/clock.ts";
import { messageOf } from "../kit/errors.ts";
import type { Logger } from "../kit/log.ts";
import { StartupError } from "../kit/program.ts";
import type { Identity } from "./identity.ts";

export interface EnrollmentOptions {
  enroll(): Promise<Identity>;
  clock: Clock;
  log: Logger;
  /** Gives up after the first failure. */
  once: boolean;
  signal: AbortSignal;
}

const BACKOFF = { firstMs: 200, maxMs: 15_000, resetAfterMs: 60_000 };

/** Throws StartupError when the server refuses for good, or when it is stopped. */
export async function enrollUntilDone({
  enroll,
  clock,
  log,
  once,
  signal,
}: EnrollmentOptions): Promise<Identity> {
  const backoff = new Backoff(clock, BACKOFF);
  for (;;) {
    signal.throwIfAborted();
    try {
      return await enroll();
    } catch (error) {
      if (error instanceof StartupError) throw error;
      if (once) throw new StartupError(`could not join the server: ${messageOf(error)}`);
      const delayMs = backoff.nextDelayMs();
      log.warn({ againInMs: Math.round(delayMs) }, `could not join the server: ${messageOf(error)}`);
      await clock.sleep(delayMs, signal);
    }
  }
}
