/**
 * What of its network a hand agent connects the proxy to. Pure. The machine's own setting decides, and says each host with
 * its port; without it nothing is reached. What a listed name leads to is judged again by its address.
 */
import { isIPv4 } from "node:net";
import type { Target } from "../../kit/network/host-name.ts";
import { type HostPattern, matchesPattern, parseHostPattern } from "../../kit/network/host-pattern.ts";
import { judgeAddress } from "../relay/address-rules.ts";

const LOOPBACK_NAME = "localhost";

export class ReachList {
  private readonly entries: readonly HostPattern[];

  /** Throws an Error for an entry that is not `host:port`, `*.domain:port` or `address:port`; a port may be `*`. */
  constructor(entries: readonly string[]) {
    this.entries = entries.map(parseEntry);
  }

  get isEmpty(): boolean {
    return this.entries.length === 0;
  }

  allows(target: Target): boolean {
    return this.entries.some((entry) => matchesPattern(target, entry));
  }

  /**
   * Those of the target's addresses that may be dialled. Link-local and metadata addresses never; this machine's loopback
   * only where the list names it, by `localhost` or the address: a name of the network that leads there is a trick.
   */
  permitted({ host }: Target, addresses: readonly string[], ownAddresses: ReadonlySet<string>): string[] {
    const namesLoopback = host.kind === "address" ? isLoopback(host.address) : host.name === LOOPBACK_NAME;
    return addresses.filter((address) =>
      isLoopback(address) ? namesLoopback : judgeAddress(address, ownAddresses) !== "never",
    );
  }
}

function parseEntry(text: string): HostPattern {
  const pattern = parseHostPattern(text);
  if (pattern === undefined) throw new Error(`"${text}" is not host:port, *.domain:port or address:port`);
  return pattern;
}

/** Also as an IPv6 address that carries it. */
function isLoopback(address: string): boolean {
  if (isIPv4(address)) return address.startsWith("127.");
  return address === "::1" || /^::ffff:127\./i.test(address);
}
