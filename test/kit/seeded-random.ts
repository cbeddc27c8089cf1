/** Random choices that can be made again: a failed test prints its seed, and `TENDON_TEST_SEED=N npm test -- FILE` repeats it. */
import { inject, onTestFailed } from "vitest";
import "./fault-trials.ts";

export class SeededRandom {
  readonly seed: number;
  private state: number;

  constructor(seed: number) {
    this.seed = seed;
    this.state = seed >>> 0;
  }

  /** From 0 up to 1 (mulberry32). */
  next(): number {
    this.state = (this.state + 0x6d2b79f5) >>> 0;
    let mixed = Math.imul(this.state ^ (this.state >>> 15), this.state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 4_294_967_296;
  }

  /** A whole number from `from` up to and with `to`. */
  between(from: number, to: number): number {
    return from + Math.floor(this.next() * (to - from + 1));
  }

  /** True with this probability. */
  chance(probability: number): boolean {
    return this.next() < probability;
  }

  pick<T>(list: readonly T[]): T {
    return list[this.between(0, list.length - 1)]!;
  }

  /** A source of its own for one of several tasks, so that what it draws does not hang on how they interleave. */
  fork(): SeededRandom {
    return new SeededRandom(this.between(0, 4_294_967_295));
  }
}

/** The seed of the run, or one of this test's own. Call it inside a test: a failure says with which seed to repeat it. */
export function seededRandom(): SeededRandom {
  const given = inject("faultSeed");
  if (given !== "" && !/^\d{1,10}$/.test(given)) throw new Error(`TENDON_TEST_SEED is no number: ${given}`);
  const random = new SeededRandom(
    given === "" ? Math.floor(Math.random() * 4_294_967_296) : Number(given) >>> 0,
  );
  onTestFailed(() => console.log(`repeat with TENDON_TEST_SEED=${random.seed}`));
  return random;
}
