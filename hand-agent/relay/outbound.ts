/**
 * The agent's way out for hands: a target that the policy allows becomes a connection to an address that was checked.
 * A name is resolved here, once, and what was checked is what is dialled, so a name that changes its mind gains nothing.
 * Behind a corporate proxy that proxy resolves the name, and its rules are what guards the addresses.
 */
import { isIPv4, type Socket } from "node:net";
import type { Clock } from "../../kit/clock.ts";
import { type ProxySettings, proxyFor } from "../../kit/dial/proxy-rules.ts";
import { dialFirst } from "../../kit/network/dial-first.ts";
import { hostText, type Target, targetText } from "../../kit/network/host-name.ts";
import { NameError, type NameResolver } from "../../kit/network/name-resolver.ts";
import { ownAddresses } from "../../kit/network/own-addresses.ts";
import { judgeAddress } from "./address-rules.ts";
import { connectThroughProxy } from "./corporate-proxy.ts";
import type { HostPolicy } from "./host-policy.ts";
import { RelayRefusal } from "./refusal.ts";

export interface OutboundOptions {
  readonly resolver: NameResolver;
  readonly proxy: ProxySettings;
  readonly clock: Clock;
}

const CONNECT_WITHIN_MS = 15_000;

export class Outbound {
  private readonly options: OutboundOptions;

  constructor(options: OutboundOptions) {
    this.options = options;
  }

  /** A connected socket without listeners, paused. Rejects with RelayRefusal, at the latest after 25 seconds. */
  async connect(target: Target, policy: HostPolicy, signal: AbortSignal): Promise<Socket> {
    const { host, port } = target;
    if (!policy.allows(host)) {
      throw new RelayRefusal(
        "host_not_allowed",
        `${hostText(host)} is not among the hosts that this environment may reach (allowed: ${policy.describe()})`,
      );
    }
    const { proxy, clock } = this.options;
    const route = proxyFor(hostText(host), port, proxy);
    if (route !== undefined) {
      if (host.kind === "address") permitted([host.address], policy, targetText(target));
      const reach = (tries: AbortSignal) => dialFirst([route.host], route.port, clock, tries);
      return this.bounded(target, signal, async (tries) =>
        connectThroughProxy(await reach(tries), route, target, tries),
      );
    }
    const found = host.kind === "address" ? [host.address] : await this.resolve(host.name);
    const addresses = permitted(found, policy, targetText(target));
    return this.bounded(target, signal, (tries) => dialFirst(addresses, port, clock, tries));
  }

  private async resolve(name: string): Promise<string[]> {
    try {
      return await this.options.resolver.resolve(name);
    } catch (error) {
      if (error instanceof NameError) throw new RelayRefusal("not_resolved", error.message);
      throw error;
    }
  }

  private async bounded(
    target: Target,
    signal: AbortSignal,
    run: (signal: AbortSignal) => Promise<Socket>,
  ): Promise<Socket> {
    const limit = new AbortController();
    const text = `${targetText(target)} did not answer within ${CONNECT_WITHIN_MS / 1000} seconds`;
    const stop = this.options.clock.after(CONNECT_WITHIN_MS, () =>
      limit.abort(new RelayRefusal("unreachable", text)),
    );
    try {
      return await run(AbortSignal.any([signal, limit.signal]));
    } catch (error) {
      if (error instanceof RelayRefusal) throw error;
      const { code } = error as NodeJS.ErrnoException;
      throw new RelayRefusal(
        "unreachable",
        `${targetText(target)} was not reached: ${code ?? "no connection"}`,
      );
    } finally {
      stop();
    }
  }
}

/** Those of the addresses that may be dialled; throws where there is none. */
function permitted(addresses: readonly string[], policy: HostPolicy, target: string): string[] {
  const own = ownAddresses();
  const allowed = addresses.filter((address) => {
    const verdict = judgeAddress(address, own);
    const family = isIPv4(address) ? 4 : 6;
    return verdict === "public" || (verdict === "private" && policy.namesAddress(address, family));
  });
  if (allowed.length > 0) return allowed;
  throw new RelayRefusal(
    "address_not_allowed",
    `${target} leads to an address inside of a private network or of this machine, which hands may not reach; ` +
      "an environment can allow one by naming the address itself in allowed_hosts (never loopback, link-local or metadata addresses)",
  );
}
