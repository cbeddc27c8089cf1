import { expect, test } from "vitest";
import { FakeClock } from "../../test/kit/fake-clock.ts";
import { StallWatch } from "./stall-watch.ts";

/** A watch over a call whose CPU time is what the test says. */
function watch(stallMs = 60_000) {
  const clock = new FakeClock();
  const startMs = clock.monotonicMs();
  const state = { cpuMs: 0 as number | undefined, looks: 0, stalledAtMs: undefined as number | undefined };
  const stall = new StallWatch({
    clock,
    stallMs,
    cpuMs: async () => {
      state.looks += 1;
      return state.cpuMs;
    },
  });
  void stall.reached.then(() => {
    state.stalledAtMs = clock.monotonicMs() - startMs;
  });
  return { clock, stall, state };
}

test("a call that writes nothing and does no work is stalled after the bound, at most a quarter late (R2)", async () => {
  const { clock, state } = watch();
  await clock.advance(59_999);
  expect(state.stalledAtMs).toBeUndefined();
  await clock.advance(15_001);
  expect(state.stalledAtMs).toBeGreaterThanOrEqual(60_000);
});

test("a quiet compiler goes on for as long as it uses the processor", async () => {
  const { clock, state } = watch();
  for (let i = 0; i < 2_000; i++) {
    state.cpuMs! += 19_000;
    await clock.advance(20_000);
  }
  expect(state.stalledAtMs).toBeUndefined();
  await clock.advance(120_000);
  expect(state.stalledAtMs).toBeDefined();
});

test("work by fits and starts is work; what idles is none", async () => {
  const busy = watch();
  const idle = watch();
  for (let i = 0; i < 100; i++) {
    busy.state.cpuMs! += 40;
    idle.state.cpuMs! += 1;
    await busy.clock.advance(20_000);
    await idle.clock.advance(20_000);
  }
  expect(busy.state.stalledAtMs).toBeUndefined();
  expect(idle.state.stalledAtMs).toBeLessThan(80_000);
});

test("CPU time that ended processes took along is something that happened", async () => {
  const { clock, state } = watch();
  state.cpuMs = 90_000;
  await clock.advance(10_000);
  for (let i = 0; i < 10; i++) {
    state.cpuMs! -= 5_000;
    await clock.advance(40_000);
  }
  expect(state.stalledAtMs).toBeUndefined();
});

test("output is progress, also while it waits for a slow reader", async () => {
  const { clock, stall, state } = watch();
  for (let i = 0; i < 10; i++) {
    await clock.advance(50_000);
    await stall.during(Promise.resolve());
  }
  let take = () => {};
  const waiting = stall.during(
    new Promise((resolve) => {
      take = resolve;
    }),
  );
  await clock.advance(600_000);
  expect(state.stalledAtMs).toBeUndefined();
  take();
  await waiting;
  await clock.advance(70_000);
  expect(state.stalledAtMs).toBeDefined();
});

test("short calls cost no look at processes, and one that has ended none at all", async () => {
  const { clock, stall, state } = watch();
  await clock.advance(7_000);
  expect(state.looks).toBe(0);
  stall.stop();
  await clock.advance(600_000);
  expect([state.looks, state.stalledAtMs]).toEqual([0, undefined]);
});

test("where nobody knows the CPU time nothing is taken for stalled", async () => {
  const { clock, state } = watch();
  state.cpuMs = undefined;
  await clock.advance(3_600_000);
  expect(state.stalledAtMs).toBeUndefined();
});

test("a machine that slept judges nobody by the time that it missed", async () => {
  const { clock, state } = watch();
  await clock.advance(10_000);
  clock.skip(3_600_000);
  await clock.advance(50_000);
  expect(state.stalledAtMs).toBeUndefined();
  await clock.advance(30_000);
  expect(state.stalledAtMs).toBeDefined();
});
