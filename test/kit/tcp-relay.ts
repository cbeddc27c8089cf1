/** A connection that can go dead without a word: bytes are passed on until it is frozen, then swallowed on both sides. */
import net, { type AddressInfo, type Socket } from "node:net";

export interface TcpRelay {
  readonly port: number;
  /** Connections that were made so far. */
  readonly connections: number;
  /** From now on nothing passes on the connections that are open; new ones work. */
  freeze(): void;
  /** New connections go to this port, as a balancer sends them; those that are open stay. */
  aim(port: number): void;
  /** Breaks the connections that are open; new ones work. */
  cut(): void;
  close(): Promise<void>;
}

/** `onBytes` is told of all that passes, in both directions. */
export async function startTcpRelay(
  targetPort: number,
  onBytes: (bytes: Buffer) => void = () => {},
): Promise<TcpRelay> {
  const sockets = new Set<Socket>();
  let made = 0;
  let aimedAt = targetPort;
  const server = net.createServer((inner) => {
    made += 1;
    const outer = net.connect(aimedAt, "127.0.0.1");
    for (const [from, to] of [
      [inner, outer],
      [outer, inner],
    ] as const) {
      sockets.add(from);
      from.setNoDelay(true);
      from.on("data", (bytes: Buffer) => {
        onBytes(bytes);
        if (!frozen.has(from)) to.write(bytes);
      });
      from.on("error", () => {});
      from.on("close", () => {
        sockets.delete(from);
        if (!frozen.has(from)) to.destroy();
      });
    }
  });
  const frozen = new WeakSet<Socket>();
  await new Promise<void>((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    port: (server.address() as AddressInfo).port,
    get connections() {
      return made;
    },
    freeze() {
      for (const socket of sockets) frozen.add(socket);
    },
    aim(port) {
      aimedAt = port;
    },
    cut() {
      for (const socket of sockets) socket.destroy();
    },
    async close() {
      const closed = new Promise<void>((resolve) => server.close(() => resolve()));
      for (const socket of sockets) socket.destroy();
      await closed;
    },
  };
}
