import { expect, test } from "vitest";
import { FakeClock } from "../test/kit/fake-clock.ts";
import { createLogger } from "./log.ts";
import { Rounds } from "./rounds.ts";

function roundsOf(clock: FakeClock, round: () => Promise<unknown>): Rounds {
  const log = createLogger("test", "silent");
  return new Rounds({ name: "rounds", everyMs: 1_000, round, failed: "it failed", clock, log });
}

test("a round that lasts is not joined by the next, and stopping waits for it", async () => {
  const clock = new FakeClock();
  let begun = 0;
  let end = () => {};
  const rounds = roundsOf(clock, () => {
    begun += 1;
    return new Promise<void>((resolve) => {
      end = resolve;
    });
  });
  await rounds.start();
  await clock.advance(3_000);
  expect(begun).toBe(1);
  end();
  await clock.advance(1_000);
  expect(begun).toBe(2);
  let isStopped = false;
  const stopped = rounds.stop().then(() => {
    isStopped = true;
  });
  await clock.advance(5_000);
  expect([begun, isStopped]).toEqual([2, false]);
  end();
  await stopped;
});

test("a round that fails is followed by the next", async () => {
  const clock = new FakeClock();
  let begun = 0;
  const rounds = roundsOf(clock, async () => {
    begun += 1;
    throw new Error("away");
  });
  await rounds.start();
  await clock.advance(1_000);
  await clock.advance(1_000);
  await rounds.stop();
  expect(begun).toBe(2);
});
