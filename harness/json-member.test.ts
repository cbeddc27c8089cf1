import { expect, test } from "vitest";
import { memberText } from "./json-member.ts";

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
