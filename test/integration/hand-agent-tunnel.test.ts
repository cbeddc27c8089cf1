import { execFileSync } from "node:child_process";
import { readFile, writeFile } from "node:fs/promises";
import net, { type AddressInfo, type Socket } from "node:net";
import { join } from "node:path";
import { setImmediate } from "node:timers/promises";
import { afterEach, beforeEach, expect, test } from "vitest";
import { DRIVERS } from "../../hand-agent/drivers/registry.ts";
import { TOOL_DEFINITIONS } from "../../hand-agent/tools/registry.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import { eventually } from "../kit/eventually.ts";
import { gate } from "../kit/execution-stream.ts";
import { freePort } from "../kit/free-port.ts";
import { agentInProcess, makeAgentDir } from "../kit/hand-agent-program.ts";
import { promised } from "../kit/promised.ts";
import { startScriptedHandServer } from "../kit/scripted-hand-server.ts";
import { startTcpRelay } from "../kit/tcp-relay.ts";

let dir: Awaited<ReturnType<typeof makeAgentDir>>;
const cleanups: (() => Promise<unknown> | unknown)[] = [];

beforeEach(async () => {
  dir = await makeAgentDir();
});
afterEach(async () => {
  for (let cleanup = cleanups.pop(); cleanup; cleanup = cleanups.pop()) await cleanup();
  await dir.remove();
});

async function startServer(options: Parameters<typeof startScriptedHandServer>[0] = {}) {
  const server = await startScriptedHandServer(options);
  cleanups.push(() => server.close());
  return server;
}

const unreachable = async () => `http://127.0.0.1:${await freePort()}`;

async function startAgent(options: Parameters<typeof agentInProcess>[0]) {
  const agent = agentInProcess({ drainMs: 100, ...options });
  cleanups.push(() => agent.stop());
  await agent.start();
  return agent;
}

test("a connection that goes dead without a word is left within its bound, and calls go on over the next one (H3, R7)", async () => {
  const server = await startServer({ heartbeatEveryMs: 100, heartbeatTimeoutMs: 1_000 });
  const relay = await startTcpRelay(server.port);
  cleanups.push(() => relay.close());
  await startAgent({ url: `http://127.0.0.1:${relay.port}`, dataDir: dir.path });
  const first = await server.connection(0);
  await server.provision("hand_1");
  server.bash("s/1", "hand_1", "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i; sleep 0.3; done");
  await eventually(() => server.outputOf("s/1").length > 0);
  await eventually(() => first.heartbeats >= 2);
  relay.freeze();
  const frozenAtMs = performance.now();
  await server.connection(1);
  // The bound, the first delay of at most 500 ms, and the dialling.
  expect(performance.now() - frozenAtMs).toBeLessThan(promised(2_500));
  await server.result("s/1");
  expect(server.outputOf("s/1").toString()).toBe("1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
});

test("an agent that has stopped writes nothing more: what it still notes of its last connection is waited for", async () => {
  const server = await startServer({ heartbeatEveryMs: 100 });
  // Whoever reads this waits until somebody writes.
  const noted = join(dir.path, "connection-number");
  execFileSync("mkfifo", [noted]);
  const agent = await startAgent({ url: server.url, dataDir: dir.path });
  const connection = await server.connection(0);
  // Only an agent that has been welcomed answers.
  await eventually(() => connection.heartbeats > 0);
  const steps: string[] = [];
  const stopped = agent.stop().then(() => steps.push("stopped"));
  await eventually(() => !connection.isOpen);
  await setImmediate();
  steps.push("written");
  await writeFile(noted, "0\n");
  await stopped;
  expect(steps).toEqual(["written", "stopped"]);
  expect(await readFile(noted, "utf8")).toBe("1\n");
});

test("an agent that stops has done first what the server asked for last", async () => {
  const server = await startServer();
  const steps: string[] = [];
  const held = gate<void>();
  const begun = gate<void>();
  const drivers = (dataDir: string) => {
    const log = createLogger("hand-agent", "silent");
    const driver = DRIVERS.process!({
      dataDir,
      clock: systemClock,
      log,
      tools: TOOL_DEFINITIONS,
      process: {},
    });
    const discard = driver.discard.bind(driver);
    const close = async () => {
      void server.command("release", "hand_1");
      await begun.opened;
    };
    const slowly = async (handId: string) => {
      begun.open();
      await held.opened;
      return discard(handId);
    };
    return [Object.assign(driver, { close, discard: slowly })];
  };
  const agent = await startAgent({ url: server.url, dataDir: dir.path, drivers });
  const connection = await server.connection(0);
  await server.provision("hand_1");
  const stopped = agent.stop().then(() => steps.push("stopped"));
  await eventually(() => !connection.isOpen);
  await setImmediate();
  steps.push("let go");
  held.open();
  await stopped;
  expect(steps).toEqual(["let go", "stopped"]);
  expect(JSON.parse(await readFile(join(dir.path, "hands.json"), "utf8"))).toMatchObject({ hands: [] });
});

test("a server that accepts and then swallows everything is left and dialled again", async () => {
  const server = await startServer();
  const agent = await startAgent({ url: server.url, dataDir: dir.path });
  await server.connection(0);
  await agent.stop();
  const sockets = new Set<Socket>();
  const sink = net.createServer((socket) => {
    sockets.add(socket);
    socket.on("error", () => {}).resume();
  });
  await new Promise<void>((resolve) => sink.listen(0, "127.0.0.1", resolve));
  cleanups.push(async () => {
    for (const socket of sockets) socket.destroy();
    await new Promise((resolve) => sink.close(resolve));
  });
  const url = `http://127.0.0.1:${(sink.address() as AddressInfo).port}`;
  await startAgent({ url, dataDir: dir.path, welcomeWithinMs: 300 });
  await eventually(() => sockets.size >= 3);
});

test("heartbeats go both ways and say what was received", async () => {
  const server = await startServer({ heartbeatEveryMs: 50, heartbeatTimeoutMs: 5_000 });
  await startAgent({ url: server.url, dataDir: dir.path });
  const connection = await server.connection(0);
  await eventually(() => connection.heartbeats >= 3);
  const beats = connection.heard.flatMap((kind) => (kind.case === "heartbeat" ? [kind.value] : []));
  expect(beats.slice(0, 3).map(({ sequence }) => sequence)).toEqual([1n, 2n, 3n]);
  await eventually(() =>
    connection.heard.some((kind) => kind.case === "heartbeat" && kind.value.receivedSequence > 0n),
  );
});

test("an agent that starts before its server joins it once it is there", async () => {
  const port = await freePort();
  const agent = agentInProcess({ url: `http://127.0.0.1:${port}`, dataDir: dir.path });
  cleanups.push(() => agent.stop());
  const starting = agent.start();
  const server = await startServer({ port });
  await starting;
  await server.connection(0);
});

test("with once an unreachable server ends the agent with one line", async () => {
  const agent = agentInProcess({ url: await unreachable(), dataDir: dir.path, once: true });
  cleanups.push(() => agent.stop());
  await expect(agent.start()).rejects.toThrow(/^could not join the server: /);
});

test("stop while the server is away ends the start at once and leaves nothing", async () => {
  const agent = agentInProcess({ url: await unreachable(), dataDir: dir.path });
  const starting = agent.start();
  starting.catch(() => {});
  await agent.stop();
  await expect(starting).rejects.toThrow("stopped");
});
