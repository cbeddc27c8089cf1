/** A port that nobody listens on now, for programs that must know their own before they start, or keep it when they start again. */
import net from "node:net";

/**
 * Below the ports that the system gives to whoever asks for any (from 32768 on): until the program listens, and while it is
 * down between two starts, nobody comes upon its port by chance.
 */
const FIRST = 20_000;
/** Files that run side by side take theirs from different ones of these. */
const RANGES = 10;
const PORTS_OF_RANGE = 1_000;

const base = FIRST + (Number(process.env.VITEST_POOL_ID ?? 0) % RANGES) * PORTS_OF_RANGE;
let next = Math.floor(Math.random() * PORTS_OF_RANGE);

export async function freePort(): Promise<number> {
  for (let tried = 0; tried < PORTS_OF_RANGE; tried += 1) {
    const port = base + (next++ % PORTS_OF_RANGE);
    if (await isFree(port)) return port;
  }
  throw new Error(`every port from ${base} to ${base + PORTS_OF_RANGE - 1} is taken`);
}

function isFree(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const server = net.createServer();
    server.once("error", () => resolve(false));
    server.listen(port, "127.0.0.1", () => server.close(() => resolve(true)));
  });
}
