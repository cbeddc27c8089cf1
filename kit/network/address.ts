/** IP addresses as they are, whatever they are wrapped in. */
import { BlockList, isIPv4, isIPv6 } from "node:net";

/** Metadata services that are not on the link-local network. */
export const METADATA_ADDRESSES = ["100.100.100.200", "168.63.129.16", "fd00:ec2::254"];

const MAPPED = addressBlocks(["::ffff:0:0/96"]);
/** On networks without IPv4 all names lead here. */
const NAT64 = addressBlocks(["64:ff9b::/96"]);

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

/** Addresses and networks, "10.0.0.0/8"; throws where one is none. */
export function addressBlocks(entries: readonly string[]): BlockList {
  const list = new BlockList();
  for (const entry of entries) {
    const [address = "", bits] = entry.split("/");
    const family = isIPv4(address) ? "ipv4" : "ipv6";
    if (bits === undefined) list.addAddress(address, family);
    else list.addSubnet(address, Number(bits), family);
  }
  return list;
}
