import { expect, test } from "vitest";
import { SeededRandom } from "./seeded-random.ts";

test("the same seed makes the same choices, also in forks; another seed makes others", () => {
  const draw = (seed: number) => {
    const random = new SeededRandom(seed);
    const fork = random.fork();
    return Array.from({ length: 20 }, () => [random.between(1, 6), fork.between(1, 6)]);
  };
  expect(draw(7)).toEqual(draw(7));
  expect(draw(7)).not.toEqual(draw(8));
});

test("numbers keep to their bounds and reach both", () => {
  const random = new SeededRandom(1);
  const drawn = new Set(Array.from({ length: 200 }, () => random.between(-1, 1)));
  expect([...drawn].sort()).toEqual([-1, 0, 1]);
});
