import { describe, expect, it } from "vitest";
import { mirroredParameters, parameterHeaders, requestHeaders } from "./mcp-headers.ts";

const schema = (properties: object) => JSON.stringify({ type: "object", properties });
const encoded = (text: string) =>
  parameterHeaders(schema({ a: { type: "string", "x-mcp-header": "Text" } }), JSON.stringify({ a: text }))[
    "mcp-param-text"
  ];

describe("headers of the wire of 2026-07-28", () => {
  it("hold a value as it is where they can, and encoded where not", () => {
    expect(encoded("us-west1")).toBe("us-west1");
    expect(encoded("us west 1")).toBe("us west 1");
    expect(encoded("")).toBe("");
    expect(encoded("Hello, 世界")).toBe("=?base64?SGVsbG8sIOS4lueVjA==?=");
    expect(encoded(" padded ")).toBe("=?base64?IHBhZGRlZCA=?=");
    expect(encoded("line1\nline2")).toBe("=?base64?bGluZTEKbGluZTI=?=");
    expect(encoded("=?base64?literal?=")).toBe("=?base64?PT9iYXNlNjQ/bGl0ZXJhbD89?=");
  });

  it("name the method, and the tool of a call", () => {
    expect(requestHeaders("tools/list")).toEqual({ "mcp-method": "tools/list" });
    expect(requestHeaders("tools/call", "größe")).toEqual({
      "mcp-method": "tools/call",
      "mcp-name": "=?base64?Z3LDtsOfZQ==?=",
    });
  });

  it("have the parameters that a tool wants there, at any depth, and none that the input lacks", () => {
    const tool = schema({
      n: { type: "integer", "x-mcp-header": "N" },
      yes: { type: "boolean", "x-mcp-header": "Yes" },
      gone: { type: "string", "x-mcp-header": "Gone" },
      nothing: { type: "string", "x-mcp-header": "Nothing" },
      at: { type: "object", properties: { deep: { type: "string", "x-mcp-header": "Deep" } } },
      plain: { type: "string" },
    });
    const input = { n: 7, yes: false, nothing: null, at: { deep: "d" }, plain: "p" };
    expect(parameterHeaders(tool, JSON.stringify(input))).toEqual({
      "mcp-param-n": "7",
      "mcp-param-yes": "false",
      "mcp-param-deep": "d",
    });
  });

  it("are refused with the tool where the protocol forbids them", () => {
    const wants = (type: string, name: unknown) => ({ type, "x-mcp-header": name });
    const isAllowed = (properties: object) =>
      mirroredParameters({ type: "object", properties }) !== undefined;
    expect(isAllowed({ a: wants("string", "A") })).toBe(true);
    expect(isAllowed({ a: wants("number", "A") })).toBe(false);
    expect(isAllowed({ a: wants("string", "") })).toBe(false);
    expect(isAllowed({ a: wants("string", "two words") })).toBe(false);
    expect(isAllowed({ a: wants("string", "line\r\nbreak") })).toBe(false);
    expect(isAllowed({ a: wants("string", "Same"), b: wants("string", "same") })).toBe(false);
    expect(isAllowed({ a: { type: "array", items: wants("string", "A") } })).toBe(false);
    expect(isAllowed({ a: { anyOf: [wants("string", "A")] } })).toBe(false);
    // A property of that name is none.
    expect(isAllowed({ "x-mcp-header": { type: "string" } })).toBe(true);
  });
});
