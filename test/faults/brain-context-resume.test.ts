/** A holder may die after any event of a log whose context is trimmed and summarised: whoever comes next goes on from there (R6). */
import { create } from "@bufbuild/protobuf";
import { afterEach, describe, expect, it } from "vitest";
import { type Event, EventSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import { eventually } from "../kit/eventually.ts";
import { gate, turn } from "../kit/fake-messages-api.ts";
import { isWholeRun } from "../kit/fault-trials.ts";
import { type Rig, spoken, startRig } from "../kit/harness-rig.ts";
import {
  isSummaryRequest,
  LONG_AGENT,
  LONG_TOOLS,
  LONG_WINDOW_TOKENS,
  longScript,
  longTurn,
  playLongSession,
} from "../kit/long-session.ts";

const SETTLED_MS = isWholeRun ? 400_000 : 90_000;
const TIMEOUT_MS = isWholeRun ? 1_200_000 : 240_000;

let rig: Rig;
afterEach(() => rig.stop());

/** What is tried in `npm test`: prefixes that end near a decision, a failure or an interrupt. */
function lengthsAround(log: readonly Event[]): number[] {
  const types = ["brain.context_changed", "session.error", "user.interrupt"];
  const near = log.flatMap(({ type }, i) => (types.includes(type) ? [i, i + 1, i + 3] : []));
  return [...new Set(near)].filter((length) => length > 0 && length <= log.length);
}

describe("a log whose context is changed again and again, cut off around each change", () => {
  it(
    "is gone on from: requests fit and are valid, each call has one result and ran at most once",
    async () => {
      const hold = gate();
      rig = await startRig({ server: { tools: LONG_TOOLS }, model: { script: longScript(hold) } });
      const played = await playLongSession(rig, hold);
      const log = played.events.map((event) => create(EventSchema, event));
      await rig.stop();
      expect(log.filter(({ type }) => type === "brain.context_changed").length).toBeGreaterThan(6);
      rig = await startRig({
        server: { tools: LONG_TOOLS },
        model: {
          maxInputTokens: LONG_WINDOW_TOKENS,
          script: (request) => (isSummaryRequest(request) ? longTurn(request) : turn(["as you like"])),
        },
      });
      const lengths = isWholeRun ? log.map((_, i) => i + 1) : lengthsAround(log);
      const sessions = lengths.map((length) => rig.resume(log.slice(0, length), LONG_AGENT));
      for (const [i, session] of sessions.entries()) {
        const label = `after ${lengths[i]} events, the last a ${log[lengths[i]! - 1]!.type}`;
        const settled = (check: () => boolean) =>
          eventually(check, { withinMs: SETTLED_MS }).catch(() => {
            throw new Error(`${label}: held ${session.isHeld}: ${session.types().slice(lengths[i])}`);
          });
        await settled(() => !session.isHeld && session.types().at(-1) === "session.status_idle");
        const answers = spoken(session).length;
        session.say("thank you");
        await settled(() => !session.isHeld && spoken(session).length > answers);
        const uses = session.events.filter(({ type }) => type === "agent.tool_use").map(({ id }) => id);
        const answered = session.payloads("agent.tool_result").map(({ tool_use_id }) => tool_use_id);
        expect(answered.toSorted(), label).toEqual(uses.toSorted());
        for (const id of uses) {
          expect(rig.server.runs.get(`${session.id}/${id}`) ?? 0, label).toBeLessThanOrEqual(1);
        }
      }
      expect(rig.api.refusals).toEqual([]);
    },
    TIMEOUT_MS,
  );
});
