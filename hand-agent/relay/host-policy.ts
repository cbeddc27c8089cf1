/** Which hosts an environment names. Pure: it looks nothing up. */
import { BlockList } from "node:net";
import { type Host, parseHost } from "../../kit/network/host-name.ts";
import { HandError } from "../drivers/driver.ts";

const SHOWN_HOSTS = 20;

export class HostPolicy {
  private readonly names = new Set<string>();
  /** ".example.com" for `*.example.com`. */
  private readonly suffixes = new Set<string>();
  private readonly addresses = new BlockList();
  private readonly entries: readonly string[];

  /** Throws HandError for an entry that is neither a name, `*.` and a name, nor an address. */
  constructor(allowedHosts: readonly string[]) {
    this.entries = allowedHosts;
    for (const entry of allowedHosts) this.add(entry);
  }

  allows(host: Host): boolean {
    if (host.kind === "address") return this.namesAddress(host.address, host.family);
    if (this.names.has(host.name)) return true;
    for (let dot = host.name.indexOf("."); dot >= 0; dot = host.name.indexOf(".", dot + 1)) {
      if (this.suffixes.has(host.name.slice(dot))) return true;
    }
    return false;
  }

  /** Whether the address itself stands in the list: that is what opens a private one, also behind an allowed name. */
  namesAddress(address: string, family: 4 | 6): boolean {
    return this.addresses.check(address, family === 4 ? "ipv4" : "ipv6");
  }

  /** For the program that was refused. */
  describe(): string {
    if (this.entries.length === 0) return "none";
    const more = this.entries.length - SHOWN_HOSTS;
    return this.entries.slice(0, SHOWN_HOSTS).join(", ") + (more > 0 ? ` and ${more} more` : "");
  }

  private add(entry: string): void {
    const wildcard = entry.startsWith("*.");
    const host = parseHost(wildcard ? entry.slice(2) : entry);
    if (host === undefined || (wildcard && host.kind === "address")) {
      throw new HandError(`allowed_hosts: ${JSON.stringify(entry)} is no host name, *.domain or IP address`);
    }
    if (host.kind === "address") this.addresses.addAddress(host.address, host.family === 4 ? "ipv4" : "ipv6");
    else if (wildcard) this.suffixes.add(`.${host.name}`);
    else this.names.add(host.name);
  }
}
