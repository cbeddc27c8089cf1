import { describe, expect, it } from "vitest";
import { modelFailure } from "./failures.ts";

const failureOf = (word: string, status?: number, detail = "") => {
  const outcome = modelFailure({ word, status, detail }, false);
  return outcome.kind === "failed" ? outcome.failure : undefined;
};

describe("what the SDK says of its model's failures", () => {
  it("has the types and the patience of any loop", () => {
    const rows = [
      ["server_error", 529, "model_overloaded_error", false],
      ["overloaded", 529, "model_overloaded_error", false],
      ["rate_limit", 429, "model_rate_limited_error", false],
      ["server_error", 500, "model_request_failed_error", false],
      ["server_error", undefined, "model_request_failed_error", false],
      ["unknown", 400, "model_request_failed_error", true],
      ["unknown", 402, "billing_error", true],
      ["authentication_failed", 401, "model_request_failed_error", true],
      ["toString", undefined, "model_request_failed_error", false],
    ] as const;
    for (const [word, status, type, isLasting] of rows) {
      const failure = failureOf(word, status);
      expect([failure?.type, failure?.maxAttempts === 1], `${word} ${status}`).toEqual([type, isLasting]);
    }
  });

  it("tells details only of requests that were refused, within a bound", () => {
    expect(failureOf("unknown", 400, "API Error: 400 bad thing")?.message).toContain("400 bad thing");
    expect(failureOf("unknown", 400, "x".repeat(10_000))?.message.length).toBeLessThan(600);
    expect(failureOf("server_error", 529, "check gateway 10.0.0.1")?.message).not.toContain("10.0.0.1");
    expect(failureOf("server_error", undefined, "check gateway 10.0.0.1")?.message).not.toContain("10.0.0.1");
  });
});
