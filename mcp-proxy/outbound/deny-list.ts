/** `TENDON_PROXY_DENY`: what an installation takes away from what the platform's rules allow. */
import { type BlockList, isIP, isIPv4 } from "node:net";
import { addressBlocks } from "../../kit/network/address.ts";
import { parseHost } from "../../kit/network/host-name.ts";

interface Entry {
  readonly matches: (name: string, address: string | undefined) => boolean;
  /** Undefined: all. */
  readonly port: number | undefined;
}

/** Parser of the setting's entries. */
export function denyEntry(): (text: string) => string {
  return (text) => {
    parseEntry(text);
    return text;
  };
}

export class DenyList {
  private readonly entries: readonly Entry[];

  constructor(entries: readonly string[]) {
    this.entries = entries.map(parseEntry);
  }

  /** `name` as the URL names the host, `address` as it is dialled, where that is known: either is enough. */
  denies(name: string, address: string | undefined, port: number): boolean {
    return this.entries.some((entry) => (entry.port ?? port) === port && entry.matches(name, address));
  }
}

const PROBLEM =
  "must hold host names, *.domains, addresses or networks such as 10.0.0.0/8, each with :port or without";

function parseEntry(text: string): Entry {
  const parts = /^(\[[^\]]+\](?:\/\d+)?|[^:]+|[0-9a-fA-F:]+(?:\/\d+)?)(?::(\d{1,5}))?$/.exec(text);
  const host = parts?.[1]?.replace(/^\[|\]/g, "") ?? "";
  const port = parts?.[2] === undefined ? undefined : Number(parts[2]);
  if (port !== undefined && (port < 1 || port > 65_535)) throw new Error(PROBLEM);
  const blocks = networkOf(host);
  if (blocks !== undefined) {
    const has = (address: string) => blocks.check(address, isIPv4(address) ? "ipv4" : "ipv6");
    return { port, matches: (_, address) => address !== undefined && has(address) };
  }
  const domain = host.startsWith("*.") ? host.slice(2) : host;
  const parsed = parseHost(domain);
  if (parsed?.kind !== "name") throw new Error(PROBLEM);
  const isBelow = host.startsWith("*.");
  return { port, matches: (name) => (isBelow ? name.endsWith(`.${parsed.name}`) : name === parsed.name) };
}

function networkOf(text: string): BlockList | undefined {
  const [address = "", bits] = text.split("/");
  if (isIP(address) === 0) return undefined;
  const max = isIPv4(address) ? 32 : 128;
  if (bits !== undefined && !(/^\d{1,3}$/.test(bits) && Number(bits) <= max)) throw new Error(PROBLEM);
  return addressBlocks([text]);
}
