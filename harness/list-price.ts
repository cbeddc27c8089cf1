/** What a model request costs by list price (pure). Whole thousand-millionths of a dollar, so that sums are exact. */
import type { ModelUsage } from "./loops/loop.ts";
import { MODEL_PRICES, type ModelPrice, PRICES_OF } from "./model-prices.ts";

export interface ListCost {
  readonly nanoUsd: number;
  /** Date of the table of prices. */
  readonly pricesOf: string;
}

/** Dollars a million tokens are a thousand nano-dollars a token. */
const NANO_PER_TOKEN = 1_000;

/** Undefined when the model has no price. */
export function listCostOf(model: string, usage: ModelUsage): ListCost | undefined {
  const price = priceOf(model);
  if (price === undefined) return undefined;
  const { inputTokens, outputTokens, cacheReadInputTokens, cacheCreationInputTokens } = usage;
  const long = price.longInput;
  const promptTokens = inputTokens + cacheReadInputTokens + cacheCreationInputTokens;
  const prices = long !== undefined && promptTokens > long.aboveTokens ? long.prices : price;
  const nanoUsd =
    (inputTokens * prices.input +
      outputTokens * prices.output +
      cacheReadInputTokens * prices.cacheRead +
      cacheCreationInputTokens * prices.cacheWrite) *
    NANO_PER_TOKEN;
  return { nanoUsd: Math.round(nanoUsd), pricesOf: PRICES_OF };
}

/** An id is the name in the table, or that with the date of a snapshot behind it. */
function priceOf(model: string): ModelPrice | undefined {
  const name = model.replace(/-20\d{6}$/, "");
  return Object.hasOwn(MODEL_PRICES, name) ? MODEL_PRICES[name] : undefined;
}
