import { expect, test } from "vitest";
import { parseTarget } from "../../kit/network/host-name.ts";
import { ReachList } from "./reach-list.ts";

const target = (text: string) => parseTarget(text)!;
const OWN = new Set(["10.0.0.7", "127.0.0.1"]);

test("what is listed is reached, on its port, and nothing else", () => {
  const list = new ReachList(["mcp.corp:443", "*.tools.corp:8443", "10.1.2.3:*", "[fd00::1]:80"]);
  const allowed = ["mcp.corp:443", "MCP.corp.:443", "a.b.tools.corp:8443", "10.1.2.3:9", "[fd00::1]:80"];
  for (const each of allowed) expect(list.allows(target(each)), each).toBe(true);
  const refused = ["mcp.corp:80", "a.mcp.corp:443", "tools.corp:8443", "eviltools.corp:8443", "10.1.2.4:9"];
  for (const each of refused) expect(list.allows(target(each)), each).toBe(false);
  expect(new ReachList([]).allows(target("mcp.corp:443"))).toBe(false);
});

test("private addresses are what it is for; link-local, metadata and tricks with loopback are not", () => {
  const list = new ReachList(["mcp.corp:443"]);
  const given = [
    "10.1.2.3",
    "10.0.0.7",
    "93.184.216.34",
    "169.254.169.254",
    "100.100.100.200",
    "fe80::1",
    "fd00:ec2::254",
    "127.0.0.1",
    "::1",
    "::ffff:127.0.0.1",
    "0.0.0.0",
  ];
  expect(list.permitted(target("mcp.corp:443"), given, OWN)).toEqual([
    "10.1.2.3",
    "10.0.0.7",
    "93.184.216.34",
  ]);
  expect(list.permitted(target("localhost:1"), ["127.0.0.1", "::1"], OWN)).toEqual(["127.0.0.1", "::1"]);
  expect(list.permitted(target("127.0.0.1:1"), ["127.0.0.1"], OWN)).toEqual(["127.0.0.1"]);
  expect(list.permitted(target("169.254.169.254:80"), ["169.254.169.254"], OWN)).toEqual([]);
});

test.each([
  "mcp.corp",
  "mcp.corp:0",
  "mcp.corp:99999",
  "*.10.0.0.1:1",
  "*:443",
  "https://mcp.corp:443",
  "0x7f.1:80",
])("%s is no entry", (entry) => {
  expect(() => new ReachList([entry])).toThrow(/is not host:port/);
});
