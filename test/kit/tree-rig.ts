/** A server and a harness whose brains are puppets, for tests of sessions that make threads. */

import type { MessageInitShape } from "@bufbuild/protobuf";
import { expect } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import type { AgentSpecSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { EnvironmentService } from "../../proto/gen/tendon/v1/environment_service_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { FileService } from "../../proto/gen/tendon/v1/file_service_pb.js";
import { type Session, SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { ThreadService } from "../../proto/gen/tendon/v1/thread_service_pb.js";
import { type Brains, startBrains } from "./brains.ts";
import { eventually } from "./eventually.ts";
import { createTestDatabase, type TestDatabase } from "./postgres.ts";
import { PUPPET, type Puppet, puppetLoop } from "./puppet-loop.ts";
import { startServer, type TestServer } from "./server.ts";

type Spec = MessageInitShape<typeof AgentSpecSchema>;

interface Model {
  readonly url: string;
  readonly apiKey: string;
}

const THREAD_TOOLS = ["thread_create", "thread_send", "thread_wait", "thread_list", "thread_stop"];

export class TreeRig {
  /** By the agent's name; tests add theirs, under names of their own. */
  readonly puppets: Record<string, Puppet> = {};
  readonly database: TestDatabase;
  server!: TestServer;
  private brains!: Brains;

  private readonly settings: Readonly<Record<string, string>>;
  private readonly peers: boolean;
  private readonly model: Model | undefined;

  private constructor(
    database: TestDatabase,
    settings: Readonly<Record<string, string>>,
    peers: boolean,
    model: Model | undefined,
  ) {
    this.database = database;
    this.settings = settings;
    this.peers = peers;
    this.model = model;
  }

  /** `settings`: further ones of the server; `peers`: whether other replicas reach it; `model`: who judges outcomes. */
  static async start(
    settings: Readonly<Record<string, string>> = {},
    peers = false,
    model?: Model,
  ): Promise<TreeRig> {
    const rig = new TreeRig(await createTestDatabase(), settings, peers, model);
    await rig.startServer();
    const request = { spec: { name: "default" }, makeDefault: true };
    await rig.server.client(EnvironmentService).createEnvironment(request);
    return rig;
  }

  async stop(): Promise<void> {
    await this.stopServer();
    await this.database.drop();
  }

  /** As after an update: a new server and a new harness at the same database. */
  async restart(): Promise<void> {
    await this.stopServer();
    await this.startServer();
  }

  private async startServer(): Promise<void> {
    const databaseUrl = this.database.url;
    const adminKey = this.adminKey === "" ? {} : { TENDON_ADMIN_KEY: this.adminKey };
    const settings = { ...this.settings, ...adminKey };
    const { peers } = this;
    this.server = await startServer({ databaseUrl, replaceAdminKey: this.adminKey === "", settings, peers });
    this.adminKey ||= this.server.adminKey;
    await this.startHarness();
  }

  private adminKey = "";

  async startHarness(): Promise<void> {
    const key = await this.server.localKey("harness");
    const loops = [puppetLoop(this.puppets)];
    const { model } = this;
    const request = { url: this.server.url, key, loops, capacity: 500 };
    this.brains = await startBrains({ ...request, ...(model && { model }) });
  }

  async stopHarness(): Promise<void> {
    await this.brains.stop();
  }

  private async stopServer(): Promise<void> {
    await this.brains.stop();
    await this.server.stop();
  }

  get sessions() {
    return this.server.client(SessionService);
  }

  get threads() {
    return this.server.client(ThreadService);
  }

  /** As a harness sees them. */
  harnessThreads(key: string) {
    return this.server.client(ThreadService, key);
  }

  get admin() {
    return this.server.client(AdminService);
  }

  /** An agent that a puppet plays, in the loop "puppet" unless `spec` says else; it may call `members`, by id, and itself with "self". */
  async agent(
    name: string,
    puppet: Puppet,
    { members = [], ...spec }: Spec & { members?: readonly string[] } = {},
  ): Promise<string> {
    this.puppets[name] = puppet;
    const agents = members.map((id) =>
      id === "self"
        ? { kind: { case: "self" as const, value: true } }
        : { kind: { case: "agent" as const, value: { id } } },
    );
    const tools = [{ kind: { case: "brainToolset" as const, value: { names: THREAD_TOOLS } } }];
    const multiagent = { agents, ...(spec.multiagent as object) };
    const full = { tools, ...PUPPET, ...spec, name, ...(agents.length > 0 && { multiagent }) };
    const { agent } = await this.server.client(AgentService).createAgent({ spec: full as Spec });
    return agent!.id;
  }

  /** A text of the workspace, by its id. */
  async file(text: string): Promise<string> {
    const upload = this.server.client(FileService).uploadFile();
    await upload.send({ kind: { case: "start", value: { filename: "a.txt" } } });
    await upload.send({ kind: { case: "chunk", value: Buffer.from(text) } });
    await upload.send({ kind: { case: "end", value: {} } });
    const { file } = await upload.end();
    return file!.id;
  }

  /** A session of the agent that gets this as its first message. */
  async talk(agentId: string, words = "go", more: object = {}): Promise<string> {
    const { session } = await this.sessions.createSession({
      agentId,
      initialEvents: [userMessage(words)],
      ...more,
    });
    return session!.id;
  }

  async say(sessionId: string, words: string): Promise<void> {
    await this.sessions.emitEvents({ sessionId, events: [userMessage(words)] });
  }

  async log(sessionId: string): Promise<Event[]> {
    return (await this.sessions.getEvents({ sessionId, limit: 1_000 })).events;
  }

  async get(sessionId: string): Promise<Session> {
    return (await this.sessions.getSession({ sessionId })).session!;
  }

  /** The session once it is idle for good, for this reason. */
  async rested(sessionId: string, reason: number, withinMs = 60_000): Promise<Session> {
    let last: Session | undefined;
    try {
      return await eventually(
        async () => {
          last = await this.get(sessionId);
          return last.status === SessionStatus.IDLE && last.stopReason === reason && !last.hasWork
            ? last
            : undefined;
        },
        { withinMs },
      );
    } catch (error) {
      const types = (await this.log(sessionId)).map(
        ({ type, payload }) => `${type} ${payload.slice(0, 150)}`,
      );
      throw new Error(`status ${last?.status}, reason ${last?.stopReason}:\n${types.join("\n")}`, {
        cause: error,
      });
    }
  }

  async threadsOf(sessionId: string, includeArchived = true): Promise<Session[]> {
    return (await this.threads.listThreads({ sessionId, wholeTree: true, includeArchived })).threads;
  }
}

export function userMessage(words: string) {
  return { type: "user.message", payload: JSON.stringify({ content: [{ type: "text", text: words }] }) };
}

/** Payloads of the log's own events of a type. */
export function payloads(log: readonly Event[], type: string): Record<string, unknown>[] {
  return log
    .filter((event) => event.type === type && event.threadId === "")
    .map(({ payload }) => JSON.parse(payload) as Record<string, unknown>);
}

/** Every call of the log has one result (X3), and positions are dense (L1). */
export function expectWhole(log: readonly Event[]): void {
  expect(log.map(({ position }) => Number(position))).toEqual(log.map((_, at) => at + 1));
  const uses = log.filter(({ type }) => type === "agent.tool_use" || type === "agent.custom_tool_use");
  for (const { id } of uses) {
    const results = log.filter(({ type, payload }) => /_result$/.test(type) && payload.includes(`"${id}"`));
    expect(results).toHaveLength(1);
  }
}
