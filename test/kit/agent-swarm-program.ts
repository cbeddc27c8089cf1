/**
 * Many hand agents in one process: the product's own, each with its identity, journal and connection, and no drivers.
 * Takes its orders as one JSON line on standard input, says `{"started":N}`, and ends when standard input does.
 */
import { join } from "node:path";
import { createInterface } from "node:readline";
import { HandAgent } from "../../hand-agent/hand-agent.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";

export interface SwarmOrder {
  readonly url: string;
  readonly joinToken: string;
  readonly caFile?: string;
  readonly dataDir: string;
  readonly count: number;
}

/** Agents that join at once. */
const AT_ONCE = 20;

const lines = createInterface({ input: process.stdin });
lines.on("close", () => process.exit(0));
const order = JSON.parse((await lines[Symbol.asyncIterator]().next()).value ?? "") as SwarmOrder;
const log = createLogger("swarm", "error");
const agents = Array.from(
  { length: order.count },
  (_, index) =>
    new HandAgent({
      url: order.url,
      joinToken: order.joinToken,
      caFile: order.caFile,
      dataDir: join(order.dataDir, String(index)),
      name: `swarm-${index}`,
      labels: {},
      capacity: 1,
      proxy: {},
      build: "swarm",
      drivers: () => [],
      clock: systemClock,
      log,
      drainMs: 0,
    }),
);
const todo = [...agents];
const start = async () => {
  for (let agent = todo.pop(); agent; agent = todo.pop()) await agent.start();
};
await Promise.all(Array.from({ length: AT_ONCE }, start));
process.stdout.write(`{"started":${agents.length}}\n`);
