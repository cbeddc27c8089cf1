/** Hosts as programs write them, in one spelling. What has more than one reading is not a host. */
import { isIPv4, isIPv6 } from "node:net";

export type Host =
  | { readonly kind: "name"; readonly name: string }
  | { readonly kind: "address"; readonly address: string; readonly family: 4 | 6 };

export interface Target {
  readonly host: Host;
  readonly port: number;
}

const MAX_NAME_CHARS = 253;
const LABEL = /^[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?$/;
/** Resolvers read such names as numbers: 2130706433, 0x7f.1, 127.1. */
const NUMERIC_LABEL = /^([0-9]+|0x[0-9a-f]*)$/;

/**
 * A name in lower case without the dot at its end, or an address in dotted decimal or in brackets. Undefined for
 * everything else: other spellings of addresses, zones, escapes, users, letters beyond ASCII (a name's own ASCII form,
 * xn--…, is what programs send).
 */
export function parseHost(text: string): Host | undefined {
  if (isIPv4(text)) return { kind: "address", address: text, family: 4 };
  if (text.startsWith("[") && text.endsWith("]")) {
    const address = text.slice(1, -1).toLowerCase();
    return isIPv6(address) && !address.includes("%") ? { kind: "address", address, family: 6 } : undefined;
  }
  if (/[^!-~]/.test(text)) return undefined; // before letters change: some beyond ASCII become ASCII in lower case
  const name = text.toLowerCase().replace(/\.$/, "");
  if (name.length > MAX_NAME_CHARS) return undefined;
  const labels = name.split(".");
  if (!labels.every((label) => LABEL.test(label)) || NUMERIC_LABEL.test(labels.at(-1)!)) return undefined;
  return { kind: "name", name };
}

/** "host:port" as in CONNECT and in URLs; undefined where it is not exactly that. */
export function parseTarget(text: string, defaultPort?: number): Target | undefined {
  const parts = /^(\[[^\]]*\]|[^:]*)(?::([0-9]{1,5}))?$/.exec(text);
  const host = parts === null ? undefined : parseHost(parts[1]!);
  const port = parts?.[2] === undefined ? defaultPort : Number(parts[2]);
  if (host === undefined || port === undefined || port < 1 || port > 65_535) return undefined;
  return { host, port };
}

export function hostText(host: Host): string {
  if (host.kind === "name") return host.name;
  return host.family === 6 ? `[${host.address}]` : host.address;
}

export function targetText({ host, port }: Target): string {
  return `${hostText(host)}:${port}`;
}
