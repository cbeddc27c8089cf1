/** Which addresses the relay dials for a hand. What a name leads to is judged by the address, however it came about. */
import { BlockList, isIPv4, isIPv6 } from "node:net";

export type AddressVerdict =
  | "public"
  /** Only where the environment names this very address. */
  | "private"
  /** Never: this machine, its link, metadata services, what is no single host. */
  | "never";

/** Metadata services that are not on the link-local network. */
const METADATA = ["100.100.100.200", "168.63.129.16", "fd00:ec2::254"];
const NEVER_V4 = ["0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4"];
const PRIVATE_V4 = [
  "10.0.0.0/8",
  "100.64.0.0/10",
  "172.16.0.0/12",
  "192.0.0.0/24",
  "192.88.99.0/24",
  "192.168.0.0/16",
  "198.18.0.0/15",
];
/** Of IPv6 only the global range is public, without what wraps an IPv4 address into one: Teredo and 6to4. */
const GLOBAL_V6 = ["2000::/3"];
const NEVER_V6 = ["2001::/32", "2002::/16"];
const PRIVATE_V6 = ["fc00::/7"];

const never = blockList([...NEVER_V4, ...NEVER_V6, ...METADATA]);
const privately = blockList([...PRIVATE_V4, ...PRIVATE_V6]);
const global = blockList(GLOBAL_V6);

/** `ownAddresses` are this machine's: what listens there trusts it more than the network, so they count as private. */
export function judgeAddress(address: string, ownAddresses: ReadonlySet<string>): AddressVerdict {
  const plain = unwrap(address);
  if (plain === undefined) return "never";
  const family = isIPv4(plain) ? "ipv4" : "ipv6";
  if (never.check(plain, family)) return "never";
  if (privately.check(plain, family) || ownAddresses.has(plain)) return "private";
  return family === "ipv4" || global.check(plain, family) ? "public" : "never";
}

const MAPPED = blockList(["::ffff:0:0/96"]);
/** On networks without IPv4 all names lead here. */
const NAT64 = blockList(["64:ff9b::/96"]);

/** The IPv4 address inside of one that only carries it; undefined for what is no address. */
export function unwrap(address: string): string | undefined {
  if (isIPv4(address)) return address;
  if (!isIPv6(address) || address.includes("%")) return undefined;
  if (!MAPPED.check(address, "ipv6") && !NAT64.check(address, "ipv6")) return canonical(address);
  // "::ffff:7f00:1" and "::ffff:127.0.0.1" both become the first form.
  const [high = "", low = ""] = canonical(address).split(":").slice(-2);
  const bits = (Number.parseInt(high || "0", 16) << 16) | Number.parseInt(low || "0", 16);
  return [24, 16, 8, 0].map((shift) => (bits >>> shift) & 255).join(".");
}

function canonical(address: string): string {
  return new URL(`http://[${address}]/`).hostname.slice(1, -1);
}

function blockList(entries: readonly string[]): BlockList {
  const list = new BlockList();
  for (const entry of entries) {
    const [address = "", bits] = entry.split("/");
    const family = isIPv4(address) ? "ipv4" : "ipv6";
    if (bits === undefined) list.addAddress(address, family);
    else list.addSubnet(address, Number(bits), family);
  }
  return list;
}
