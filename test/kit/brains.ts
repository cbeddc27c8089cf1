/** Real harnesses in the test's process, at a real server: with the loop that needs no model, or with models of a test's own. */
import { Harness } from "../../harness/harness.ts";
import type { HistoryRoom } from "../../harness/history-room.ts";
import { createClaudeLoop } from "../../harness/loops/claude/claude-loop.ts";
import { ModelClient } from "../../harness/loops/claude/model-client.ts";
import { createModelFetch } from "../../harness/loops/claude/model-fetch.ts";
import { createTextModel } from "../../harness/loops/claude/text-requests.ts";
import type { Loop } from "../../harness/loops/loop.ts";
import { scriptedLoop } from "../../harness/loops/scripted/scripted-loop.ts";
import type { RunnerSettings } from "../../harness/runner.ts";
import type { ServerClients } from "../../harness/server-clients.ts";
import { systemClock } from "../../kit/clock.ts";
import { dial } from "../../kit/dial/dial.ts";
import { createLogger } from "../../kit/log.ts";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { HarnessService } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { MemoryService } from "../../proto/gen/tendon/v1/memory_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { ThreadService } from "../../proto/gen/tendon/v1/thread_service_pb.js";

/** For an agent's spec: each of its turns is one message, "Done.". */
export const SCRIPTED = { loop: "scripted", loopSettings: "{}" } as const;

export interface Brains {
  readonly harness: Harness;
  stop(): Promise<void>;
}

export async function startBrains(options: {
  readonly url: string;
  readonly key: string;
  readonly capacity?: number;
  /** Where the claude loop asks; without it there is only the scripted loop. */
  readonly model?: { readonly url: string; readonly apiKey: string };
  /** Further loops, and how patient they are with their models. */
  readonly loops?: readonly Loop[];
  readonly settings?: Partial<RunnerSettings>;
  /** The memory that histories may take. */
  readonly room?: HistoryRoom;
  /** Puts something before what the harness says to the server. */
  readonly through?: (clients: ServerClients) => ServerClients;
}): Promise<Brains> {
  const connection = dial({ url: options.url, token: () => options.key, proxy: {} });
  const clients = {
    harness: connection.client(HarnessService),
    sessions: connection.client(SessionService),
    hands: connection.client(HandService),
    memory: connection.client(MemoryService),
    threads: connection.client(ThreadService),
  };
  const transport = createModelFetch({});
  const { model } = options;
  const client =
    model &&
    new ModelClient({ apiKey: model.apiKey, baseUrl: model.url, fetch: transport.fetch, clock: systemClock });
  const loops: Loop[] = [scriptedLoop, ...(options.loops ?? [])];
  if (client !== undefined)
    loops.push(createClaudeLoop({ client, clock: systemClock, defaultModel: "claude-test" }));
  const harness = new Harness({
    server: options.through?.(clients) ?? clients,
    loops: new Map(loops.map((loop) => [loop.name, loop])),
    ...(client && { textModel: createTextModel(client, "claude-test") }),
    capacity: options.capacity ?? 50,
    modelSource: "demo",
    build: "test",
    settings: {
      modelTimeoutMs: 60_000,
      retry: { firstMs: 5, maxMs: 20, totalMs: 60_000 },
      maxRounds: 10,
      gradingHeartbeatMs: 10_000,
      ...options.settings,
    },
    drainMs: 500,
    ...(options.room && { room: options.room }),
    clock: systemClock,
    log: createLogger("harness", "silent"),
  });
  await harness.start();
  return {
    harness,
    async stop() {
      await harness.stop();
      connection.close();
      await transport.close();
    },
  };
}
