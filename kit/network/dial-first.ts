/** Opens a connection to whichever of several addresses answers first. */
import net, { type Socket } from "node:net";
import type { Clock } from "../clock.ts";

/** How long one address may take before the next is tried beside it. */
const NEXT_ADDRESS_MS = 400;
const KEEPALIVE_MS = 30_000;

/**
 * Tries the addresses in their order. The socket is open for half-closing, with nothing read and no listeners. Rejects
 * with the first address's error, or the signal's reason.
 */
export function dialFirst(
  addresses: readonly string[],
  port: number,
  clock: Clock,
  signal: AbortSignal,
): Promise<Socket> {
  return new Promise((resolve, reject) => {
    const open = new Set<Socket>();
    let next = 0;
    let firstError: Error | undefined;
    let stopTimer = () => {};
    const end = () => {
      stopTimer();
      signal.removeEventListener("abort", onAbort);
      for (const socket of open) {
        socket.removeAllListeners();
        socket.on("error", () => {});
        socket.destroy();
      }
    };
    const onAbort = () => {
      end();
      reject(signal.reason);
    };
    const tryNext = () => {
      stopTimer();
      const host = addresses[next++];
      if (host === undefined) {
        if (open.size > 0) return; // the last ones may still answer
        end();
        return reject(firstError ?? new Error("there is no address"));
      }
      const socket = net.connect({ host, port, allowHalfOpen: true, noDelay: true });
      open.add(socket);
      socket.once("connect", () => {
        open.delete(socket);
        socket.removeAllListeners();
        socket.setKeepAlive(true, KEEPALIVE_MS);
        end();
        resolve(socket);
      });
      socket.once("error", (error) => {
        open.delete(socket);
        firstError ??= error;
        tryNext();
      });
      stopTimer = clock.after(NEXT_ADDRESS_MS, tryNext);
    };
    if (signal.aborted) return reject(signal.reason);
    signal.addEventListener("abort", onAbort, { once: true });
    tryNext();
  });
}
