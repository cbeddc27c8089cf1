/** Hundreds of hand agents, enrolled for real and each on a socket of its own, in a few processes that end with this one. */
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import type { Client } from "../../kit/rpc/client.ts";
import type { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import type { SwarmOrder } from "./agent-swarm-program.ts";
import { testProgram } from "./test-program.ts";

export interface AgentSwarm {
  readonly count: number;
  readonly pids: readonly number[];
  /** The processes end without a word to the server, as by kill -9. */
  stop(): Promise<void>;
}

const PER_PROCESS = 500;

/** Resolves when all have joined and dial; they are online a little later. */
export async function startAgentSwarm(options: {
  count: number;
  url: string;
  caFile?: string;
  admin: Client<typeof AdminService>;
}): Promise<AgentSwarm> {
  const { count, url, caFile, admin } = options;
  const folder = await mkdtemp(join(tmpdir(), "tendon-swarm-"));
  const { secret } = await admin.createJoinToken({ uses: count });
  const children: ChildProcess[] = [];
  const stop = async () => {
    await Promise.all(children.map(end));
    await rm(folder, { recursive: true, force: true });
  };
  try {
    const file = await testProgram("test/kit/agent-swarm-program.ts");
    const starting: Promise<void>[] = [];
    for (let first = 0; first < count; first += PER_PROCESS) {
      const child = spawn(process.execPath, [file], { stdio: ["pipe", "pipe", "inherit"] });
      children.push(child);
      const size = Math.min(PER_PROCESS, count - first);
      const dataDir = join(folder, String(first));
      const order: SwarmOrder = {
        url,
        joinToken: secret,
        dataDir,
        count: size,
        ...(caFile === undefined ? {} : { caFile }),
      };
      child.stdin?.write(`${JSON.stringify(order)}\n`);
      starting.push(started(child));
    }
    await Promise.all(starting);
  } catch (error) {
    await stop();
    throw error;
  }
  return { count, pids: children.map(({ pid }) => pid ?? 0), stop };
}

function started(child: ChildProcess): Promise<void> {
  return new Promise((resolve, reject) => {
    createInterface({ input: child.stdout! }).once("line", () => resolve());
    child.once("error", reject);
    child.once("exit", (code, signal) =>
      reject(new Error(`a process of the swarm ended with ${code ?? signal}`)),
    );
  });
}

async function end(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return;
  const ended = new Promise((resolve) => child.once("exit", resolve));
  child.kill("SIGKILL");
  await ended;
}
