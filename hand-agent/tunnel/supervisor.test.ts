import { expect, test } from "vitest";
import { createLogger } from "../../kit/log.ts";
import { FakeClock } from "../../test/kit/fake-clock.ts";
import type { ConnectionOutcome } from "./outcome.ts";
import { Supervisor, type SupervisorOptions } from "./supervisor.ts";

interface Plan {
  /** How long the connection stands; undefined if the server never takes the agent in. */
  standsMs?: number;
  outcome: ConnectionOutcome;
}

const broken: ConnectionOutcome = { kind: "broken", detail: "no route" };

/** Runs a supervisor whose attempts go as planned; says when each began. */
function supervise(plan: (attempt: number) => Plan, options: Partial<SupervisorOptions> = {}) {
  const clock = new FakeClock();
  const startMs = clock.monotonicMs();
  const attemptsAtMs: number[] = [];
  const lines: string[] = [];
  const log = createLogger("test", "silent");
  for (const level of ["info", "warn", "error"] as const) {
    log[level] = ((...words: unknown[]) => lines.push(String(words.at(-1)))) as never;
  }
  let open = 0;
  let mostOpen = 0;
  const supervisor = new Supervisor({
    clock,
    log,
    random: () => 1,
    enrollAgain: async () => false,
    newAttempt: async () => {
      const { standsMs, outcome } = plan(attemptsAtMs.length);
      attemptsAtMs.push(clock.monotonicMs() - startMs);
      const stopper = new AbortController();
      return {
        run: async (onStanding) => {
          mostOpen = Math.max(mostOpen, ++open);
          if (standsMs !== undefined) onStanding();
          await clock.sleep(standsMs ?? 0, stopper.signal).catch(() => {});
          open -= 1;
          return stopper.signal.aborted ? { kind: "stopped" } : outcome;
        },
        stop: () => stopper.abort(),
      };
    },
    ...options,
  });
  const ended = supervisor.run();
  return { clock, supervisor, ended, attemptsAtMs, lines, mostOpen: () => mostOpen };
}

const gaps = (times: number[]) => times.slice(1).map((time, i) => Math.round(time - times[i]!));

test("a server that is not there is asked at growing intervals, for ever, at most every 30 s", async () => {
  const run = supervise(() => ({ outcome: broken }));
  await run.clock.advance(3_600_000);
  expect(gaps(run.attemptsAtMs).slice(0, 8)).toEqual([
    500, 1_000, 2_000, 4_000, 8_000, 16_000, 30_000, 30_000,
  ]);
  expect(run.attemptsAtMs.length).toBeLessThan(130);
  run.supervisor.stop();
  expect(await run.ended).toEqual({ kind: "stopped" });
});

test("delays start over only after a connection has stood for 30 s", async () => {
  const run = supervise((attempt) => ({ standsMs: attempt === 6 ? 31_000 : 5_000, outcome: broken }));
  await run.clock.advance(200_000);
  const waits = gaps(run.attemptsAtMs).map((gap, i) => gap - (i === 6 ? 31_000 : 5_000));
  expect(waits.slice(0, 9)).toEqual([500, 1_000, 2_000, 4_000, 8_000, 16_000, 500, 1_000, 2_000]);
  run.supervisor.stop();
  await run.ended;
});

test("a thousand agents that lose their server do not come back at once", async () => {
  const clock = new FakeClock();
  const delays: number[] = [];
  const log = createLogger("test", "silent");
  const supervisors = Array.from({ length: 1_000 }, () => {
    let attempts = 0;
    return new Supervisor({
      clock,
      log,
      enrollAgain: async () => false,
      newAttempt: async () => {
        attempts += 1;
        if (attempts === 2) delays.push(clock.monotonicMs());
        return { run: async () => broken, stop: () => {} };
      },
    });
  });
  const runs = supervisors.map((supervisor) => supervisor.run());
  await clock.advance(600);
  const spread = Math.max(...delays) - Math.min(...delays);
  expect(delays.length).toBe(1_000);
  expect(spread).toBeGreaterThan(200);
  for (const supervisor of supervisors) supervisor.stop();
  await Promise.all(runs);
});

test("there is one connection at a time, and after stop none and no timer", async () => {
  const run = supervise(() => ({ standsMs: 100, outcome: broken }));
  await run.clock.advance(60_000);
  run.supervisor.stop();
  await run.ended;
  expect(run.mostOpen()).toBe(1);
  expect(run.clock.waiting).toBe(0);
});

test("a revoked agent gives up at once", async () => {
  const run = supervise(() => ({ outcome: { kind: "revoked", detail: "revoked by admin" } }));
  await run.clock.advance(1);
  expect(await run.ended).toEqual({ kind: "revoked", detail: "revoked by admin" });
  expect(run.attemptsAtMs.length).toBe(1);
});

test("an incompatible server is named in one clear line and asked again slowly", async () => {
  const run = supervise(() => ({ outcome: { kind: "version_unsupported", detail: "version 1 is too old" } }));
  await run.clock.advance(100);
  expect(run.lines).toEqual([
    "the server does not speak this agent's protocol version; update the older one: version 1 is too old",
  ]);
  await run.clock.advance(59_000);
  expect(run.attemptsAtMs.length).toBe(1);
  await run.clock.advance(2_000);
  expect(run.attemptsAtMs.length).toBe(2);
  run.supervisor.stop();
  await run.ended;
});

test("an unknown identity is enrolled again once, and then asked slowly", async () => {
  let enrolments = 0;
  const outcome: ConnectionOutcome = { kind: "unknown_identity", detail: "no such agent" };
  const run = supervise(() => ({ outcome }), { enrollAgain: async () => ++enrolments === 1 });
  await run.clock.advance(200_000);
  expect(gaps(run.attemptsAtMs).slice(0, 3)).toEqual([500, 60_000, 60_000]);
  run.supervisor.stop();
  await run.ended;
});

test("with once the first end of a connection is the end", async () => {
  const run = supervise(() => ({ outcome: broken }), { once: true });
  await run.clock.advance(1);
  expect(await run.ended).toEqual({ kind: "ended", detail: "no route" });
});

test("a process whose identity another one took over asks again at once, then slowly while it is refused, and says what to do", async () => {
  const outcome: ConnectionOutcome = { kind: "duplicated", detail: "a newer connection took over" };
  const run = supervise((attempt) => ({ ...(attempt === 0 ? { standsMs: 100 } : {}), outcome }));
  await run.clock.advance(200_000);
  expect(gaps(run.attemptsAtMs).slice(0, 4)).toEqual([600, 60_000, 60_000, 60_000]);
  expect(run.lines[0]).toMatch(/^this agent's identity is in use twice: .* data directory: stop one of them/);
  run.supervisor.stop();
  await run.ended;
});
