/**
 * The whole platform as programs on a test's own database, whose parts a test kills at named points; sessions whose calls
 * count their runs in a file of their hand.
 */
import { readdir, readFile, rm } from "node:fs/promises";
import { join } from "node:path";
import { expect } from "vitest";
import type { FailpointName } from "../../kit/failpoint.ts";
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { SessionStatus } from "../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { eventually } from "./eventually.ts";
import { type Platform, type PlatformOptions, type RunningProgram, startPlatform } from "./platform.ts";
import { createTestDatabase, type TestDatabase } from "./postgres.ts";

export type FaultyProgram = "server" | "harness" | "hand-agent";

/** "agent.journalled" stands in the hand agent's program. */
export function programOf(point: FailpointName): FaultyProgram {
  return point.startsWith("agent.") ? "hand-agent" : (point.split(".")[0] as FaultyProgram);
}

/** A call that ends by itself, gives output before that, and counts its runs in its hand's file `runs`. */
export function countedCommand(tag: string, seconds = 0.2): string {
  return `run: echo ${tag} >> runs; echo started; sleep ${seconds}; echo ended`;
}

export class FaultPlatform {
  readonly platform: Platform;
  readonly database: TestDatabase;
  private readonly agentId: string;
  /** Runs that were counted in files which are gone. */
  private readonly earlierRuns: string[] = [];

  private constructor(platform: Platform, database: TestDatabase, agentId: string) {
    this.platform = platform;
    this.database = database;
    this.agentId = agentId;
  }

  static async start(env: PlatformOptions["env"] = {}): Promise<FaultPlatform> {
    const database = await createTestDatabase();
    const server = { TENDON_DATABASE_URL: database.url, TENDON_DATABASE_POOL: "5", ...env.server };
    const platform = await startPlatform({ env: { ...env, server } });
    const tools = [{ kind: { case: "handToolset" as const, value: {} } }];
    const { agent } = await platform.client(AgentService).createAgent({ spec: { name: "faults", tools } });
    return new FaultPlatform(platform, database, agent?.id ?? "");
  }

  async stop(): Promise<void> {
    try {
      await this.platform.stop();
    } finally {
      await this.database.drop();
    }
  }

  get sessions() {
    return this.platform.client(SessionService);
  }

  /** Ends a program in good order and starts it again, to fail as `failpoints` says. */
  async restart(name: FaultyProgram, failpoints?: string): Promise<RunningProgram> {
    expect(await this.platform.program(name).end("SIGTERM")).toBe(0);
    return this.platform.start(name, failpoints === undefined ? {} : { TENDON_FAILPOINTS: failpoints });
  }

  async newSession(words: string): Promise<string> {
    const { session } = await this.sessions.createSession({
      agentId: this.agentId,
      initialEvents: [userMessage(words)],
    });
    return session?.id ?? "";
  }

  async say(sessionId: string, words: string): Promise<void> {
    await this.sessions.emitEvents({ sessionId, events: [userMessage(words)] });
  }

  async events(sessionId: string): Promise<Event[]> {
    return (await this.sessions.getEvents({ sessionId, limit: 1_000 }, { deadlineMs: 30_000 })).events;
  }

  /** The log, once the session rests. */
  async rested(sessionId: string, withinMs = 60_000): Promise<Event[]> {
    try {
      await eventually(
        async () => {
          const { session } = await this.sessions.getSession({ sessionId }, { deadlineMs: 5_000 });
          return session?.status === SessionStatus.IDLE && !session.hasWork;
        },
        { withinMs, everyMs: 50 },
      );
      return await this.events(sessionId);
    } catch (error) {
      throw new Error(`the session did not come to rest\n${this.platform.logs().slice(-6_000)}`, {
        cause: error,
      });
    }
  }

  get agentDir(): string {
    return join(this.platform.dataDir, "hand-agent");
  }

  /** How often the command with this tag ran, in whichever hand. */
  async runsOf(tag: string): Promise<number> {
    const lines = [...this.earlierRuns, ...(await this.countedRuns())];
    return lines.filter((line) => line === tag).length;
  }

  private async countedRuns(): Promise<string[]> {
    const hands = join(this.agentDir, "hands");
    const lines: string[] = [];
    for (const hand of await readdir(hands).catch(() => [])) {
      lines.push(...(await readFile(join(hands, hand, "work", "runs"), "utf8").catch(() => "")).split("\n"));
    }
    return lines.filter((line) => line !== "");
  }

  /** Only what proves who the agent is comes back from a backup: journal, hands and their files are lost. */
  async loseAgentDisk(): Promise<void> {
    this.earlierRuns.push(...(await this.countedRuns()));
    for (const name of await readdir(this.agentDir)) {
      if (!/^(agent\.key|identity\.json)$/.test(name))
        await rm(join(this.agentDir, name), { recursive: true, force: true });
    }
  }
}

function userMessage(words: string) {
  return { type: "user.message", payload: JSON.stringify({ content: [{ type: "text", text: words }] }) };
}

export interface CallEnd {
  readonly toolUseId: string;
  readonly outcome: string;
  readonly isError: boolean;
  readonly text: string;
}

/** How each tool use of a log ended; fails unless each has exactly one result and positions are dense (X3, L1). */
export function callEnds(events: readonly Event[]): CallEnd[] {
  expect(events.map(({ position }) => Number(position))).toEqual(events.map((_, index) => index + 1));
  const results = events
    .filter(({ type }) => type === "agent.tool_result")
    .map(({ payload }) => JSON.parse(payload) as Record<string, unknown>);
  const uses = events.filter(({ type }) => type === "agent.tool_use").map(({ id }) => id);
  expect(results.map(({ tool_use_id }) => tool_use_id).toSorted()).toEqual(uses.toSorted());
  return uses.map((toolUseId) => {
    const result = results.find(({ tool_use_id }) => tool_use_id === toolUseId) ?? {};
    const content = result.content as { text?: string }[];
    return {
      toolUseId,
      outcome: String(result.outcome),
      isError: result.is_error === true,
      text: content.map(({ text }) => text ?? "").join("\n"),
    };
  });
}
