/** Where the platform's own requests may go: the rules. */
import { describe, expect, test } from "vitest";
import { rulesWith } from "../../test/kit/outbound-rules.ts";
import { DenyList, denyEntry } from "./deny-list.ts";
import { OutboundRefusal } from "./refusal.ts";
import type { Listener } from "./rules.ts";

function reasonOf(run: () => unknown): string {
  try {
    run();
    return "allowed";
  } catch (error) {
    if (error instanceof OutboundRefusal) return error.reason;
    throw error;
  }
}

const https = (host: string, port = 443) => ({ host, port, isSecure: true });
const http = (host: string, port = 80) => ({ host, port, isSecure: false });

describe("addresses", () => {
  test.each([
    ["public", ["8.8.8.8", "2606:4700::1111"], "allowed", "plain_http"],
    ["private", ["10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd12::1"], "allowed", "allowed"],
    ["loopback", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"], "allowed", "allowed"],
    ["of this machine", ["192.0.2.7"], "allowed", "allowed"],
    [
      "link-local",
      [
        "169.254.169.254",
        "169.254.0.1",
        "fe80::1",
        "::ffff:169.254.169.254",
        "::ffff:a9fe:a9fe",
        "64:ff9b::a9fe:a9fe",
      ],
      "address_not_allowed",
      "address_not_allowed",
    ],
    [
      "metadata elsewhere",
      ["100.100.100.200", "168.63.129.16", "fd00:ec2::254", "::ffff:100.100.100.200"],
      "address_not_allowed",
      "address_not_allowed",
    ],
    [
      "no single host",
      ["0.0.0.0", "0.1.2.3", "224.0.0.1", "255.255.255.255", "::", "ff02::1"],
      "address_not_allowed",
      "address_not_allowed",
    ],
    [
      "wrapped",
      ["2002:7f00:1::", "2001::1", "::127.0.0.1", "fe80::1%lo"],
      "address_not_allowed",
      "address_not_allowed",
    ],
  ])("%s", (_, addresses, secure, plain) => {
    for (const address of addresses) {
      expect([address, reasonOf(() => rulesWith().permitted(https(address), [address]))]).toEqual([
        address,
        secure,
      ]);
      expect([address, reasonOf(() => rulesWith().permitted(http(address), [address]))]).toEqual([
        address,
        plain,
      ]);
    }
  });

  test("of a name with several only those that may be dialled are, in their plain form", () => {
    const found = ["169.254.169.254", "::ffff:10.0.0.1", "8.8.8.8"];
    expect(rulesWith().permitted(https("mixed.example.com"), found)).toEqual(["10.0.0.1", "8.8.8.8"]);
    expect(rulesWith().permitted(http("mixed.example.com"), found)).toEqual(["10.0.0.1"]);
  });

  test("of Tendon's own listeners are never reached, by no address of their machine", () => {
    const here: Listener = { addresses: new Set(["127.0.0.1"]), here: true, port: 7400 };
    const there: Listener = { addresses: new Set(["10.9.9.9"]), here: false, port: 7401 };
    const rules = rulesWith({ listeners: [here, there] });
    for (const address of ["127.0.0.1", "127.0.0.2", "::1", "::ffff:7f00:1", "192.0.2.7", "10.1.1.1"]) {
      expect(reasonOf(() => rules.permitted(https(address, 7400), [address]))).toBe("address_not_allowed");
      expect(reasonOf(() => rules.permitted(https(address, 7401), [address]))).toBe("allowed");
    }
    expect(reasonOf(() => rules.permitted(https("10.9.9.9", 7401), ["10.9.9.9"]))).toBe(
      "address_not_allowed",
    );
    expect(reasonOf(() => rules.permitted(https("10.9.9.9", 7400), ["10.9.9.9"]))).toBe("allowed");
  });
});

describe("where a model names the address", () => {
  const rules = rulesWith({ publicOnly: true, deny: ["9.9.9.9"] });

  test.each([
    ["public", ["8.8.8.8", "2606:4700::1111", "::ffff:8.8.8.8"], "allowed"],
    ["private", ["10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "fd12::1"], "address_not_allowed"],
    ["loopback", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"], "address_not_allowed"],
    ["of this machine", ["192.0.2.7", "10.1.1.1"], "address_not_allowed"],
    ["link-local and metadata", ["169.254.169.254", "fe80::1", "100.100.100.200"], "address_not_allowed"],
    ["reserved", ["192.0.0.8", "198.18.0.1", "203.0.113.9", "2001:db8::1"], "address_not_allowed"],
    ["wrapped", ["2002:7f00:1::", "64:ff9b::a00:1", "::127.0.0.1"], "address_not_allowed"],
    ["denied", ["9.9.9.9"], "host_denied"],
  ])("%s: with TLS and without", (_, addresses, expected) => {
    for (const address of addresses)
      for (const destination of [https(address), http(address)])
        expect([address, reasonOf(() => rules.permitted(destination, [address]))]).toEqual([
          address,
          expected,
        ]);
  });

  test("a name that this machine does not know is none of the public internet", () => {
    expect(reasonOf(() => rules.checkName(https("inside.example.com")))).toBe("not_resolved");
  });
});

describe("where private addresses are not allowed", () => {
  const rules = rulesWith({ privateAllowedBy: "TENDON_SOME_SETTING" });

  test.each([
    "10.0.0.1",
    "127.0.0.1",
    "fd12::1",
    "192.0.2.7",
    "198.18.0.1",
    "192.0.0.192",
    "::ffff:198.19.0.1",
  ])("%s is refused, with the setting that allows it", (address) => {
    expect(() => rules.permitted(https(address), [address])).toThrow("TENDON_SOME_SETTING");
  });

  test("addresses of the internet are not", () => {
    expect(rules.permitted(https("8.8.8.8"), ["8.8.8.8"])).toEqual(["8.8.8.8"]);
  });
});

describe("TENDON_PROXY_DENY", () => {
  const list = new DenyList([
    "evil.example.com",
    "*.bad.example.org",
    "10.0.0.0/8",
    "192.168.1.1:8080",
    "[fd00::]/8",
    "host.example.net:22",
  ]);
  test.each([
    ["evil.example.com", "8.8.8.8", 443, true],
    ["x.evil.example.com", "8.8.8.8", 443, false],
    ["a.b.bad.example.org", "8.8.8.8", 443, true],
    ["bad.example.org", "8.8.8.8", 443, false],
    ["fine.example.com", "10.200.0.1", 443, true],
    ["fine.example.com", "192.168.1.1", 8080, true],
    ["fine.example.com", "192.168.1.1", 443, false],
    ["fine.example.com", "fd12::1", 443, true],
    ["host.example.net", "8.8.8.8", 22, true],
    ["host.example.net", "8.8.8.8", 443, false],
  ])("%s at %s, port %d: %s", (name, address, port, denied) => {
    expect(list.denies(name, address, port)).toBe(denied);
  });

  test("takes nothing that it cannot read", () => {
    for (const text of [
      "http://a.example.com",
      "a b",
      "10.0.0.0/33",
      "a.example.com:0",
      "a.example.com:99999",
      "*",
      "2130706433",
    ]) {
      expect(() => denyEntry()(text)).toThrow(/must hold/);
    }
  });

  test("narrows what the rules allow, by name and by address", () => {
    const rules = rulesWith({ deny: ["10.0.0.0/8", "a.example.com"] });
    expect(reasonOf(() => rules.permitted(https("b.example.com"), ["10.0.0.1"]))).toBe("host_denied");
    expect(reasonOf(() => rules.permitted(https("A.example.com."), ["8.8.8.8"]))).toBe("host_denied");
  });
});
