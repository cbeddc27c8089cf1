import { describe, expect, test } from "vitest";
import { CronTimes } from "./cron-times.ts";

function timesOf(expression: string, timeZone = "UTC"): CronTimes {
  const times = CronTimes.parse(expression, timeZone);
  if (!(times instanceof CronTimes)) throw new Error(times.problem);
  return times;
}

const next = (expression: string, timeZone: string, after: string, count = 1) =>
  timesOf(expression, timeZone)
    .upcoming(Date.parse(after), count)
    .map((ms) => new Date(ms).toISOString().slice(0, 16));

describe("what the clock on the wall says", () => {
  test("a time comes by the zone's clock, in summer and in winter", () => {
    expect(next("0 9 * * 1-5", "Europe/Berlin", "2026-10-23T08:00:00Z", 3)).toEqual([
      "2026-10-26T08:00",
      "2026-10-27T08:00",
      "2026-10-28T08:00",
    ]);
    expect(next("0 9 * * *", "America/New_York", "2026-07-01T13:00:00Z")).toEqual(["2026-07-02T13:00"]);
    expect(next("30 5 * * *", "Asia/Kathmandu", "2026-07-01T00:00:00Z")).toEqual(["2026-07-01T23:45"]);
  });

  test("times that the clock leaves out are left out", () => {
    // In Berlin 02:00 becomes 03:00 on 29 March 2026.
    expect(next("30 2 * * *", "Europe/Berlin", "2026-03-27T12:00:00Z", 2)).toEqual([
      "2026-03-28T01:30",
      "2026-03-30T00:30",
    ]);
    expect(next("*/30 * * * *", "Europe/Berlin", "2026-03-29T00:15:00Z", 3)).toEqual([
      "2026-03-29T00:30",
      "2026-03-29T01:00",
      "2026-03-29T01:30",
    ]);
    // In Cairo midnight is left out.
    expect(next("0 0 * * *", "Africa/Cairo", "2026-04-22T23:00:00Z", 2)).toEqual([
      "2026-04-24T21:00",
      "2026-04-25T21:00",
    ]);
  });

  test("times that the clock shows twice come twice, in their order", () => {
    // In New York 02:00 becomes 01:00 on 1 November 2026.
    expect(next("30 1 * * *", "America/New_York", "2026-10-31T12:00:00Z", 3)).toEqual([
      "2026-11-01T05:30",
      "2026-11-01T06:30",
      "2026-11-02T06:30",
    ]);
    expect(next("*/20 1 * * *", "America/New_York", "2026-11-01T05:10:00Z", 5)).toEqual([
      "2026-11-01T05:20",
      "2026-11-01T05:40",
      "2026-11-01T06:00",
      "2026-11-01T06:20",
      "2026-11-01T06:40",
    ]);
    // In a zone whose clock goes back by half an hour.
    expect(next("45 1 * * *", "Australia/Lord_Howe", "2026-04-04T00:00:00Z", 3)).toEqual([
      "2026-04-04T14:45",
      "2026-04-04T15:15",
      "2026-04-05T15:15",
    ]);
  });

  test("rare days are found, however far away", () => {
    expect(next("0 0 29 2 *", "Europe/Berlin", "2026-03-01T00:00:00Z", 2)).toEqual([
      "2028-02-28T23:00",
      "2032-02-28T23:00",
    ]);
    expect(next("0 12 1 1 *", "Pacific/Auckland", "2026-11-30T00:00:00Z")).toEqual(["2026-12-31T23:00"]);
  });
});

describe("an expression", () => {
  test("may name days of the week by 0 to 7, and either day is enough where both are restricted", () => {
    for (const sunday of ["0", "7"])
      expect(next(`0 0 * * ${sunday}`, "UTC", "2026-11-30T00:00:00Z")).toEqual(["2026-12-06T00:00"]);
    expect(next("0 0 * * 5-7", "UTC", "2026-11-30T00:00:00Z", 3)).toEqual([
      "2026-12-04T00:00",
      "2026-12-05T00:00",
      "2026-12-06T00:00",
    ]);
    expect(next("0 0 13 * 5", "UTC", "2026-12-01T00:00:00Z", 3)).toEqual([
      "2026-12-04T00:00",
      "2026-12-11T00:00",
      "2026-12-13T00:00",
    ]);
    expect(next("10,50 8-9/1 * 1,12 *", "UTC", "2026-12-01T08:20:00Z", 2)).toEqual([
      "2026-12-01T08:50",
      "2026-12-01T09:10",
    ]);
  });

  test.each([
    "",
    "* * * *",
    "0 * * * * *",
    "@daily",
    "0 9 L * *",
    "0 9 15W * *",
    "0 9 * * 1#2",
    "0 9 ? * *",
    "0 9 * * MON",
    "60 * * * *",
    "* 24 * * *",
    "* * 0 * *",
    "* * * 13 *",
    "* * * * 8",
    "5-1 * * * *",
    "*/0 * * * *",
    "0 0 30 2 *",
    "1,,2 * * * *",
    "a b c d e",
  ])("%j is refused", (expression) => {
    expect(CronTimes.parse(expression, "UTC")).toMatchObject({ field: "expression" });
  });

  test.each(["", "Mars/Olympus", "+01:00", "Europe/Berlin\n", "../UTC"])("the zone %j is refused", (zone) => {
    expect(CronTimes.parse("0 9 * * *", zone)).toMatchObject({ field: "time_zone" });
  });
});

test("the last of the times that have gone by is found", () => {
  const at = Date.parse;
  expect(timesOf("0 9 * * *").last(at("2026-01-01T09:00Z"), at("2026-11-30T08:00Z"))).toBe(
    at("2026-11-29T09:00Z"),
  );
  expect(timesOf("* * * * *").last(at("2026-01-01T09:00Z"), at("2026-11-30T08:00:59Z"))).toBe(
    at("2026-11-30T08:00Z"),
  );
  expect(timesOf("0 9 * * *").last(at("2026-01-01T09:00Z"), at("2026-01-02T08:59Z"))).toBe(
    at("2026-01-01T09:00Z"),
  );
});

test("no time is missed or given twice in a year of zones whose clocks change", () => {
  const halfHour = 1_800_000;
  const from = Date.parse("2026-01-01T00:00Z");
  const until = from + 365 * 86_400_000;
  for (const zone of ["Africa/Casablanca", "Australia/Lord_Howe"]) {
    const clock = new Intl.DateTimeFormat("en-US", {
      timeZone: zone,
      hourCycle: "h23",
      hour: "numeric",
      minute: "numeric",
    });
    const shown: number[] = [];
    for (let ms = from + halfHour; ms <= until; ms += halfHour)
      if (/^0?2:30$/.test(clock.format(ms))) shown.push(ms);
    const times = timesOf("30 2 * * *", zone).upcoming(from, shown.length + 1);
    expect([zone, times.slice(0, -1)]).toEqual([zone, shown]);
    expect(times.at(-1)).toBeGreaterThan(until);
  }
});
