import { create } from "@bufbuild/protobuf";
import { describe, expect, test } from "vitest";
import { DeploymentSpecSchema } from "../../proto/gen/tendon/v1/deployment_pb.js";
import { dueRun, latenessMs, planAfter, upcomingRuns } from "./planning.ts";

const MINUTE = 60_000;
const spec = (expression: string, timeZone = "UTC") =>
  create(DeploymentSpecSchema, { schedule: { expression, timeZone } });
const iso = (date: Date | undefined) => date?.toISOString();

test("a run is late by 5 s at least, and by 15 % of the interval or 9 minutes at most, the same for every replica", () => {
  for (const [intervalMs, most] of [
    [MINUTE, 9_000],
    [15 * MINUTE, 135_000],
    [60 * MINUTE, 9 * MINUTE],
    [Number.POSITIVE_INFINITY, 9 * MINUTE],
  ] as const) {
    const lateness = Array.from({ length: 300 }, (_, at) =>
      latenessMs(`depl_${at}`, at * MINUTE, intervalMs),
    );
    expect(Math.min(...lateness)).toBeGreaterThanOrEqual(5_000);
    expect(Math.max(...lateness)).toBeLessThanOrEqual(most);
    expect(Math.max(...lateness) - Math.min(...lateness)).toBeGreaterThan((most - 5_000) * 0.9);
    expect(latenessMs("depl_7", 7 * MINUTE, intervalMs)).toBe(lateness[7]);
  }
});

test("upcoming times are exact, at most five, and none without a schedule", () => {
  const now = Date.parse("2026-11-30T08:59:30Z");
  expect(upcomingRuns(spec("0 9 * * *"), now).map(iso)).toEqual([
    "2026-11-30T09:00:00.000Z",
    "2026-12-01T09:00:00.000Z",
    "2026-12-02T09:00:00.000Z",
    "2026-12-03T09:00:00.000Z",
    "2026-12-04T09:00:00.000Z",
  ]);
  expect(upcomingRuns(create(DeploymentSpecSchema), now)).toEqual([]);
  expect(planAfter("depl_1", create(DeploymentSpecSchema), now)).toBeUndefined();
});

describe("a run that is due", () => {
  const hourly = spec("0 * * * *");
  const planned = planAfter("depl_1", hourly, Date.parse("2026-11-30T08:30Z"))!;

  test("stands for its time, and the next is planned", () => {
    expect(iso(planned.scheduledAt)).toBe("2026-11-30T09:00:00.000Z");
    const due = dueRun("depl_1", hourly, planned, planned.firesAt.getTime());
    expect(due.scheduledAt).toEqual(planned.scheduledAt);
    expect(iso(due.next?.scheduledAt)).toBe("2026-11-30T10:00:00.000Z");
    expect(due.next!.firesAt.getTime()).toBeGreaterThan(due.next!.scheduledAt.getTime());
  });

  test("stands for the newest time that has come, when several have gone by", () => {
    const due = dueRun("depl_1", hourly, planned, Date.parse("2026-12-24T18:30Z"));
    expect(iso(due.scheduledAt)).toBe("2026-12-24T18:00:00.000Z");
    expect(iso(due.next?.scheduledAt)).toBe("2026-12-24T19:00:00.000Z");
  });

  test("does not stand for a time whose own delay is not over", () => {
    const due = dueRun("depl_1", hourly, planned, Date.parse("2026-12-24T18:00:01Z"));
    expect(iso(due.scheduledAt)).toBe("2026-12-24T17:00:00.000Z");
    expect(iso(due.next?.scheduledAt)).toBe("2026-12-24T18:00:00.000Z");
  });
});
