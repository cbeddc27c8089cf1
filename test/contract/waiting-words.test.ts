import { expect, test } from "vitest";
import { asAwaited } from "../../cli/start/health.ts";
import { missingParts } from "../../server/ports/readiness.ts";

test("a start that waits for its own programs says what for, and asks nobody to start them", () => {
  const missing = missingParts({ harnesses: [], handAgentsOnline: 0 });
  expect(missing.every((one) => one.includes(": start one with `tendon "))).toBe(true);
  expect(missing.map(asAwaited)).toEqual(["no harness is connected yet", "no hand agent is online yet"]);
  expect(asAwaited("the database does not answer")).toBe("the database does not answer");
});
