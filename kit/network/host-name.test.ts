import { expect, test } from "vitest";
import { parseHost, parseTarget } from "./host-name.ts";

test("a name is taken in one spelling: lower case, without the dot at its end", () => {
  for (const text of ["web.example", "WEB.Example", "web.example."]) {
    expect(parseHost(text)).toEqual({ kind: "name", name: "web.example" });
  }
  expect(parseHost("xn--bcher-kva.example")).toEqual({ kind: "name", name: "xn--bcher-kva.example" });
  expect(parseHost("_dmarc.a_b.example")).toMatchObject({ kind: "name" });
  expect(parseHost("intranet")).toMatchObject({ kind: "name" });
});

test("an address is taken in dotted decimal or in brackets alone", () => {
  expect(parseHost("10.0.0.1")).toEqual({ kind: "address", address: "10.0.0.1", family: 4 });
  expect(parseHost("[2001:DB8::1]")).toEqual({ kind: "address", address: "2001:db8::1", family: 6 });
});

test.each([
  ...[
    "",
    ".",
    "..",
    "a..b",
    ".a",
    "a..",
    "-a.example",
    "a-.example",
    "*.example",
    "a b",
    "a\tb",
    "a\0b",
    "a/b",
    "a\\b",
    "a?b",
    "a#b",
  ],
  ...[
    "a@b",
    "a%2eb",
    "a:b",
    "büro.example",
    "web。example",
    "ｗeb.example",
    "web\u200b.example",
    "K.example".replace("K", "\u212a"),
  ],
  ...[
    "2130706433",
    "0x7f000001",
    "0x7f.1",
    "127.1",
    "0177.0.0.1",
    "127.0.0.1.",
    "1.2.3.4.5",
    "256.1.1.1",
    "a.0x7f",
    "a.1",
    "a.0x",
  ],
  ...[
    "::1",
    "[::1",
    "::1]",
    "[]",
    "[1.2.3.4]",
    "[fe80::1%eth0]",
    "[::1].",
    `${"a".repeat(64)}.example`,
    `${"a.".repeat(127)}ab`,
  ],
])("%j is no host", (text) => {
  expect(parseHost(text)).toBeUndefined();
});

test("a target is a host and a port, and nothing beside them", () => {
  expect(parseTarget("web.example:443")).toEqual({ host: { kind: "name", name: "web.example" }, port: 443 });
  expect(parseTarget("[::1]:1")).toMatchObject({ host: { address: "::1" }, port: 1 });
  expect(parseTarget("web.example", 80)).toMatchObject({ port: 80 });
  for (const text of [
    "web.example",
    "web.example:",
    "web.example:0",
    "web.example:65536",
    "web.example:+80",
    "web.example:80 ",
    "u@web.example:80",
    "a:b:80",
    "[::1]80",
  ]) {
    expect([text, parseTarget(text)]).toEqual([text, undefined]);
  }
});
