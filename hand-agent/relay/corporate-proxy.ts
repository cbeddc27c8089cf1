/** A connection through the proxy of the agent's own network, in the relay's words. */
import type { Socket } from "node:net";
import type { ProxyRoute } from "../../kit/dial/proxy-rules.ts";
import { ConnectProxyError, connectThroughProxy as connect } from "../../kit/network/connect-proxy.ts";
import type { Target } from "../../kit/network/host-name.ts";
import { RelayRefusal } from "./refusal.ts";

/** Takes over `socket`, which is connected to the proxy. Rejects with RelayRefusal or the signal's reason; then it is closed. */
export async function connectThroughProxy(
  socket: Socket,
  route: ProxyRoute,
  target: Target,
  signal: AbortSignal,
): Promise<Socket> {
  try {
    return await connect(socket, route, target, signal);
  } catch (error) {
    if (!(error instanceof ConnectProxyError)) throw error;
    const told = error.message.replace("proxy of the network", "proxy of the hand agent's network");
    throw new RelayRefusal("corporate_proxy", told);
  }
}
