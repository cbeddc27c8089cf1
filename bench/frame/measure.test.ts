import { expect, test } from "vitest";
import { interleave, percentile } from "./measure.ts";

test("a percentile is one of the samples, by the nearest rank", () => {
  const samples = [5, 1, 4, 2, 3];
  expect([0, 0.5, 0.9, 0.99, 1].map((p) => percentile(samples, p))).toEqual([1, 3, 5, 5, 5]);
  expect(() => percentile([], 0.5)).toThrow("no samples");
});

test("contenders take turns, each as often as the others, and warm-ups are not counted", async () => {
  const order: string[] = [];
  const contender = (name: string) => ({ name, once: async () => void order.push(name) });
  const samples = await interleave([contender("a"), contender("b")], { rounds: 2, perRound: 1, warmUp: 1 });
  expect(order).toEqual(["a", "b", "a", "b", "b", "a"]);
  expect([...samples.values()].map(({ ms }) => ms.length)).toEqual([2, 2]);
});

test("samples that a contender takes itself count in place of its time", async () => {
  const samples = await interleave([{ name: "a", once: async () => [3, 4] }], {
    rounds: 2,
    perRound: 1,
    warmUp: 1,
  });
  expect(samples.get("a")?.ms).toEqual([3, 4, 3, 4]);
});
