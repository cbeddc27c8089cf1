import { expect, test } from "vitest";
import { SilenceWatch } from "./silence.ts";

test("a silence is over its bound at the second look in a row that finds it so", () => {
  const watch = new SilenceWatch(15_000);
  expect([5_000, 10_000, 15_000, 20_000, 25_000].map((silentMs) => watch.isOver(silentMs))).toEqual([
    false,
    false,
    false,
    false,
    true,
  ]);
});

test("whoever was held up reads what waited before it judges", () => {
  const watch = new SilenceWatch(15_000);
  expect([5_000, 60_000, 0, 5_000, 60_000, 4_000].some((silentMs) => watch.isOver(silentMs))).toBe(false);
});
