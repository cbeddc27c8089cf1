import { describe, expect, it } from "vitest";
import { listCostOf } from "./list-price.ts";
import { NO_USAGE } from "./loops/loop.ts";
import { MODEL_PRICES, PRICES_OF } from "./model-prices.ts";

const usage = (
  inputTokens: number,
  outputTokens = 0,
  cacheReadInputTokens = 0,
  cacheCreationInputTokens = 0,
) => ({
  inputTokens,
  outputTokens,
  cacheReadInputTokens,
  cacheCreationInputTokens,
});

describe("the list price of a request", () => {
  it("counts each kind of token at its own price, exactly, and names the table's date", () => {
    expect(listCostOf("claude-opus-5", usage(1_000_000))).toEqual({ nanoUsd: 5e9, pricesOf: PRICES_OF });
    expect(listCostOf("claude-opus-5", usage(1, 1, 1, 1))?.nanoUsd).toBe(5_000 + 25_000 + 500 + 6_250);
    expect(listCostOf("claude-opus-5", NO_USAGE)?.nanoUsd).toBe(0);
    expect(PRICES_OF).toMatch(/^20\d\d-\d\d-\d\d$/);
  });

  it("is that of long prompts where the whole prompt is longer, cached or not", () => {
    expect(listCostOf("claude-haiku-5-5", usage(60_000, 0, 40_000))?.nanoUsd).toBe(
      60_000 * 100 + 40_000 * 10,
    );
    expect(listCostOf("claude-haiku-5-5", usage(60_001, 0, 40_000))?.nanoUsd).toBe(
      60_001 * 500 + 40_000 * 50,
    );
  });

  it("knows a snapshot by its model, and no model by half of its name", () => {
    expect(listCostOf("claude-opus-4-5-20251101", usage(1))).toBeDefined();
    for (const model of [
      "claude-opus",
      "claude-opus-5-9",
      "gpt-6",
      "scripted",
      "",
      "constructor",
      "__proto__",
    ])
      expect(listCostOf(model, usage(1))).toBeUndefined();
  });

  it("never makes reading a cache dearer than not having one, nor writing one cheaper", () => {
    for (const { input, cacheRead, cacheWrite } of Object.values(MODEL_PRICES)) {
      expect(cacheRead).toBeLessThan(input);
      expect(cacheWrite).toBeGreaterThan(input);
    }
  });
});
