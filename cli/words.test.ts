import { timestampFromMs, timestampMs } from "@bufbuild/protobuf/wkt";
import { expect, test } from "vitest";
import { parseTime, timeText } from "./words.ts";

test("times are printed with their zone, and what is printed is taken as it stands", () => {
  const time = timestampFromMs(Date.parse("2026-01-31T09:30:05Z"));
  expect(timeText(time)).toBe("2026-01-31 09:30:05Z");
  expect(parseTime(timeText(time))).toEqual(time);
});

test.each(["2026-01-31T10:30:05+01:00", "2026-01-31T09:30:05.000Z", "2026-01-31 04:30:05-05:00"])(
  "%s says its zone, and is the same time",
  (text) => expect(timestampMs(parseTime(text))).toBe(Date.parse("2026-01-31T09:30:05Z")),
);

test.each([
  "2026-01-31T09:30:05",
  "2026-01-31 09:30",
  "2026-01-31",
  "2026-13-31T09:30:05Z",
  "2026-01-31T09:30:05 CET",
])("%s is refused: whose clock that is nobody can say", (text) =>
  expect(() => parseTime(text)).toThrow("a time with its zone, such as 2026-01-31T09:30:00Z"),
);
