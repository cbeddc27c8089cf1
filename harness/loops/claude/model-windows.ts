/** How large models' context windows are: what the model API says, else a table. Asked for only once a talk is long. */
import { type Clock, within } from "../../../kit/clock.ts";
import { DEFAULT_WINDOW_TOKENS, knownWindowTokens } from "../../model-limits.ts";
import type { ModelClient } from "./model-client.ts";

/** No model has a smaller window, so shorter requests need no look-up. */
const LONG_TALK_TOKENS = 20_000;
const LOOK_UP_MS = 5_000;
/** After this an answer is asked for anew; one that failed, sooner. */
const KNOWN_FOR_MS = 24 * 60 * 60_000;
const UNKNOWN_FOR_MS = 10 * 60_000;
const MAX_MODELS = 1_000;

interface Known {
  readonly tokens: Promise<number | undefined>;
  untilMs: number;
}

export class ModelWindows {
  private readonly client: Pick<ModelClient, "windowTokens">;
  private readonly clock: Clock;
  private readonly byModel = new Map<string, Known>();

  constructor(client: Pick<ModelClient, "windowTokens">, clock: Clock) {
    this.client = client;
    this.clock = clock;
  }

  /** What the table says; good enough for requests of few tokens. */
  static assumed(model: string): number {
    return knownWindowTokens(model) ?? DEFAULT_WINDOW_TOKENS;
  }

  /** Never rejects; takes 5 s at most, once a day for each model. */
  async of(model: string, requestTokens: number): Promise<number> {
    const assumed = ModelWindows.assumed(model);
    if (requestTokens < LONG_TALK_TOKENS) return assumed;
    return (await this.known(model).tokens) ?? assumed;
  }

  private known(model: string): Known {
    const now = this.clock.monotonicMs();
    const found = this.byModel.get(model);
    if (found !== undefined && now < found.untilMs) return found;
    const known: Known = { tokens: this.lookUp(model, () => known), untilMs: now + KNOWN_FOR_MS };
    this.byModel.delete(model);
    this.byModel.set(model, known);
    if (this.byModel.size > MAX_MODELS) this.byModel.delete(this.byModel.keys().next().value!);
    return known;
  }

  private async lookUp(model: string, entry: () => Known): Promise<number | undefined> {
    const stop = new AbortController();
    try {
      const asked = this.client.windowTokens(model, stop.signal);
      asked.catch(() => {});
      return await within(this.clock, LOOK_UP_MS, asked, () => new Error("the look-up took too long"));
    } catch {
      stop.abort();
      entry().untilMs = this.clock.monotonicMs() + UNKNOWN_FOR_MS;
      return undefined;
    }
  }
}
