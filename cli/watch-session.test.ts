import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import type { Clock } from "../kit/clock.ts";
import { TendonError } from "../kit/errors.ts";
import {
  type WatchEventsRequest,
  WatchEventsResponseSchema,
} from "../proto/gen/tendon/v1/session_service_pb.js";
import { type WatchOptions, watchSession } from "./watch-session.ts";

type Step = bigint | { progress: bigint } | Error;

/** Time passes only while somebody sleeps. */
function clockThatSleeps(): Clock & { sleptMs: number } {
  const clock = {
    sleptMs: 0,
    nowMs: () => clock.sleptMs,
    monotonicMs: () => clock.sleptMs,
    sleep: async (delayMs: number) => {
      clock.sleptMs += delayMs;
    },
    after: () => () => {},
    every: () => () => {},
    soon: () => {},
  };
  return clock;
}

/** Each watch plays the next script: events by position, progress, or a failure. */
function sessionsThat(...scripts: Step[][]) {
  const asked: bigint[] = [];
  const watchEvents = (request: Partial<WatchEventsRequest>) => {
    asked.push(request.afterPosition!);
    const script = scripts.shift() ?? [new TendonError("NOT_FOUND", "no more")];
    async function* play() {
      for (const step of script) {
        if (step instanceof Error) throw step;
        yield typeof step === "bigint"
          ? create(WatchEventsResponseSchema, {
              kind: { case: "event", value: { id: `sevt_${step}`, position: step } },
            })
          : create(WatchEventsResponseSchema, {
              kind: { case: "progress", value: { position: step.progress } },
            });
      }
    }
    return Object.assign(play(), { cancel: () => {} });
  };
  return { asked, sessions: { watchEvents } as unknown as WatchOptions["sessions"] };
}

async function positionsOf(
  options: Partial<WatchOptions> & Pick<WatchOptions, "sessions">,
): Promise<bigint[]> {
  const positions: bigint[] = [];
  try {
    const request = { sessionId: "sesn_1", after: 0n, previews: false, clock: clockThatSleeps(), ...options };
    for await (const seen of watchSession(request)) if ("event" in seen) positions.push(seen.event.position);
  } catch (error) {
    if (!(error instanceof TendonError) || error.reason !== "NOT_FOUND") throw error;
  }
  return positions;
}

test("after a disconnect it goes on behind the last event (L4)", async () => {
  const away = new TendonError("UNAVAILABLE", "gone");
  const { sessions, asked } = sessionsThat([1n, 2n, away], [new TendonError("DRAINING", "stops")], [3n]);
  expect(await positionsOf({ sessions })).toEqual([1n, 2n, 3n]);
  expect(asked).toEqual([0n, 2n, 2n, 3n]);
});

test("progress moves the cursor too, so that filtered events are not asked for again", async () => {
  const { sessions, asked } = sessionsThat([{ progress: 40n }, new TendonError("UNAVAILABLE", "gone")]);
  await positionsOf({ sessions, types: ["agent.message"] });
  expect(asked).toEqual([0n, 40n]);
});

test("a server that stays away is given up", async () => {
  const { sessions } = sessionsThat(
    ...Array.from({ length: 1000 }, () => [new TendonError("UNAVAILABLE", "gone")]),
  );
  await expect(positionsOf({ sessions, giveUpAfterMs: 60_000 })).rejects.toThrow("gone");
});

test("a failure that does not pass is told at once", async () => {
  const { sessions, asked } = sessionsThat([new TendonError("UNAUTHENTICATED", "who?")]);
  await expect(positionsOf({ sessions })).rejects.toThrow("who?");
  expect(asked).toHaveLength(1);
});
