/**
 * Names to addresses, as this machine knows them: its hosts file, then its name servers. Not by `getaddrinfo`: that would
 * hold the few threads on which a program writes its files for as long as somebody asks for slow names.
 */
import { Resolver } from "node:dns/promises";
import { readFile, stat } from "node:fs/promises";
import { isIP } from "node:net";
import { type Clock, within } from "../clock.ts";

/** A name has no addresses, or they cannot be found out. */
export class NameError extends Error {
  override readonly name = "NameError";
}

export interface NameResolverOptions {
  readonly clock: Clock;
  /** "address" or "address:port"; default: the machine's. */
  readonly servers?: readonly string[];
  readonly hostsFile?: string;
}

const ATTEMPT_MS = 3_000;
const TRIES = 2;
const RESOLVE_WITHIN_MS = 10_000;
const MAX_ADDRESSES = 16;
const MAX_HOSTS_BYTES = 4 * 1024 * 1024;
/** The answers that say "there is none". */
const NONE = new Set(["ENODATA", "ENOTFOUND"]);

export class NameResolver {
  private readonly options: NameResolverOptions;
  /** Many connections to one host ask once. */
  private readonly asking = new Map<string, Promise<string[]>>();
  private hosts: { mtimeMs: number; addresses: Map<string, string[]> } | undefined;

  constructor(options: NameResolverOptions) {
    this.options = options;
  }

  /** At least one address, at most 16. Rejects with a NameError within 10 seconds. */
  resolve(name: string): Promise<string[]> {
    const known = this.asking.get(name);
    if (known !== undefined) return known;
    const asked = this.ask(name).finally(() => this.asking.delete(name));
    this.asking.set(name, asked);
    return asked;
  }

  private async ask(name: string): Promise<string[]> {
    const local = (await this.hostsFile()).get(name);
    if (local !== undefined) return local;
    // Made anew each time, so that it follows a machine that changes networks.
    const resolver = new Resolver({ timeout: ATTEMPT_MS, tries: TRIES });
    if (this.options.servers !== undefined) resolver.setServers([...this.options.servers]);
    const failures: string[] = [];
    const ofFamily = (answer: Promise<string[]>) =>
      answer.catch((error: NodeJS.ErrnoException) => {
        if (!NONE.has(error.code ?? "")) failures.push(error.code ?? "failed");
        return [];
      });
    const answers = await within(
      this.options.clock,
      RESOLVE_WITHIN_MS,
      Promise.all([ofFamily(resolver.resolve4(name)), ofFamily(resolver.resolve6(name))]),
      () => new NameError(`${name} could not be resolved: the name servers do not answer`),
    ).finally(() => resolver.cancel());
    const addresses = answers.flat().slice(0, MAX_ADDRESSES);
    if (addresses.length > 0) return addresses;
    const why =
      failures.length > 0 ? `the name servers answered ${failures.join(", ")}` : "there is no such host";
    throw new NameError(`${name} could not be resolved: ${why}`);
  }

  private async hostsFile(): Promise<ReadonlyMap<string, string[]>> {
    const path = this.options.hostsFile ?? "/etc/hosts";
    try {
      const { mtimeMs, size } = await stat(path);
      if (this.hosts?.mtimeMs === mtimeMs) return this.hosts.addresses;
      if (size > MAX_HOSTS_BYTES) return new Map();
      this.hosts = { mtimeMs, addresses: parseHosts(await readFile(path, "utf8")) };
      return this.hosts.addresses;
    } catch {
      return new Map(); // there need not be one
    }
  }
}

function parseHosts(text: string): Map<string, string[]> {
  const addresses = new Map<string, string[]>();
  for (const line of text.split("\n")) {
    const [address = "", ...names] = line.replace(/#.*/, "").trim().split(/\s+/);
    if (isIP(address) === 0) continue;
    for (const name of names.map((each) => each.toLowerCase())) {
      const known = addresses.get(name) ?? [];
      if (known.length < MAX_ADDRESSES) addresses.set(name, [...known, address]);
    }
  }
  return addresses;
}
