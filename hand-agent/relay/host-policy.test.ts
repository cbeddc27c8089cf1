import { expect, test } from "vitest";
import { parseHost } from "../../kit/network/host-name.ts";
import { HostPolicy } from "./host-policy.ts";

const allows = (entries: string[], host: string) => new HostPolicy(entries).allows(parseHost(host)!);

test("a name allows itself alone", () => {
  expect(allows(["Web.Example"], "web.example")).toBe(true);
  for (const host of [
    "a.web.example",
    "web.example.evil.example",
    "xweb.example",
    "example",
    "web.example2",
  ]) {
    expect([host, allows(["web.example"], host)]).toEqual([host, false]);
  }
});

test("*.domain allows all below the domain, at any depth, and not the domain", () => {
  for (const host of ["a.wild.example", "b.a.wild.example", "A.WILD.example."]) {
    expect([host, allows(["*.wild.example"], host)]).toEqual([host, true]);
  }
  for (const host of ["wild.example", "xwild.example", "a.wild.example.com", "awild.example"]) {
    expect([host, allows(["*.wild.example"], host)]).toEqual([host, false]);
  }
});

test("an address allows itself, however it is written, and no name does", () => {
  expect(allows(["10.0.0.1"], "10.0.0.1")).toBe(true);
  expect(allows(["10.0.0.1"], "10.0.0.2")).toBe(false);
  expect(allows(["[2001:db8::1]"], "[2001:DB8:0:0::1]")).toBe(true);
  expect(allows(["web.example"], "10.0.0.1")).toBe(false);
  expect(new HostPolicy(["10.0.0.1"]).namesAddress("10.0.0.1", 4)).toBe(true);
  expect(new HostPolicy(["web.example"]).namesAddress("10.0.0.1", 4)).toBe(false);
});

test("an empty list allows nothing", () => {
  expect(allows([], "web.example")).toBe(false);
});

test.each([
  "",
  "*",
  "*.",
  "a.*.example",
  "**.example",
  "http://web.example",
  "web.example:443",
  "*.10.0.0.1",
  "1.2.3",
  "10.0.0.0/8",
])("an entry like %j is refused, not ignored", (entry) => {
  expect(() => new HostPolicy(["web.example", entry])).toThrow(/allowed_hosts: .* is no host name/);
});
