import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { UsageSchema } from "../proto/gen/tendon/v1/session_pb.js";
import { listPriceText, usageFields } from "./usage-fields.ts";

const text = (listCostNanoUsd: bigint, unpricedRequests: bigint, modelRequests = 3n) =>
  listPriceText(create(UsageSchema, { listCostNanoUsd, unpricedRequests, modelRequests }));

describe("what a session has used", () => {
  it("is shown by kind of token, with time and list price", () => {
    const usage = create(UsageSchema, { inputTokens: 5n, cacheReadInputTokens: 7n, activeMs: 1_250n });
    const fields = Object.fromEntries(usageFields(usage));
    expect(fields.tokens).toBe("5 in, 0 out, 7 read from a cache, 0 written to one");
    expect(fields.active).toBe("1.3 s");
    expect(fields["list price"]).toBe("$0.0000");
  });

  it("says what has no price instead of counting it as free", () => {
    expect(text(12_345_600_000n, 0n)).toBe("$12.3456");
    expect(text(1_000_000_000n, 1n)).toBe("$1.0000; 1 request has no list price");
    expect(text(0n, 3n)).toBe("3 requests have no list price");
  });
});
