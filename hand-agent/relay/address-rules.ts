/** Which addresses the relay dials for a hand. What a name leads to is judged by the address, however it came about. */
import { isIPv4 } from "node:net";
import { addressBlocks, METADATA_ADDRESSES, unwrap } from "../../kit/network/address.ts";

export type AddressVerdict =
  | "public"
  /** Only where the environment names this very address. */
  | "private"
  /** Never: this machine, its link, metadata services, what is no single host. */
  | "never";

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

const never = addressBlocks([...NEVER_V4, ...NEVER_V6, ...METADATA_ADDRESSES]);
const privately = addressBlocks([...PRIVATE_V4, ...PRIVATE_V6]);
const global = addressBlocks(GLOBAL_V6);

/** `ownAddresses` are this machine's: what listens there trusts it more than the network, so they count as private. */
export function judgeAddress(address: string, ownAddresses: ReadonlySet<string>): AddressVerdict {
  const plain = unwrap(address);
  if (plain === undefined) return "never";
  const family = isIPv4(plain) ? "ipv4" : "ipv6";
  if (never.check(plain, family)) return "never";
  if (privately.check(plain, family) || ownAddresses.has(plain)) return "private";
  return family === "ipv4" || global.check(plain, family) ? "public" : "never";
}
