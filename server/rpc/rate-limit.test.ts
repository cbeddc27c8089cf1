import { expect, test } from "vitest";
import { FakeClock } from "../../test/kit/fake-clock.ts";
import { TokenBuckets } from "./rate-limit.ts";

test("a bucket gives what it holds at once, then what its rate brings, and says how long the next takes", async () => {
  const clock = new FakeClock();
  const buckets = new TokenBuckets({ perMinute: 600, burst: 3 }, clock);
  const takes = (count: number) => Array.from({ length: count }, () => buckets.take("a"));
  expect(takes(4)).toEqual([undefined, undefined, undefined, 100]);
  await clock.advance(40);
  expect(takes(1)).toEqual([60]);
  await clock.advance(60);
  expect(takes(2)).toEqual([undefined, 100]);
  await clock.advance(3_600_000);
  expect(takes(4)).toEqual([undefined, undefined, undefined, 100]);
});

test("who is refused and asks again loses nothing by it", async () => {
  const clock = new FakeClock();
  const buckets = new TokenBuckets({ perMinute: 1, burst: 1 }, clock);
  expect(buckets.take("a")).toBeUndefined();
  for (const wait of [60_000, 59_000, 58_000]) {
    expect(buckets.take("a")).toBe(wait);
    await clock.advance(1_000);
  }
  await clock.advance(57_000);
  expect(buckets.take("a")).toBeUndefined();
});

test("without a number of its own a burst is what ten seconds bring, and one at least", () => {
  const burst = (perMinute: number) => {
    const buckets = new TokenBuckets({ perMinute, burst: 0 }, new FakeClock());
    let count = 0;
    while (buckets.take("a") === undefined) count += 1;
    return count;
  };
  expect([burst(1200), burst(60), burst(1)]).toEqual([200, 10, 1]);
});

test("keys have buckets of their own, of which so many are kept as is fit, those used last", () => {
  const buckets = new TokenBuckets({ perMinute: 1, burst: 1 }, new FakeClock());
  buckets.take("first");
  const [others, again] = [new Set<unknown>(), new Set<unknown>()];
  let most = 0;
  for (let n = 0; n < 50_000; n += 1) {
    others.add(buckets.take(`key ${n}`));
    again.add(buckets.take("first"));
    most = Math.max(most, buckets.size);
  }
  expect([[...others], [...again]]).toEqual([[undefined], [60_000]]);
  expect(most).toBeLessThan(20_000);
  expect(buckets.take("key 41000")).toBe(60_000);
  expect(buckets.take("key 1")).toBeUndefined();
});
