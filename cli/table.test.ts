import { expect, test } from "vitest";
import { formatFields, formatTable, printable } from "./table.ts";

test("columns are aligned, and long cells but the last are cut", () => {
  const lines = formatTable(["ID", "NAME", ""], [["1", "x".repeat(60), "y".repeat(60)]]).split("\n");
  expect(lines).toEqual(["ID  NAME", `1   ${"x".repeat(47)}…  ${"y".repeat(60)}`]);
});

test("a table is no wider than the terminal: the widest cells are cut, ids are not", () => {
  const id = "agent_01234567890123456789";
  const row = [id, "a name that is long", "many words ".repeat(20)];
  const lines = formatTable(["ID", "NAME", "DETAIL"], [row], 70).split("\n");
  expect(lines[1]).toHaveLength(70);
  expect(lines[1]).toMatch(new RegExp(`^${id}  a name that is long  many words .*…$`));
  const withEmpty = formatTable(["ID", "LABELS", "NAME", "DETAIL"], [[id, "", ...row.slice(1)]], 70).split(
    "\n",
  );
  expect(withEmpty[1]).toBe(lines[1]);
  expect(formatTable(["ID", "NAME", "DETAIL"], [row], 10).split("\n")[1]).toBe(`${id}  a name …  many wo…`);
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
