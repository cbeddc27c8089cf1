import { expect, test } from "vitest";
import { isAllowedHost } from "./allowed-hosts.ts";

test("a host of a variable is itself, or all below a domain but not the domain", () => {
  const hosts = ["api.example", "*.wild.example", "192.0.2.7"];
  for (const host of ["api.example", "a.wild.example", "a.b.wild.example", "192.0.2.7"])
    expect(isAllowedHost(host, hosts)).toBe(true);
  for (const host of ["wild.example", "xwild.example", "sub.api.example", "api.example.evil", "192.0.2.70"])
    expect(isAllowedHost(host, hosts)).toBe(false);
});
