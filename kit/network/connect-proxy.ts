/** A connection through the proxy of the network that a program runs in, by CONNECT. */
import type { Socket } from "node:net";
import type { ProxyRoute } from "../dial/proxy-rules.ts";
import { type Target, targetText } from "./host-name.ts";

/** The proxy did not connect. */
export class ConnectProxyError extends Error {
  override readonly name = "ConnectProxyError";
}

const MAX_ANSWER_BYTES = 16 * 1024;

/** Takes over `socket`, which is connected to the proxy. Rejects with a ConnectProxyError or the signal's reason; then it is closed. */
export async function connectThroughProxy(
  socket: Socket,
  route: ProxyRoute,
  target: Target,
  signal: AbortSignal,
): Promise<Socket> {
  const name = targetText(target);
  const lines = [`CONNECT ${name} HTTP/1.1`, `Host: ${name}`];
  if (route.credentials !== undefined) {
    lines.push(`Proxy-Authorization: Basic ${Buffer.from(route.credentials).toString("base64")}`);
  }
  try {
    const answer = readAnswer(socket, signal);
    socket.write(`${lines.join("\r\n")}\r\n\r\n`);
    const status = /^HTTP\/1\.[01] (\d{3})/.exec(await answer)?.[1];
    if (status?.startsWith("2")) return socket;
    throw new ConnectProxyError(
      `the proxy of the network did not connect to ${name}: ${status === undefined ? "no HTTP answer" : `status ${status}`}`,
    );
  } catch (error) {
    socket.on("error", () => {});
    socket.destroy();
    throw error;
  }
}

/** The answer up to its empty line; what comes after it stays in the socket. */
function readAnswer(socket: Socket, signal: AbortSignal): Promise<string> {
  return new Promise((resolve, reject) => {
    let seen = Buffer.alloc(0);
    const settle = (act: () => void) => {
      socket.off("data", onData).off("error", onError).off("end", onEnd).off("close", onEnd);
      signal.removeEventListener("abort", onAbort);
      socket.pause();
      act();
    };
    const fail = (error: unknown) => settle(() => reject(error));
    const onData = (chunk: Buffer) => {
      seen = Buffer.concat([seen, chunk]);
      const end = seen.indexOf("\r\n\r\n");
      if (end < 0 && seen.length <= MAX_ANSWER_BYTES) return;
      if (end < 0) return fail(new ConnectProxyError("the proxy's answer is too long"));
      settle(() => {
        if (seen.length > end + 4) socket.unshift(seen.subarray(end + 4));
        resolve(seen.subarray(0, end).toString("latin1"));
      });
    };
    const onError = (error: Error) => fail(error);
    const onEnd = () => fail(new ConnectProxyError("the proxy closed the connection"));
    const onAbort = () => fail(signal.reason);
    socket.on("data", onData).on("error", onError).on("end", onEnd).on("close", onEnd);
    signal.addEventListener("abort", onAbort, { once: true });
    if (signal.aborted) onAbort();
  });
}
