/** A real harness between the scripted server and the fake Messages API, for tests; everything it starts it stops. */

import { Harness, type HarnessOptions } from "../../harness/harness.ts";
import { ModelClient } from "../../harness/loops/claude/model-client.ts";
import { createModelFetch } from "../../harness/loops/claude/model-fetch.ts";
import { createTextModel } from "../../harness/loops/claude/text-requests.ts";
import type { Loop } from "../../harness/loops/loop.ts";
import { createLoops } from "../../harness/loops/registry.ts";
import { CallJudge } from "../../harness/permission/call-judge.ts";
import { systemClock } from "../../kit/clock.ts";
import { createLogger } from "../../kit/log.ts";
import type { AgentSpec } from "../../proto/gen/tendon/v1/agent_pb.js";
import type { Event } from "../../proto/gen/tendon/v1/event_pb.js";
import { eventually } from "./eventually.ts";
import {
  type FakeMessagesApi,
  type FakeMessagesApiOptions,
  startFakeMessagesApi,
} from "./fake-messages-api.ts";
import {
  type ScriptedServer,
  type ScriptedServerOptions,
  startScriptedServer,
} from "./scripted-harness-server.ts";
import type { ScriptedSession } from "./scripted-session.ts";

export interface RigOptions {
  model?: FakeMessagesApiOptions;
  server?: ScriptedServerOptions;
  harness?: Partial<Pick<HarnessOptions, "capacity" | "drainMs" | "room">>;
  settings?: Partial<HarnessOptions["settings"]>;
  /** Further loops. A function gets the fake, and makes them for each harness anew. */
  loops?: readonly Loop[] | ((api: FakeMessagesApi) => readonly Loop[]);
  /** Where the model is, instead of at the fake. */
  modelUrl?: string;
}

export interface Rig {
  readonly api: FakeMessagesApi;
  readonly server: ScriptedServer;
  readonly harness: Harness;
  /** Another harness at the same server and model. */
  addHarness(): Promise<Harness>;
  /** A session that gets this as its first message. */
  talk(text: string, spec?: Partial<AgentSpec>): ScriptedSession;
  resume(log: readonly Event[], spec?: Partial<AgentSpec>): ScriptedSession;
  stop(): Promise<void>;
}

/** Who judges calls with the policy `auto`, so that tests can tell these requests from a session's own. */
export const JUDGING_MODEL = "claude-judge";
/** Quick, and for longer than a busy machine takes for what a test does: how often is asked is not a question of time. */
const FAST_RETRY = { firstMs: 5, maxMs: 20, totalMs: 60_000 };

export async function startRig(options: RigOptions = {}): Promise<Rig> {
  const api = await startFakeMessagesApi(options.model);
  const server = await startScriptedServer(options.server);
  const stops: (() => Promise<void> | void)[] = [() => api.stop(), () => server.stop()];
  const addHarness = async () => {
    const { server: clients, close } = server.clients();
    const transport = createModelFetch({});
    const client = new ModelClient({
      apiKey: api.apiKey,
      baseUrl: options.modelUrl ?? api.url,
      fetch: transport.fetch,
      clock: systemClock,
    });
    const loops = new Map(
      createLoops({ claude: { client, clock: systemClock, defaultModel: "claude-test" } }),
    );
    const more = typeof options.loops === "function" ? options.loops(api) : options.loops;
    for (const loop of more ?? []) loops.set(loop.name, loop);
    const harness = new Harness({
      server: clients,
      loops,
      textModel: createTextModel(client, "claude-test"),
      capacity: 200,
      modelSource: "gateway",
      build: "test",
      drainMs: 1_000,
      clock: systemClock,
      log: createLogger("harness", "silent"),
      ...options.harness,
      settings: {
        modelTimeoutMs: 60_000,
        retry: FAST_RETRY,
        maxRounds: 1_000,
        gradingHeartbeatMs: 10_000,
        ...options.settings,
      },
      judge: new CallJudge({
        model: createTextModel(client, "claude-test"),
        modelId: JUDGING_MODEL,
        clock: systemClock,
        retryMs: FAST_RETRY.firstMs,
      }),
    });
    await harness.start();
    await eventually(() => harness.isConnected);
    stops.unshift(
      () => harness.stop(),
      () => close(),
      () => transport.close(),
    );
    return harness;
  };
  const harness = await addHarness();
  return {
    api,
    server,
    harness,
    addHarness,
    talk: (text, spec) => {
      const session = server.createSession(spec);
      session.say(text);
      return session;
    },
    resume: (log, spec) => server.createSession(spec, log),
    stop: async () => {
      for (const stop of stops) await stop();
    },
  };
}

/** Waits until the session rests: its newest event is an idle one and nobody holds it. */
export async function rested(session: ScriptedSession, times = 1, withinMs = 60_000): Promise<void> {
  await eventually(
    () =>
      session.types().filter((type) => type === "session.status_idle").length >= times &&
      !session.isHeld &&
      session.types().at(-1) === "session.status_idle",
    { withinMs },
  );
}

/** The stop reasons of the session's idle events, in order. */
export function stopReasons(session: ScriptedSession): unknown[] {
  return session
    .payloads("session.status_idle")
    .map(({ stop_reason }) => (stop_reason as { type: unknown }).type);
}

/** All text that the session's messages say. */
export function spoken(session: ScriptedSession): string[] {
  return session
    .payloads("agent.message")
    .flatMap(({ content }) => (content as { text: string }[]).map(({ text }) => text));
}
