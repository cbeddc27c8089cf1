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
    generation: () => current()?.welcome.generation,
    async listHandFiles(request, signal) {
      const tunnel = connected();
      return (await tunnel.client.listHandFiles(request, { signal: either(tunnel, signal) })).files;
    },
    async *readHandFile(request, signal) {
      const tunnel = connected();
      for await (const { chunk } of tunnel.client.readHandFile(request, { signal: either(tunnel, signal) }))
        yield chunk;
    },
    async offerOutputs(request, signal) {
      const tunnel = connected();
      return tunnel.client.offerOutputs(request, { signal: either(tunnel, signal) });
    },
    async storeOutput(parts, signal) {
      const tunnel = connected();
      const call = tunnel.client.storeOutput({ signal: either(tunnel, signal) });
      try {
        for await (const part of parts) await call.send(part);
        await call.end();
      } catch (error) {
        call.cancel();
        throw error;
      }
    },
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
