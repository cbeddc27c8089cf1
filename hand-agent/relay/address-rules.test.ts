import { expect, test } from "vitest";
import { unwrap } from "../../kit/network/address.ts";
import { judgeAddress } from "./address-rules.ts";

const none = new Set<string>();

test.each([
  [
    "public",
    [
      "8.8.8.8",
      "1.1.1.1",
      "172.15.0.1",
      "172.32.0.1",
      "192.167.1.1",
      "100.63.0.1",
      "100.128.0.1",
      "2606:4700::1111",
      "2a00::1",
    ],
  ],
  [
    "private",
    [
      "10.0.0.1",
      "172.16.0.1",
      "172.31.255.255",
      "192.168.0.1",
      "100.64.0.1",
      "100.127.0.1",
      "198.18.0.1",
      "fd12::1",
      "fc00::1",
    ],
  ],
  [
    "never",
    [
      "127.0.0.1",
      "127.255.0.1",
      "0.0.0.0",
      "0.1.2.3",
      "169.254.169.254",
      "169.254.170.2",
      "224.0.0.1",
      "255.255.255.255",
      "240.0.0.1",
    ],
  ],
  [
    "never",
    [
      "::",
      "::1",
      "fe80::1",
      "febf::1",
      "fec0::1",
      "ff02::1",
      "fd00:ec2::254",
      "100.100.100.200",
      "168.63.129.16",
      "::7f00:1",
      "100::1",
    ],
  ],
  ["never", ["2002:7f00:1::", "2001::1", "64:ff9b:1::1", "", "x", "fe80::1%lo", "1.2.3", "01.2.3.4"]],
] as const)("%s: %j", (verdict, addresses) => {
  for (const address of addresses) expect([address, judgeAddress(address, none)]).toEqual([address, verdict]);
});

test("an IPv4 address inside of an IPv6 one is judged as what it is", () => {
  for (const [wrapped, plain] of [
    ["::ffff:127.0.0.1", "127.0.0.1"],
    ["::FFFF:7F00:1", "127.0.0.1"],
    ["0:0:0:0:0:ffff:a9fe:a9fe", "169.254.169.254"],
    ["::ffff:10.0.0.1", "10.0.0.1"],
    ["64:ff9b::7f00:1", "127.0.0.1"],
    ["64:ff9b::808:808", "8.8.8.8"],
    ["64:ff9b::1", "0.0.0.1"],
  ] as const) {
    expect([wrapped, unwrap(wrapped)]).toEqual([wrapped, plain]);
    expect(judgeAddress(wrapped, none)).toBe(judgeAddress(plain, none));
  }
});

test("this machine's own addresses are private, whatever they are", () => {
  const own = new Set(["203.0.113.5", "2606:4700::5"]);
  expect(judgeAddress("203.0.113.5", own)).toBe("private");
  expect(judgeAddress("::ffff:203.0.113.5", own)).toBe("private");
  expect(judgeAddress("2606:4700:0::5", own)).toBe("private");
  expect(judgeAddress("203.0.113.6", own)).toBe("public");
});
