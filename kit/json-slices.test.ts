import { expect, test } from "vitest";
import { elementsOf, membersOf, memberText, objectText } from "./json-slices.ts";

test("a member's text is what stands there, byte for byte", () => {
  const text = `{ "a" : 12345678901234567890 ,"input": {"b":[1, {"c":"}\\"]"}],"d":1.0e+2}, "e":"x" }`;
  expect(memberText(text, "a")).toBe("12345678901234567890");
  expect(memberText(text, "input")).toBe(`{"b":[1, {"c":"}\\"]"}],"d":1.0e+2}`);
  expect(memberText(text, "e")).toBe(`"x"`);
});

test("only members of the object itself count, by their names as a parser reads them, and the last of two", () => {
  expect(memberText(`{"a":{"input":1}}`, "input")).toBeUndefined();
  expect(memberText(`{"in\\u0070ut":[]}`, "input")).toBe("[]");
  expect(memberText(`{"input":1,"input":\n{}\n}`, "input")).toBe("{}");
  expect(memberText(`{"b":true,"c":null,"input":[[],"[",{}]}`, "input")).toBe(`[[],"[",{}]`);
  expect(memberText("{}", "input")).toBeUndefined();
  expect(memberText("{ }", "input")).toBeUndefined();
});

test("elements of a list come as they stand", () => {
  expect(elementsOf(` [ {"a":[1,2]} , "x,]" ,1.50,null,[]\n]`)).toEqual([
    `{"a":[1,2]}`,
    `"x,]"`,
    "1.50",
    "null",
    "[]",
  ]);
  expect(elementsOf("[]")).toEqual([]);
  expect(elementsOf("[ ]")).toEqual([]);
});

test("an object can be put together again without one of its members", () => {
  const members = membersOf(`{"type":"t", "a": {"b" :1e2},"c":"\\u0041"}`).filter(
    ({ name }) => name !== "type",
  );
  expect(objectText(members)).toBe(`{"a":{"b" :1e2},"c":"\\u0041"}`);
  expect(objectText([])).toBe("{}");
});
