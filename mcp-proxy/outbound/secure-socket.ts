/** TLS over a connection that stands, as HTTP/1.1 wants it. */
import { isIP } from "node:net";
import type { Duplex } from "node:stream";
import { connect as connectTls, type TLSSocket } from "node:tls";

/** Rejects with why the far side is not trusted, or the signal's reason; then the connection is closed. */
export function secureSocket(
  socket: Duplex,
  host: string,
  ca: string[] | undefined,
  signal: AbortSignal,
): Promise<TLSSocket> {
  return new Promise((resolve, reject) => {
    const name = isIP(host) === 0 ? { servername: host } : {};
    const trusted = ca === undefined ? {} : { ca };
    const tls = connectTls({ socket, host, ALPNProtocols: ["http/1.1"], ...name, ...trusted });
    const fail = (error: unknown) => {
      tls.destroy();
      socket.destroy();
      reject(error);
    };
    const onAbort = () => fail(signal.reason);
    signal.addEventListener("abort", onAbort, { once: true });
    if (signal.aborted) onAbort();
    tls.once("error", fail);
    tls.once("secureConnect", () => {
      signal.removeEventListener("abort", onAbort);
      tls.off("error", fail);
      resolve(tls);
    });
  });
}
