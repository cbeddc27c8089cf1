import { describe, expect, it } from "vitest";
import type { ModelFailure } from "./loops/loop.ts";
import { attemptSilenceMs, retryVerdict } from "./retry-policy.ts";

const BOUNDS = { firstMs: 1_000, maxMs: 30_000, totalMs: 150_000 };
const failure = (more: Partial<ModelFailure> = {}): ModelFailure => ({
  type: "model_overloaded_error",
  message: "no",
  maxAttempts: Number.POSITIVE_INFINITY,
  retryAfterMs: undefined,
  began: false,
  ...more,
});

/** Fails until it is given up; how long that took and how often it was tried. */
function persist(attemptMs: (silenceMs: number) => number, modelTimeoutMs = 60_000) {
  let trouble = { attempts: 0, elapsedMs: 0, waitMs: 0 };
  for (;;) {
    const tookMs = attemptMs(attemptSilenceMs(trouble, modelTimeoutMs, BOUNDS));
    const verdict = retryVerdict(failure(), trouble, tookMs, BOUNDS, () => 1);
    const attempts = trouble.attempts + 1;
    if (verdict.kind === "exhausted") return { attempts, elapsedMs: verdict.elapsedMs };
    trouble = { attempts, elapsedMs: verdict.elapsedMs, waitMs: verdict.waitMs };
  }
}

describe("asking a failing model again", () => {
  it("ends within the total bound, whether attempts fail at once or hang", () => {
    for (const took of [() => 5, () => 4_000, (silenceMs: number) => silenceMs]) {
      const { attempts, elapsedMs } = persist(took);
      expect(attempts).toBeGreaterThan(2);
      expect(elapsedMs).toBeLessThanOrEqual(BOUNDS.totalMs);
    }
  });

  it("waits longer each time, up to a bound, and as long as the other side asks", () => {
    const waitAfter = (attempts: number, more: Partial<ModelFailure> = {}) => {
      const verdict = retryVerdict(failure(more), { attempts, elapsedMs: 0, waitMs: 0 }, 0, BOUNDS, () => 1);
      return verdict.kind === "retry" ? verdict.waitMs : undefined;
    };
    expect([0, 1, 2, 9].map((attempts) => waitAfter(attempts))).toEqual([1_000, 2_000, 4_000, 30_000]);
    expect(waitAfter(0, { retryAfterMs: 20_000 })).toBe(20_000);
    expect(waitAfter(0, { retryAfterMs: 200_000 })).toBeUndefined();
  });

  it("ends after the attempts that the failure is worth", () => {
    const once = retryVerdict(
      failure({ maxAttempts: 1 }),
      { attempts: 0, elapsedMs: 0, waitMs: 0 },
      0,
      BOUNDS,
      () => 0,
    );
    expect(once.kind).toBe("exhausted");
  });

  it("does not count the time of an answer that had begun", () => {
    const long = retryVerdict(
      failure({ began: true }),
      { attempts: 0, elapsedMs: 0, waitMs: 0 },
      900_000,
      BOUNDS,
      () => 0,
    );
    expect(long).toMatchObject({ kind: "retry", elapsedMs: 0 });
  });
});
