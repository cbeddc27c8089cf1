import { expect, it } from "vitest";
import { localV4, localV6, ownAddresses } from "./own-addresses.ts";

const TRIE = `Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 172.17.0.0
        /16 link UNICAST
Local:
  +-- 0.0.0.0/0 2 0 2
     +-- 127.0.0.0/8 2 0 2
        |-- 127.0.0.1
           /32 host LOCAL
     +-- 172.17.0.0/16 2 0 2
        +-- 172.17.0.0/30 2 0 2
           |-- 172.17.0.0
              /32 link BROADCAST
           |-- 172.17.0.1
              /32 host LOCAL
        |-- 172.17.255.255
           /32 link BROADCAST
     |-- 203.0.113.9
        /32 link UNICAST
        /32 host LOCAL
`;

it("an address of this machine is what the kernel calls one, on interfaces without a link too", () => {
  expect(localV4(TRIE)).toEqual(["127.0.0.1", "172.17.0.1", "203.0.113.9"]);
  expect(
    localV6(
      "00000000000000000000000000000001 01 80 10 80       lo\nfd000000000000000000000000000a01 04 40 00 80 br0\n",
    ),
  ).toEqual(["::1", "fd00::a01"]);
  expect(ownAddresses()).toContain("127.0.0.1");
});
