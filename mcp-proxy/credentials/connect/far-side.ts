/** Requests of one connect: each has a bound, and all of them together. */
import type { Clock } from "../../../kit/clock.ts";
import { boundedText } from "../../outbound/bounded-text.ts";
import type { OutboundFetch, OutboundRequest } from "../../outbound/fetch.ts";
import { OutboundRefusal } from "../../outbound/refusal.ts";
import { ConnectFailed, type ConnectStep } from "./failure.ts";

export interface FarSideDeps {
  readonly fetch: OutboundFetch;
  readonly clock: Clock;
}

export interface FarAnswer {
  readonly status: number;
  readonly headers: Headers;
  /** Undefined when it is longer than anything that is waited for here. */
  readonly text: string | undefined;
}

const ANSWER_WITHIN_MS = 10_000;
/** Below the time that the server waits. */
const ALL_WITHIN_MS = 40_000;
/** Documents of well-known authorization servers have less than 10 KiB. */
const MAX_ANSWER_BYTES = 128 * 1024;
const MAX_URL_CHARS = 2_048;

/** Of a length that can be kept, without what a terminal or a log would take for something else. */
export function isUrlText(text: unknown): text is string {
  return (
    typeof text === "string" && text.length <= MAX_URL_CHARS && /^[!-~]+$/.test(text) && URL.canParse(text)
  );
}

export class FarSide {
  private readonly deps: FarSideDeps;
  private readonly endsMs: number;
  /** Plain HTTP leads to plain HTTP only: what begins with TLS stays there. */
  private readonly mayBePlain: boolean;

  constructor(deps: FarSideDeps, serverUrl: string) {
    this.deps = deps;
    this.endsMs = deps.clock.monotonicMs() + ALL_WITHIN_MS;
    this.mayBePlain = serverUrl.startsWith("http:");
  }

  /** A URL that the far side names, if it is one to go to. */
  usableUrl(text: unknown): URL | undefined {
    if (!isUrlText(text)) return undefined;
    const url = new URL(text);
    const isWeb = url.protocol === "https:" || (url.protocol === "http:" && this.mayBePlain);
    const isPlain = url.username === "" && url.password === "" && !text.includes("#");
    return isWeb && isPlain ? url : undefined;
  }

  /** Throws a ConnectFailed when there is no answer. */
  ask(step: ConnectStep, url: URL, request: OutboundRequest): Promise<FarAnswer> {
    return this.within(step, url, async (signal) => {
      const response = await this.deps.fetch(url, { ...request, signal });
      const text = await boundedText(response, MAX_ANSWER_BYTES, signal);
      return { status: response.status, headers: response.headers, text };
    });
  }

  /** As `ask`, for those who read the answer by themselves. */
  async within<T>(step: ConnectStep, { host }: URL, run: (signal: AbortSignal) => Promise<T>): Promise<T> {
    const { clock } = this.deps;
    const limit = new AbortController();
    const leftMs = Math.max(0, Math.min(ANSWER_WITHIN_MS, this.endsMs - clock.monotonicMs()));
    const stop = clock.after(leftMs, () => limit.abort(new Error("timeout")));
    try {
      return await run(limit.signal);
    } catch (error) {
      if (limit.signal.aborted) throw new ConnectFailed(step, "timeout", `${host} did not answer in time`);
      if (error instanceof OutboundRefusal) throw new ConnectFailed(step, error.reason, error.message);
      throw new ConnectFailed(step, "connection_lost", `${host} broke the connection`);
    } finally {
      stop();
    }
  }
}
