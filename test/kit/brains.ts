/** Real harnesses in the test's process, at a real server, with the loop that needs no model. */
import { Harness } from "../../harness/harness.ts";
import { scriptedLoop } from "../../harness/loops/scripted/scripted-loop.ts";
import { systemClock } from "../../kit/clock.ts";
import { dial } from "../../kit/dial/dial.ts";
import { createLogger } from "../../kit/log.ts";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { HarnessService } from "../../proto/gen/tendon/v1/harness_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";

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
}): Promise<Brains> {
  const connection = dial({ url: options.url, token: () => options.key, proxy: {} });
  const harness = new Harness({
    server: {
      harness: connection.client(HarnessService),
      sessions: connection.client(SessionService),
      hands: connection.client(HandService),
    },
    loops: new Map([[scriptedLoop.name, scriptedLoop]]),
    capacity: options.capacity ?? 50,
    modelSource: "demo",
    build: "test",
    settings: { modelTimeoutMs: 5_000, retry: { firstMs: 5, maxMs: 20, totalMs: 2_000 }, maxRounds: 10 },
    drainMs: 500,
    clock: systemClock,
    log: createLogger("harness", "silent"),
  });
  await harness.start();
  return {
    harness,
    async stop() {
      await harness.stop();
      connection.close();
    },
  };
}
