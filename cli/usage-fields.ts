/** What models were asked for, in words. */
import type { Usage } from "../proto/gen/tendon/v1/session_pb.js";

/** For `formatFields`. */
export function usageFields(usage: Usage | undefined): [name: string, text: string | undefined][] {
  if (usage === undefined) return [["usage", undefined]];
  const { inputTokens, outputTokens, cacheReadInputTokens, cacheCreationInputTokens } = usage;
  const cached = `${cacheReadInputTokens} read from a cache, ${cacheCreationInputTokens} written to one`;
  return [
    ["model requests", String(usage.modelRequests)],
    ["tokens", `${inputTokens} in, ${outputTokens} out, ${cached}`],
    ["active", `${(Number(usage.activeMs) / 1000).toFixed(1)} s`],
    ["list price", listPriceText(usage)],
  ];
}

/** Requests without a price are named, so that nobody takes them for free. */
export function listPriceText({ listCostNanoUsd, unpricedRequests, modelRequests }: Usage): string {
  const unpriced = `${unpricedRequests} ${unpricedRequests === 1n ? "request has" : "requests have"} no list price`;
  if (unpricedRequests > 0n && listCostNanoUsd === 0n && unpricedRequests >= modelRequests) return unpriced;
  const price = `$${(Number(listCostNanoUsd) / 1e9).toFixed(4)}`;
  return unpricedRequests === 0n ? price : `${price}; ${unpriced}`;
}
