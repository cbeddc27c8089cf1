/**
 * What the agent runs inside a hand's network namespace: itself, for a moment. It listens there and hands the listening
 * sockets over to the agent that started it. A socket stays in the namespace that it was made in, whoever accepts on
 * it: so no process of ours stays in the namespace, and nothing has to be carried between two of them.
 */
import net from "node:net";

/** What it tells the agent, with the socket beside it. */
export type ListenMessage =
  | { readonly listening: string }
  | { readonly failed: string }
  | { readonly done: true };

/** The argument that starts the program for this. */
export const LISTEN_COMMAND = "listen-inside";

/** No IPv6 here, or not on loopback. */
const NO_IPV6 = new Set(["EADDRNOTAVAIL", "EAFNOSUPPORT", "EINVAL"]);

/** Resolves with the exit code, once the agent has what it needs or is gone. */
export async function listenInside(port: number): Promise<number> {
  if (process.send === undefined) return 2; // not started by an agent
  const gone = new Promise<void>((resolve) => process.once("disconnect", resolve));
  try {
    await listenAndHandOver("127.0.0.1", port);
    await listenAndHandOver("::1", port).catch((error: NodeJS.ErrnoException) => {
      if (!NO_IPV6.has(error.code ?? "")) throw error;
    });
    await tell({ done: true });
  } catch (error) {
    await tell({ failed: (error as NodeJS.ErrnoException).code ?? "no socket" });
  }
  await gone;
  return 0;
}

async function listenAndHandOver(host: string, port: number): Promise<void> {
  const server = net.createServer();
  await new Promise<void>((resolve, reject) => {
    server.once("error", reject);
    server.listen({ host, port, backlog: 511 }, resolve);
  });
  await tell({ listening: host }, server);
  server.close();
}

function tell(message: ListenMessage, server?: net.Server): Promise<void> {
  return new Promise((resolve) => {
    // A failure means that the agent is gone, which `disconnect` tells.
    process.send?.(message, server, undefined, () => resolve());
  });
}
