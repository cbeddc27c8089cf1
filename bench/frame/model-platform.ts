/** The platform as programs with a fake model in the bench's own process, which notes when each session's requests came. */
import { AgentService } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import {
  type FakeMessagesApi,
  type MessagesRequest,
  startFakeMessagesApi,
  type Turn,
} from "../../test/kit/fake-messages-api.ts";
import { type Platform, type PlatformOptions, startPlatform } from "../../test/kit/platform.ts";
import type { BenchContext } from "./bench.ts";

export interface ModelPlatformOptions {
  readonly programs: PlatformOptions["programs"];
  readonly env?: PlatformOptions["env"];
  /** What the model does with the n-th request (from 1) of the session with this mark. */
  answer(mark: string, n: number, request: MessagesRequest): Turn | Promise<Turn>;
}

/** Milliseconds since 1970, with fractions. */
export function wallMs(): number {
  return performance.timeOrigin + performance.now();
}

export class ModelPlatform {
  readonly platform: Platform;
  readonly model: FakeMessagesApi;
  /** By mark: when each of its requests had arrived. */
  readonly asked: ReadonlyMap<string, number[]>;
  private readonly agentId: string;

  private constructor(
    platform: Platform,
    model: FakeMessagesApi,
    asked: ReadonlyMap<string, number[]>,
    agentId: string,
  ) {
    this.platform = platform;
    this.model = model;
    this.asked = asked;
    this.agentId = agentId;
  }

  static async start(context: BenchContext, options: ModelPlatformOptions): Promise<ModelPlatform> {
    const asked = new Map<string, number[]>();
    const model = await startFakeMessagesApi({
      maxRecorded: 100,
      script: (request) => {
        const mark = /mark-[a-z0-9-]+/.exec(JSON.stringify(request.messages))?.[0] ?? "";
        const times = asked.get(mark) ?? [];
        asked.set(mark, times);
        times.push(wallMs());
        return options.answer(mark, times.length, request);
      },
    });
    context.defer(() => model.stop());
    context.say("starting the platform …");
    const harness = {
      ANTHROPIC_BASE_URL: model.url,
      ANTHROPIC_API_KEY: model.apiKey,
      ...options.env?.harness,
    };
    const { programs = [] } = options;
    const platform = await startPlatform({ programs, env: { ...options.env, harness } });
    context.defer(() => platform.stop());
    const tools = [{ kind: { case: "handToolset" as const, value: {} } }];
    const { agent } = await platform.client(AgentService).createAgent({ spec: { name: "bench", tools } });
    return new ModelPlatform(platform, model, asked, agent?.id ?? "");
  }

  get sessions() {
    return this.platform.client(SessionService);
  }

  /** `environmentId`: where its hands come from; empty for the default. */
  async newSession(environmentId = ""): Promise<string> {
    const { session } = await this.sessions.createSession({ agentId: this.agentId, environmentId });
    return session?.id ?? "";
  }

  /** Words with the session's mark, by which the model knows it. */
  async say(sessionId: string, mark: string): Promise<void> {
    const payload = JSON.stringify({ content: [{ type: "text", text: `${mark} go on` }] });
    await this.sessions.emitEvents({ sessionId, events: [{ type: "user.message", payload }] });
  }

  /** When a watcher of the session saw the first text of its model after this position. */
  async firstToken(sessionId: string, signal: AbortSignal): Promise<number> {
    const call = this.sessions.watchEvents({ sessionId, previews: true }, { signal });
    for await (const { kind } of call) {
      if (kind.case === "preview" && kind.value.kind.case === "text") return wallMs();
      if (kind.case === "event" && kind.value.type === "agent.message") return wallMs();
    }
    throw new Error("the watch ended before the model said anything");
  }
}

/** Begins `count` things, so many a second, and waits for all of them. */
export async function arrive(
  count: number,
  perSecond: number,
  one: (n: number) => Promise<void>,
): Promise<void> {
  const startedMs = performance.now();
  const running: Promise<void>[] = [];
  for (let n = 0; n < count; n++) {
    const waitMs = startedMs + (n * 1_000) / perSecond - performance.now();
    if (waitMs > 0) await new Promise((resolve) => setTimeout(resolve, waitMs));
    running.push(one(n));
  }
  await Promise.all(running);
}
