import { expect, test } from "vitest";
import { TextTail } from "./text-tail.ts";

test.each([1, 7, 4_095, 4_096, 10_000, 70_000])(
  "pieces of %d characters give the end of the whole",
  (size) => {
    const whole = Array.from({ length: 12_000 }, (_, index) => `${index},`).join("");
    const tail = new TextTail(20_000);
    let pushed = 0;
    for (let at = 0; at < whole.length; at += size) {
      tail.push(whole.slice(at, at + size));
      pushed = Math.min(whole.length, at + size);
      expect(tail.isCut).toBe(pushed > 20_000);
      if (at % (size * 500) === 0) expect(tail.end()).toBe(whole.slice(0, pushed).slice(-20_000));
    }
    expect(tail.end()).toBe(whole.slice(-20_000));
  },
);

test("a text that fits is kept whole, and nothing is nothing", () => {
  const tail = new TextTail(5);
  tail.push("");
  expect([tail.end(), tail.isCut]).toEqual(["", false]);
  tail.push("ab");
  tail.push("cde");
  expect([tail.end(), tail.isCut]).toEqual(["abcde", false]);
  tail.push("f");
  expect([tail.end(), tail.isCut]).toEqual(["bcdef", true]);
});

test("a character that is parted at the beginning of the end is left out", () => {
  const tail = new TextTail(3);
  tail.push("a😀bc");
  expect(tail.end()).toBe("bc");
  const whole = new TextTail(4);
  whole.push("a😀bc");
  expect(whole.end()).toBe("😀bc");
});
