import { expect, test } from "vitest";
import { parseTarget } from "./host-name.ts";
import { matchesPattern, parseHostPattern } from "./host-pattern.ts";

const matches = (target: string, pattern: string) =>
  matchesPattern(parseTarget(target, 443)!, parseHostPattern(pattern, 443)!);

test("a pattern without a port is for the usual one alone, `*` for every one", () => {
  expect(matches("mcp.corp", "mcp.corp")).toBe(true);
  expect(matches("mcp.corp:8443", "mcp.corp")).toBe(false);
  expect(matches("mcp.corp:8443", "mcp.corp:8443")).toBe(true);
  expect(matches("mcp.corp:8443", "MCP.corp.:*")).toBe(true);
  expect(parseHostPattern("mcp.corp")).toBeUndefined();
});

test("`*.` stands for all below a name and not for the name itself", () => {
  expect(matches("a.b.corp", "*.corp")).toBe(true);
  expect(matches("corp", "*.corp")).toBe(false);
  expect(matches("evilcorp", "*.corp")).toBe(false);
  expect(matches("[fd00::1]", "[FD00::1]")).toBe(true);
});

test.each([
  "",
  "*",
  "*:443",
  "*.10.0.0.1",
  "mcp.corp:0",
  "mcp.corp:99999",
  "https://mcp.corp",
  "0x7f.1",
  "a/b",
])("%j is none", (text) => expect(parseHostPattern(text, 443)).toBeUndefined());
