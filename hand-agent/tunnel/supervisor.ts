/**
 * Keeps one connection to the server, for as long as the agent lives.
 *
 * S1 At most one connection at a time; the next is dialled when nothing of the one before is left.
 * S2 Delays double with jitter, and start over only after a connection has stood for 30 s.
 * S3 What only an operator can mend is said in one line and asked again slowly; only a revoked agent gives up.
 */
import { Backoff } from "../../kit/backoff.ts";
import type { Clock } from "../../kit/clock.ts";
import { messageOf } from "../../kit/errors.ts";
import type { Logger } from "../../kit/log.ts";
import type { ConnectionOutcome } from "./outcome.ts";

/** One attempt: dials, greets, and runs until the connection is over. */
export interface Attempt {
  /** Never rejects. `onStanding` is called once the server has taken the agent in. */
  run(onStanding: () => void): Promise<ConnectionOutcome>;
  /** Ends it; `run` resolves soon after. */
  stop(): void;
}

export interface SupervisorOptions {
  /** Rejects when this attempt cannot even be made. */
  newAttempt(): Promise<Attempt>;
  /** The server does not know this identity. True when there is a new one now. */
  enrollAgain(): Promise<boolean>;
  clock: Clock;
  log: Logger;
  /** Ends with the first connection instead of dialling again. */
  once?: boolean;
  random?: () => number;
}

export type SupervisorEnd =
  | { kind: "stopped" }
  | { kind: "revoked"; detail: string }
  /** Only with `once`. */
  | { kind: "ended"; detail: string };

const BACKOFF = { firstMs: 500, maxMs: 30_000, resetAfterMs: 30_000 };
/** Between attempts that only an operator can make succeed. */
const SLOW_MS = 60_000;

/** For whoever runs the agents. */
export const AGAINST_COPIES =
  "two processes run with copies of one data directory: stop one of them, and let it join with an empty directory of its own";

export class Supervisor {
  private readonly options: SupervisorOptions;
  private readonly random: () => number;
  private readonly stopper = new AbortController();
  private attempt: Attempt | undefined;

  constructor(options: SupervisorOptions) {
    this.options = options;
    this.random = options.random ?? Math.random;
  }

  /** Resolves when the agent was stopped or revoked. Never rejects. */
  async run(): Promise<SupervisorEnd> {
    const { clock } = this.options;
    const backoff = new Backoff(clock, BACKOFF, this.random);
    while (!this.stopper.signal.aborted) {
      let hasStood = false;
      const outcome = await this.attemptOnce(() => {
        hasStood = true;
        backoff.connected();
      });
      if (this.stopper.signal.aborted || outcome.kind === "stopped") break;
      if (outcome.kind === "revoked") return { kind: "revoked", detail: outcome.detail };
      if (this.options.once) return { kind: "ended", detail: outcome.detail };
      const delayMs = await this.delayAfter(outcome, backoff, hasStood);
      this.say(outcome, delayMs);
      await clock.sleep(delayMs, this.stopper.signal).catch(() => {});
    }
    return { kind: "stopped" };
  }

  stop(): void {
    this.stopper.abort();
    this.attempt?.stop();
  }

  private async attemptOnce(onStanding: () => void): Promise<ConnectionOutcome> {
    try {
      this.attempt = await this.options.newAttempt();
      if (this.stopper.signal.aborted) this.attempt.stop();
      return await this.attempt.run(onStanding);
    } catch (error) {
      return { kind: "broken", detail: messageOf(error) };
    } finally {
      this.attempt = undefined;
    }
  }

  private async delayAfter(outcome: ConnectionOutcome, backoff: Backoff, hasStood: boolean): Promise<number> {
    const delayMs = backoff.nextDelayMs();
    const slowMs = () => Math.max(delayMs, SLOW_MS * (0.5 + this.random() / 2));
    switch (outcome.kind) {
      case "unknown_identity":
        return (await this.options.enrollAgain()) ? delayMs : slowMs();
      case "version_unsupported":
        return slowMs();
      case "duplicated":
        // The server says at once whether the other one is still there.
        return hasStood ? delayMs : slowMs();
      default:
        return delayMs;
    }
  }

  private say(outcome: ConnectionOutcome, delayMs: number): void {
    const { log } = this.options;
    const again = { againInMs: Math.round(delayMs) };
    switch (outcome.kind) {
      case "broken":
        log.warn(again, `not connected: ${outcome.detail}`);
        return;
      case "draining":
        log.info(again, "the server is about to stop; connecting again");
        return;
      case "unknown_identity":
        log.error(again, `the server does not accept this agent's identity: ${outcome.detail}`);
        return;
      case "duplicated":
        log.error(again, `this agent's identity is in use twice: ${outcome.detail}; ${AGAINST_COPIES}`);
        return;
      case "version_unsupported":
        log.error(
          again,
          `the server does not speak this agent's protocol version; update the older one: ${outcome.detail}`,
        );
        return;
    }
  }
}
