/** Where Tendon itself listens, as addresses: the proxy's own port, and the URLs of servers and proxies that it is told. */
import { isIP } from "node:net";
import type { Clock } from "../../kit/clock.ts";
import type { NameResolver } from "../../kit/network/name-resolver.ts";
import { ownAddresses } from "../../kit/network/own-addresses.ts";
import type { Listener } from "./rules.ts";

const RESOLVE_EVERY_MS = 60_000;
const MAX_URLS = 256;

export class OwnListeners {
  private readonly resolver: NameResolver;
  private readonly urls: string[];
  private port: number | undefined;
  private known: readonly Listener[] = [];
  private readonly stopResolving: () => void;

  /** `urls`: those that are known from the start, such as the server's. */
  constructor(resolver: NameResolver, urls: readonly string[], clock: Clock) {
    this.resolver = resolver;
    this.urls = [...urls];
    this.stopResolving = clock.every(RESOLVE_EVERY_MS, () => void this.look());
  }

  /** This program's own. */
  listensAt(port: number): void {
    this.port = port;
  }

  /** What the server tells; what was known stays. Resolves once names are resolved. */
  async add(urls: readonly string[]): Promise<void> {
    for (const url of urls) if (!this.urls.includes(url) && this.urls.length < MAX_URLS) this.urls.push(url);
    await this.look();
  }

  all(): readonly Listener[] {
    if (this.port === undefined) return this.known;
    return [...this.known, { addresses: new Set(), here: true, port: this.port }];
  }

  stop(): void {
    this.stopResolving();
  }

  private async look(): Promise<void> {
    this.known = await Promise.all(this.urls.map((url) => this.listenerOf(url)));
  }

  private async listenerOf(text: string): Promise<Listener> {
    const url = new URL(text);
    const port = Number(url.port) || (url.protocol === "https:" ? 443 : 80);
    const host = url.hostname.replace(/^\[|\]$/g, "");
    const addresses = new Set(isIP(host) ? [host] : await this.resolver.resolve(host).catch(() => []));
    const own = ownAddresses();
    const here =
      host === "localhost" || [...addresses].some((address) => own.has(address) || isAnyAddress(address));
    return { addresses, here, port };
  }
}

function isAnyAddress(address: string): boolean {
  return address === "0.0.0.0" || address === "::" || address.startsWith("127.");
}
