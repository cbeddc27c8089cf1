/**
 * List prices of models, as their provider publishes them: US dollars per million tokens. Data alone; a model that is not
 * here has no price, and what it does is counted as unpriced, never as free.
 *
 * Source: https://platform.claude.com/docs/en/about-claude/pricing and the pages of the single models there. Standard tier
 * of the provider's own API, cache writes for five minutes, no discounts or premiums. To change a price, change the date too:
 * the log of every request names the table that priced it.
 */
export interface TokenPrices {
  readonly input: number;
  readonly output: number;
  readonly cacheWrite: number;
  readonly cacheRead: number;
}

export interface ModelPrice extends TokenPrices {
  /** Instead of the others, for requests whose input, cached or not, has more tokens. */
  readonly longInput?: { readonly aboveTokens: number; readonly prices: TokenPrices };
}

/** When the table was last compared with its source. */
export const PRICES_OF = "2026-10-16";

const opus5: ModelPrice = { input: 5, output: 25, cacheWrite: 6.25, cacheRead: 0.5 };
const sonnet4: ModelPrice = { input: 3, output: 15, cacheWrite: 3.75, cacheRead: 0.3 };

/** By the beginning of the model's id; what may follow is a date. */
export const MODEL_PRICES: Readonly<Record<string, ModelPrice>> = {
  "claude-fable-5-1": { input: 10, output: 50, cacheWrite: 12.5, cacheRead: 0.25 },
  "claude-fable-5": { input: 10, output: 50, cacheWrite: 12.5, cacheRead: 1 },
  "claude-opus-5-5": { input: 4, output: 20, cacheWrite: 5, cacheRead: 0.2 },
  "claude-opus-5": opus5,
  "claude-opus-4-8": opus5,
  "claude-opus-4-7": opus5,
  "claude-opus-4-6": opus5,
  "claude-opus-4-5": opus5,
  "claude-sonnet-5-5": { input: 2, output: 10, cacheWrite: 2.5, cacheRead: 0.1 },
  "claude-sonnet-5": { input: 2, output: 10, cacheWrite: 2.5, cacheRead: 0.2 },
  "claude-sonnet-4-6": sonnet4,
  "claude-sonnet-4-5": sonnet4,
  "claude-haiku-5-5": {
    input: 0.1,
    output: 0.5,
    cacheWrite: 0.125,
    cacheRead: 0.01,
    longInput: {
      aboveTokens: 100_000,
      prices: { input: 0.5, output: 2.5, cacheWrite: 0.625, cacheRead: 0.05 },
    },
  },
  "claude-haiku-4-5": { input: 1, output: 5, cacheWrite: 1.25, cacheRead: 0.1 },
};
