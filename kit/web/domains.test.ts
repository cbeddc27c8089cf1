import { expect, test } from "vitest";
import { liesIn, parseDomain } from "./domains.ts";

test.each([
  ["example.com", { host: "example.com", path: "" }],
  ["Docs.Example.COM/", { host: "docs.example.com", path: "" }],
  ["example.com/docs/a/", { host: "example.com", path: "/docs/a" }],
  ["xn--bcher-kva.example", { host: "xn--bcher-kva.example", path: "" }],
])("%s is a domain", (text, domain) => {
  expect(parseDomain(text, { withPath: true })).toEqual(domain);
});

test.each([
  "",
  `${"a".repeat(300)}.com`,
  "https://example.com",
  "example.com:443",
  "*.example.com",
  "bücher.example",
  "127.0.0.1",
  "2130706433",
  "0x7f.1",
  "[::1]",
  "::1",
  "com",
  "localhost",
  "printer.local",
  "db.internal",
  "a.localdomain",
  "a.invalid",
  "example.com?x",
  "example.com/a#b",
  "user@example.com",
  "example..com",
  "example.com.",
])("%s is none", (text) => {
  expect(parseDomain(text, { withPath: true })).toEqual(expect.any(String));
});

test("a path is for lists of searches alone", () => {
  expect(parseDomain("example.com/docs", { withPath: false })).toBe("must be a host without a path");
});

test.each([
  ["https://example.com/", "example.com", true],
  ["https://a.b.example.com/x", "example.com", true],
  ["https://example.com/", "www.example.com", false],
  ["https://notexample.com/", "example.com", false],
  ["https://example.com.evil.net/", "example.com", false],
  ["https://EXAMPLE.com./", "example.com", true],
  ["https://example.com/docs", "example.com/docs", true],
  ["https://example.com/docs/a", "example.com/docs", true],
  ["https://example.com/docsish", "example.com/docs", false],
])("%s in %s: %s", (url, domain, expected) => {
  const parsed = parseDomain(domain, { withPath: true });
  expect(typeof parsed !== "string" && liesIn(new URL(url), parsed)).toBe(expected);
});
