import { setImmediate as turn } from "node:timers/promises";
import { expect, test } from "vitest";
import { throughput } from "./throughput.ts";

test("contenders have the machine in turns, with all workers at once, and the slower one gets less done", async () => {
  const order: string[] = [];
  const workers = new Set<number>();
  let open = "";
  const contender = (name: string, turns: number) => ({
    name,
    async once(worker: number) {
      if (open !== name) order.push(name);
      open = name;
      workers.add(worker);
      for (let n = 0; n < turns; n++) await turn();
    },
  });
  const rates = await throughput([contender("slow", 50), contender("fast", 1)], {
    rounds: 2,
    windowMs: 30,
    workers: 3,
  });
  expect([...workers].sort()).toEqual([0, 1, 2]);
  expect(order).toEqual(
    ["fast", "slow", "fast", "fast", "slow"].filter((name, i, all) => name !== all[i - 1]),
  );
  expect(rates.get("fast")).toBeGreaterThan(rates.get("slow") ?? Number.POSITIVE_INFINITY);
});
