/** Calls to the server for one lease: repeated while the failure may pass and the lease lives. The only layer that does so. */
import { Backoff } from "../kit/backoff.ts";
import type { Clock } from "../kit/clock.ts";
import type { CallOptions } from "../kit/rpc/client.ts";
import type { Lease } from "./lease.ts";
import { judgeFailure, MAX_BROKEN } from "./server-failure.ts";

const RETRY = { firstMs: 50, maxMs: 2_000, resetAfterMs: 10_000 };
const DEADLINE_MS = 15_000;

export class ServerCalls {
  private readonly lease: Lease;
  private readonly clock: Clock;
  private readonly headers: () => Readonly<Record<string, string>>;

  /** `headers` are asked for at each call. */
  constructor(lease: Lease, clock: Clock, headers: () => Readonly<Record<string, string>> = () => ({})) {
    this.lease = lease;
    this.clock = clock;
    this.headers = headers;
  }

  /**
   * The answer, or a failure that repeating does not change. Rejects with LeaseEnded when the lease is over, also when the
   * server says so. The call must be one that may be repeated.
   */
  async repeat<T>(call: (options: CallOptions) => Promise<T>, deadlineMs = DEADLINE_MS): Promise<T> {
    const { signal } = this.lease;
    const backoff = new Backoff(this.clock, RETRY);
    let broken = 0;
    for (;;) {
      signal.throwIfAborted();
      try {
        return await call({ signal, deadlineMs, headers: this.headers() });
      } catch (error) {
        signal.throwIfAborted();
        const verdict = judgeFailure(error);
        if (verdict === "over") this.lease.end((error as Error).message);
        signal.throwIfAborted();
        broken = verdict === "broken" ? broken + 1 : 0;
        if (verdict === "final" || broken >= MAX_BROKEN) throw error;
        await this.clock.sleep(backoff.nextDelayMs(), signal);
      }
    }
  }
}
