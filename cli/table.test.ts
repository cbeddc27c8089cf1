import { expect, test } from "vitest";
import { formatFields, formatTable, printable } from "./table.ts";

test("columns are aligned, and long cells but the last are cut", () => {
  const lines = formatTable(["ID", "NAME", ""], [["1", "x".repeat(60), "y".repeat(60)]]).split("\n");
  expect(lines).toEqual(["ID  NAME", `1   ${"x".repeat(47)}…  ${"y".repeat(60)}`]);
});

test("line breaks and control characters stay within their cell", () => {
  expect(formatTable(["A", "B"], [["one\ntwo", "\u001b[31mred"]])).toBe("A        B\none two  \uFFFD[31mred");
});

test("fields without a value are left out, and further lines are indented", () => {
  expect(
    formatFields([
      ["id", "1"],
      ["title", ""],
      ["system", "a\nb"],
    ]),
  ).toBe("id      1\nsystem  a\n        b");
});

test("carriage returns become line ends", () => {
  expect(printable("10%\r100%\r\n")).toBe("10%\n100%\n");
});
