/** Hosts with their ports as settings and environments list them: `host:port`, `*.domain:port`, `address:port`; a port may be `*`. */
import { type Host, hostText, parseHost, type Target } from "./host-name.ts";

export interface HostPattern {
  readonly host: Host;
  /** `*.` before a name: all below it, not the name itself. */
  readonly isBelow: boolean;
  /** Undefined for every port. */
  readonly port: number | undefined;
}

const PATTERN = /^(\*\.)?(\[[^\]]*\]|[^:]*)(?::(\*|[0-9]{1,5}))?$/;

/** `defaultPort` stands where none is said; without one that is no pattern. Undefined for what is none. */
export function parseHostPattern(text: string, defaultPort?: number): HostPattern | undefined {
  const [, below, place = "", said] = PATTERN.exec(text) ?? [];
  const host = parseHost(place);
  const number = said === undefined ? defaultPort : Number(said);
  const port = said === "*" ? undefined : number;
  const isPort = said === "*" || (number !== undefined && number >= 1 && number <= 65_535);
  if (host === undefined || !isPort || (below !== undefined && host.kind === "address")) return undefined;
  return { host, isBelow: below !== undefined, port };
}

export function matchesPattern({ host, port }: Target, pattern: HostPattern): boolean {
  if ((pattern.port ?? port) !== port) return false;
  return pattern.isBelow ? isBelow(host, pattern.host) : isSame(host, pattern.host);
}

function isSame(host: Host, other: Host): boolean {
  return host.kind === other.kind && hostText(host) === hostText(other);
}

function isBelow(host: Host, domain: Host): boolean {
  return host.kind === "name" && domain.kind === "name" && host.name.endsWith(`.${domain.name}`);
}
