/** The server as mounts see it: by whichever connection stands. */
import { HandError } from "../drivers/driver.ts";
import type { Tunnel } from "../tunnel/connection.ts";
import type { MountsServer } from "./mounts.ts";

export function mountsServer(current: () => Tunnel | undefined): MountsServer {
  const connected = (): Tunnel => {
    const tunnel = current();
    if (tunnel === undefined) throw new HandError("the server cannot be reached");
    return tunnel;
  };
  const either = (tunnel: Tunnel, signal: AbortSignal) => AbortSignal.any([signal, tunnel.signal]);
  return {
    async syncMemory(request, signal) {
      const tunnel = connected();
      return tunnel.client.syncMemory(request, { signal: either(tunnel, signal) });
    },
    async *readSessionLog(request, signal) {
      const tunnel = connected();
      yield* tunnel.client.readSessionLog(request, { signal: either(tunnel, signal) });
    },
  };
}
