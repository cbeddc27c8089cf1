/** The network of a process hand: the host's, or one of its own in which nothing is but loopback and, if limited, the relay. */
import { type Relays, relayVariables } from "../../relay/relay.ts";
import { HandError, type HandNetwork, type HandSpec } from "../driver.ts";
import type { InitChannel } from "./init-channel.ts";
import { hasPidNamespace, type IsolationMode } from "./isolation.ts";

export type RestrictedNetwork = Exclude<HandNetwork, { mode: "unrestricted" }>;

/** What is less than the host's network; undefined for all of it. */
export function restrictedNetwork(network: HandSpec["network"]): RestrictedNetwork | undefined {
  return network === undefined || network.mode === "unrestricted" ? undefined : network;
}

/**
 * Throws HandError where these hands could get around it: with the host's files in sight they reach whoever listens on
 * a socket there, and without isolation as root they could go back into the host's namespace.
 */
export function checkNetwork(network: RestrictedNetwork | undefined, mode: IsolationMode): void {
  if (network === undefined || hasPidNamespace(mode)) return;
  throw new HandError(
    `the process driver cannot keep hands from the network with the isolation "${mode}"; install bubblewrap on the hand agent's machine, or choose another driver`,
  );
}

export function networkVariables(network: RestrictedNetwork | undefined): Record<string, string> {
  return network?.mode === "limited" ? relayVariables() : {};
}

/** Gives the sandbox its way out; it ends with the sandbox. When that fails, the sandbox has ended too. */
export async function openNetwork(options: {
  readonly handId: string;
  readonly network: RestrictedNetwork | undefined;
  readonly channel: InitChannel;
  readonly relays: Relays | undefined;
  readonly signal: AbortSignal | undefined;
}): Promise<void> {
  const { handId, network, channel, relays, signal } = options;
  if (network?.mode !== "limited") return;
  try {
    if (relays === undefined) throw new HandError("this hand agent limits no networks");
    const namespace = { pid: channel.launcherPid };
    const { allowedHosts, tunnels } = network;
    const relay = await relays.start({ handId, namespace, allowedHosts, tunnels, signal });
    void channel.ended.then(() => relay.close());
  } catch (error) {
    channel.kill();
    await channel.ended;
    throw error;
  }
}
