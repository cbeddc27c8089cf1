/**
 * Where the platform's own requests may go. MCP servers and token endpoints often live in private networks, so private and
 * loopback addresses are allowed, and plain http only to those. Never: a machine's link (where metadata services are), what is
 * no single host, and Tendon's own listeners, whatever their address is called.
 *
 * What a model names is another matter: `publicOnly` allows addresses of the public internet and no others.
 */
import { isIPv4 } from "node:net";
import { addressBlocks, METADATA_ADDRESSES, unwrap } from "../../kit/network/address.ts";
import { DenyList } from "./deny-list.ts";
import { OutboundRefusal } from "./refusal.ts";

export interface Listener {
  /** As addresses; `here` when it is one of this machine's own, whichever. */
  readonly addresses: ReadonlySet<string>;
  readonly here: boolean;
  readonly port: number;
}

export interface OutboundRulesOptions {
  /** Of `TENDON_PROXY_DENY`. */
  readonly deny: readonly string[];
  /** Of this machine, asked each time. */
  readonly ownAddresses: () => ReadonlySet<string>;
  /** Tendon's own, as they are known by now. */
  readonly ownListeners: () => readonly Listener[];
  /** Refuses all addresses that are not of the internet; the name of the setting that allows them. */
  readonly privateAllowedBy?: string | undefined;
  /** Nothing but the public internet, also without TLS; a name must be known here to lead there. Default: false. */
  readonly publicOnly?: boolean;
}

const NEVER = addressBlocks([
  "0.0.0.0/8",
  "169.254.0.0/16",
  "224.0.0.0/4",
  "240.0.0.0/4",
  "fe80::/10",
  "ff00::/8",
  // What wraps an IPv4 address into one of IPv6, and is not unwrapped: Teredo and 6to4.
  "2001::/32",
  "2002::/16",
  ...METADATA_ADDRESSES,
]);
const LOCAL = addressBlocks([
  "10.0.0.0/8",
  "100.64.0.0/10",
  "127.0.0.0/8",
  "172.16.0.0/12",
  "192.168.0.0/16",
  "::1",
  "fc00::/7",
]);
const GLOBAL_V6 = addressBlocks(["2000::/3"]);
/** For documents, benchmarks and protocols: nobody's, or whoever's network it is. */
const RESERVED = addressBlocks([
  "192.0.0.0/24",
  "192.0.2.0/24",
  "192.88.99.0/24",
  "198.18.0.0/15",
  "198.51.100.0/24",
  "203.0.113.0/24",
  "2001:db8::/32",
  "3fff::/20",
]);

export interface Destination {
  /** Name or address, as the URL has it once it was parsed, without brackets. */
  readonly host: string;
  readonly port: number;
  readonly isSecure: boolean;
}

export class OutboundRules {
  private readonly options: OutboundRulesOptions;
  private readonly deny: DenyList;

  constructor(options: OutboundRulesOptions) {
    this.options = options;
    this.deny = new DenyList(options.deny);
  }

  /** The addresses that may be dialled for this destination, each in its plain form. Throws an OutboundRefusal where none may. */
  permitted(destination: Destination, addresses: readonly string[]): string[] {
    const verdicts = addresses.map((address) => this.judge(destination, address));
    const allowed = verdicts.flatMap((verdict) => (typeof verdict === "string" ? [verdict] : []));
    if (allowed.length > 0) return allowed;
    const refusals = verdicts.filter((verdict) => verdict instanceof OutboundRefusal);
    throw refusals[0] ?? new OutboundRefusal("not_resolved", `${destination.host} has no address`);
  }

  /**
   * For a name that only the proxy of the network can resolve: what can be told without an address. That proxy's own rules
   * are what guards the addresses then.
   */
  checkName(destination: Destination): void {
    this.checkDenied(destination);
    const { host, port, isSecure } = destination;
    const where = `${host}:${port}`;
    if (this.options.publicOnly) {
      throw new OutboundRefusal("not_resolved", `${where} is not known here to be public`);
    }
    if (!isSecure) {
      throw new OutboundRefusal(
        "plain_http",
        `${where} is not known here as a private address, and is reached by https:// alone`,
      );
    }
  }

  /** For a name of which nothing is known. */
  checkDenied({ host, port }: Pick<Destination, "host" | "port">): void {
    if (this.deny.denies(host.toLowerCase().replace(/\.$/, ""), undefined, port))
      throw denied(`${host}:${port}`);
  }

  /** The plain form of an address, or why it may not be dialled. */
  private judge({ host, port, isSecure }: Destination, address: string): string | OutboundRefusal {
    const plain = unwrap(address);
    const where = `${host}:${port}`;
    if (plain === undefined || isNever(plain)) {
      return new OutboundRefusal(
        "address_not_allowed",
        `${where} leads to an address that nothing is ever sent to (link-local, metadata, or no single host)`,
      );
    }
    if (this.isOwn(plain, port)) {
      return new OutboundRefusal("address_not_allowed", `${where} leads to Tendon itself`);
    }
    if (this.deny.denies(host.toLowerCase().replace(/\.$/, ""), plain, port)) {
      return denied(where);
    }
    const isLocal = LOCAL.check(plain, familyOf(plain)) || this.options.ownAddresses().has(plain);
    const isReserved = RESERVED.check(plain, familyOf(plain));
    if (this.options.publicOnly) {
      if (!isLocal && !isReserved) return plain;
      return new OutboundRefusal("address_not_allowed", `${where} is not in the public internet`);
    }
    const { privateAllowedBy } = this.options;
    if (privateAllowedBy !== undefined && (isLocal || isReserved)) {
      return new OutboundRefusal(
        "address_not_allowed",
        `${where} leads to a private address, which this installation does not allow (${privateAllowedBy})`,
      );
    }
    if (isSecure || isLocal) return plain;
    return new OutboundRefusal(
      "plain_http",
      `${where} is no private address, and is reached by https:// alone`,
    );
  }

  /** The port of a listener here is refused on all addresses of this machine: which of them it is bound to changes nothing. */
  private isOwn(address: string, port: number): boolean {
    const samePort = this.options.ownListeners().filter((listener) => listener.port === port);
    if (samePort.length === 0) return false;
    const isHere =
      address === "::1" || address.startsWith("127.") || this.options.ownAddresses().has(address);
    return samePort.some(({ addresses, here }) => addresses.has(address) || (here && isHere));
  }
}

function denied(where: string): OutboundRefusal {
  return new OutboundRefusal("host_denied", `${where} is denied by this installation (TENDON_PROXY_DENY)`);
}

function isNever(plain: string): boolean {
  const family = familyOf(plain);
  if (NEVER.check(plain, family)) return true;
  return family === "ipv6" && !GLOBAL_V6.check(plain, family) && !LOCAL.check(plain, family);
}

/** An address of the internet, in whatever form. */
export function isPublic(address: string): boolean {
  const plain = unwrap(address);
  return plain !== undefined && !isNever(plain) && !LOCAL.check(plain, familyOf(plain));
}

function familyOf(address: string): "ipv4" | "ipv6" {
  return isIPv4(address) ? "ipv4" : "ipv6";
}
