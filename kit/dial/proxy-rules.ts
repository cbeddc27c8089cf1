/** Which connections go through a corporate proxy. */
import { isIPv4 } from "node:net";

/** As in the variables HTTPS_PROXY and NO_PROXY; libraries read these differently, so they are passed on as settings. */
export interface ProxySettings {
  /** "http://[user:password@]host:port"; empty or undefined for none. */
  httpsProxy?: string | undefined;
  /**
   * Separated by commas: a host name (and all below it), ".domain", "*.domain", an IPv4 network such as 10.0.0.0/8, each
   * optionally with ":port", or "*" for everything.
   */
  noProxy?: string | undefined;
}

export interface ProxyRoute {
  host: string;
  port: number;
  /** "user:password" for the proxy. */
  credentials: string | undefined;
}

/** The proxy for this destination, or undefined to connect directly. Throws on a proxy URL that cannot be used. */
export function proxyFor(host: string, port: number, settings: ProxySettings): ProxyRoute | undefined {
  if (!settings.httpsProxy) return undefined;
  const proxy = parseProxy(settings.httpsProxy);
  if (isLoopback(host) || isExempt(host.toLowerCase(), port, settings.noProxy ?? "")) return undefined;
  return proxy;
}

/** Loopback is never proxied, whatever the settings say. */
export function isLoopback(host: string): boolean {
  const name = host.toLowerCase();
  if (name === "localhost" || name.endsWith(".localhost") || name === "::1" || name === "[::1]") return true;
  return isIPv4(name) && name.startsWith("127.");
}

function parseProxy(text: string): ProxyRoute {
  const url = URL.canParse(text) ? new URL(text) : undefined;
  // The text may hold a password, so the error does not repeat it.
  if (url === undefined || url.hostname === "")
    throw new Error("HTTPS_PROXY must be a URL like http://host:port");
  if (url.protocol !== "http:")
    throw new Error("HTTPS_PROXY must begin with http://; other proxies are not supported");
  const user = decodeURIComponent(url.username);
  const credentials = user === "" ? undefined : `${user}:${decodeURIComponent(url.password)}`;
  return { host: url.hostname, port: url.port === "" ? 80 : Number(url.port), credentials };
}

function isExempt(host: string, port: number, noProxy: string): boolean {
  return noProxy
    .split(/[\s,]+/)
    .filter((entry) => entry !== "")
    .some((entry) => matches(entry.toLowerCase(), host, port));
}

function matches(entry: string, host: string, port: number): boolean {
  if (entry === "*") return true;
  const withPort = /^([^:]+|\[.*\]):(\d+)$/.exec(entry);
  if (withPort !== null && Number(withPort[2]) !== port) return false;
  const pattern = (withPort?.[1] ?? entry).replace(/^\[|\]$/g, "");
  const name = host.replace(/^\[|\]$/g, "");
  if (pattern.includes("/")) return inNetwork(name, pattern);
  const domain = pattern.replace(/^\*?\./, "");
  return name === domain || name.endsWith(`.${domain}`);
}

function inNetwork(host: string, network: string): boolean {
  const [base, bitsText] = network.split("/");
  const bits = Number(bitsText);
  if (!isIPv4(host) || !isIPv4(base ?? "") || !(bits >= 0 && bits <= 32)) return false;
  const shift = 2 ** (32 - bits);
  return Math.floor(toNumber(host) / shift) === Math.floor(toNumber(base!) / shift);
}

function toNumber(ipv4: string): number {
  return ipv4.split(".").reduce((value, part) => value * 256 + Number(part), 0);
}
