/** A server with a harness and a fake model, and what workers of its self-hosted environments need. */
import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import Anthropic from "@anthropic-ai/sdk";
import { type Brains, startBrains } from "./brains.ts";
import { eventually } from "./eventually.ts";
import {
  type FakeMessagesApi,
  type FakeMessagesApiOptions,
  startFakeMessagesApi,
} from "./fake-messages-api.ts";
import { newerNode } from "./newer-node.ts";
import { createTestDatabase, type TestDatabase } from "./postgres.ts";
import { startServer, type TestServer } from "./server.ts";

export interface WorkerProcess {
  readonly child: ChildProcess;
  /** Where it works. */
  readonly dir: string;
  /** Lines that it has written. */
  readonly lines: string[];
  kill(signal?: NodeJS.Signals): Promise<void>;
}

/** Events as clients of the HTTP API see them. */
export type SeenEvent = { id: string; type: string } & Record<string, unknown>;

export interface WorkerRig {
  readonly database: TestDatabase;
  readonly server: TestServer;
  readonly api: FakeMessagesApi;
  /** With the admin's key; repeats nothing. */
  readonly client: Anthropic;
  /** The same with another credential. */
  as(key: string): Anthropic;
  environment(config?: "cloud" | "self_hosted"): Promise<string>;
  key(environmentId: string): Promise<{ id: string; key: string }>;
  /** Of an agent that has the usual tools, and makes threads of itself where it is told to. */
  session(environmentId: string, words?: string): Promise<string>;
  say(sessionId: string, words: string): Promise<void>;
  events(sessionId: string, client?: Anthropic): Promise<SeenEvent[]>;
  /** The tool uses of a session, once there are so many. */
  calls(sessionId: string, atLeast: number): Promise<SeenEvent[]>;
  /** Once the session has so many idle events with this reason. */
  idle(sessionId: string, reason: string, atLeast?: number): Promise<SeenEvent[]>;
  worker(environmentId: string, key: string, idleMs?: number): Promise<WorkerProcess>;
  stop(): Promise<void>;
}

const TOOLS = [
  { type: "agent_toolset_20260401" },
  { type: "tendon_brain_toolset", names: ["thread_create", "thread_wait"] },
];

export async function startWorkerRig(
  options: { ttlSeconds?: number; script?: NonNullable<FakeMessagesApiOptions["script"]> } = {},
): Promise<WorkerRig> {
  const database = await createTestDatabase();
  const api = await startFakeMessagesApi(options.script === undefined ? {} : { script: options.script });
  const server = await startServer({
    databaseUrl: database.url,
    settings: { TENDON_WORK_LEASE_TTL_SECONDS: String(options.ttlSeconds ?? 90) },
  });
  const brains = await startBrains({ url: server.url, key: await server.localKey("harness"), model: api });
  await eventually(() => brains.harness.isConnected);
  return new Rig(database, api, server, brains);
}

class Rig implements WorkerRig {
  readonly database: TestDatabase;
  readonly api: FakeMessagesApi;
  readonly server: TestServer;
  readonly client: Anthropic;
  private readonly brains: Brains;
  private readonly workers: WorkerProcess[] = [];
  private made = 0;

  constructor(database: TestDatabase, api: FakeMessagesApi, server: TestServer, brains: Brains) {
    this.database = database;
    this.api = api;
    this.server = server;
    this.brains = brains;
    this.client = this.as(server.adminKey);
  }

  as(key: string): Anthropic {
    return new Anthropic({ baseURL: this.server.url, authToken: key, apiKey: null, maxRetries: 0 });
  }

  async environment(config: "cloud" | "self_hosted" = "self_hosted"): Promise<string> {
    this.made += 1;
    const made = await this.client.beta.environments.create({
      name: `environment ${this.made}`,
      config: { type: config },
    });
    return made.id;
  }

  key(environmentId: string): Promise<{ id: string; key: string }> {
    return this.client.post(`/v1/environments/${environmentId}/keys`, { body: {} });
  }

  async session(environmentId: string, words?: string): Promise<string> {
    const agent = await this.client.beta.agents.create({
      name: "helper",
      model: "claude-test",
      tools: TOOLS as never,
      multiagent: { type: "coordinator", agents: [{ type: "self" }] },
    });
    const session = await this.client.beta.sessions.create({
      agent: agent.id,
      environment_id: environmentId,
    });
    if (words !== undefined) await this.say(session.id, words);
    return session.id;
  }

  async say(sessionId: string, words: string): Promise<void> {
    const content = [{ type: "text" as const, text: words }];
    await this.client.beta.sessions.events.send(sessionId, { events: [{ type: "user.message", content }] });
  }

  async events(sessionId: string, client = this.client): Promise<SeenEvent[]> {
    const seen: SeenEvent[] = [];
    for await (const event of client.beta.sessions.events.list(sessionId)) seen.push(event as never);
    return seen;
  }

  calls(sessionId: string, atLeast: number): Promise<SeenEvent[]> {
    return eventually(async () => {
      const calls = (await this.events(sessionId)).filter(({ type }) => type === "agent.tool_use");
      return calls.length >= atLeast ? calls : undefined;
    });
  }

  idle(sessionId: string, reason: string, atLeast = 1): Promise<SeenEvent[]> {
    return eventually(async () => {
      const events = await this.events(sessionId);
      const idle = events.filter(
        ({ type, stop_reason }) =>
          type === "session.status_idle" && (stop_reason as { type?: string } | undefined)?.type === reason,
      );
      return idle.length >= atLeast ? events : undefined;
    });
  }

  async worker(environmentId: string, key: string, idleMs = 60_000): Promise<WorkerProcess> {
    const dir = await mkdtemp(join(tmpdir(), "tendon-worker-"));
    const child = spawn(await newerNode(), [join(import.meta.dirname, "environment-worker.mjs")], {
      env: {
        PATH: process.env.PATH,
        WORKER_URL: this.server.url,
        WORKER_ENVIRONMENT: environmentId,
        WORKER_KEY: key,
        WORKER_DIR: dir,
        WORKER_IDLE_MS: String(idleMs),
      },
      stdio: ["ignore", "pipe", "pipe"],
    });
    const lines: string[] = [];
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding("utf8").on("data", (text: string) => lines.push(...text.trim().split("\n")));
    const ended = once(child, "exit");
    const worker: WorkerProcess = {
      child,
      dir,
      lines,
      async kill(signal = "SIGKILL") {
        if (child.exitCode === null && child.signalCode === null) child.kill(signal);
        await ended;
      },
    };
    this.workers.push(worker);
    return worker;
  }

  async stop(): Promise<void> {
    for (const worker of this.workers) {
      await worker.kill();
      await rm(worker.dir, { recursive: true, force: true });
    }
    await this.brains.stop();
    await this.server.stop();
    await this.api.stop();
    await this.database.drop();
  }
}
