/**
 * What of its network a hand agent connects the proxy to. Pure. The machine's own setting decides, and says each host with
 * its port; without it nothing is reached. What a listed name leads to is judged again by its address.
 */
import { isIPv4 } from "node:net";
import { type Host, hostText, parseHost, type Target } from "../../kit/network/host-name.ts";
import { judgeAddress } from "../relay/address-rules.ts";

interface Entry {
  readonly host: Host;
  /** `*.` before a name: all below it. */
  readonly isBelow: boolean;
  /** Undefined for every port. */
  readonly port: number | undefined;
}

const ENTRY = /^(\*\.)?(\[[^\]]*\]|[^:]*):(\*|[0-9]{1,5})$/;
const LOOPBACK_NAME = "localhost";

export class ReachList {
  private readonly entries: readonly Entry[];

  /** Throws an Error for an entry that is not `host:port`, `*.domain:port` or `address:port`; a port may be `*`. */
  constructor(entries: readonly string[]) {
    this.entries = entries.map(parseEntry);
  }

  get isEmpty(): boolean {
    return this.entries.length === 0;
  }

  allows({ host, port }: Target): boolean {
    return this.entries.some(
      (entry) =>
        (entry.port ?? port) === port &&
        (entry.isBelow ? isBelow(host, entry.host) : isSame(host, entry.host)),
    );
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

function parseEntry(text: string): Entry {
  const [, below, place = "", port = ""] = ENTRY.exec(text) ?? [];
  const host = parseHost(place);
  const number = port === "*" ? undefined : Number(port);
  const isPort = number === undefined || (number >= 1 && number <= 65_535);
  if (host === undefined || !isPort || (below !== undefined && host.kind === "address")) {
    throw new Error(`"${text}" is not host:port, *.domain:port or address:port`);
  }
  return { host, isBelow: below !== undefined, port: number };
}

function isSame(host: Host, other: Host): boolean {
  return host.kind === other.kind && hostText(host) === hostText(other);
}

function isBelow(host: Host, domain: Host): boolean {
  return host.kind === "name" && domain.kind === "name" && host.name.endsWith(`.${domain.name}`);
}

/** Also as an IPv6 address that carries it. */
function isLoopback(address: string): boolean {
  if (isIPv4(address)) return address.startsWith("127.");
  return address === "::1" || /^::ffff:127\./i.test(address);
}
