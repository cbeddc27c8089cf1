/** A holder may die after any event of a log in which everything happens: whoever comes next goes on from there (R6, X3). */
import { create } from "@bufbuild/protobuf";
import { afterEach, describe, expect, it } from "vitest";
import { type Event, EventSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import { eventually } from "../kit/eventually.ts";
import { gate } from "../kit/fake-messages-api.ts";
import { type Rig, spoken, startRig, stopReasons } from "../kit/harness-rig.ts";
import { answerAll, playRichSession, RICH_AGENT, RICH_TOOLS, richScript } from "../kit/rich-session.ts";
import type { ScriptedSession } from "../kit/scripted-session.ts";

let rig: Rig;
afterEach(async () => {
  await rig.stop();
  expect(rig.api.refusals).toEqual([]);
});

async function record(): Promise<Event[]> {
  const hold = gate();
  rig = await startRig({ server: { tools: RICH_TOOLS }, model: { script: richScript({ hold }) } });
  const session = await playRichSession(rig, hold);
  expect(stopReasons(session)).toEqual([
    "requires_action",
    "requires_action",
    "end_turn",
    "end_turn",
    "requires_action",
    "end_turn",
    "end_turn",
    "end_turn",
    "refusal",
    "end_turn",
  ]);
  const log = session.events.map((event) => create(EventSchema, event));
  await rig.stop();
  expect(rig.api.refusals).toEqual([]);
  return log;
}

const isWaiting = (session: ScriptedSession) =>
  session.types().findLast((type) => type.startsWith("session.status_")) === "session.status_idle" &&
  stopReasons(session).at(-1) === "requires_action";
/** Nobody has it, and its last word is that it is idle; while clients are waited for, they may have said something since. */
const isResting = (session: ScriptedSession) =>
  !session.isHeld && (session.types().at(-1) === "session.status_idle" || isWaiting(session));

describe("every prefix of a log in which everything happens", () => {
  it("is gone on from: each call has one result and runs at most once, and what is said next is answered", async () => {
    const log = await record();
    rig = await startRig({ server: { tools: RICH_TOOLS }, model: { script: richScript() } });
    const sessions = log.map((_, index) => rig.resume(log.slice(0, index + 1), RICH_AGENT));
    for (const [index, session] of sessions.entries()) {
      const label = `after ${index + 1} events, the last a ${log[index]!.type}`;
      const settled = (check: () => boolean) =>
        eventually(check, { withinMs: 180_000 }).catch(() => {
          const { isHeld, epoch } = session;
          const held = `held ${isHeld}, epoch ${epoch}, ${rig.harness.sessions} run`;
          throw new Error(`${label}: ${held}: ${session.types().slice(index + 1)}`);
        });
      // What waits for a client is answered as often as it takes; then something more is said.
      for (let rounds = 0; rounds < 4; rounds++) {
        await settled(() => isResting(session) || session.types().at(-1) === "brain.inputs_consumed");
        if (!isWaiting(session)) break;
        const idles = stopReasons(session).length;
        answerAll(session);
        await settled(() => isResting(session) && stopReasons(session).length > idles);
      }
      session.say("good");
      await settled(() => isResting(session) && spoken(session).at(-1) === "heard good");
      expect(stopReasons(session).at(-1), label).toBe("end_turn");
      const uses = session.events.filter(({ type }) => /^agent\..*tool_use$/.test(type)).map(({ id }) => id);
      const answered = [
        ...session.payloads("agent.tool_result").map(({ tool_use_id }) => tool_use_id),
        ...session.payloads("user.custom_tool_result").map(({ custom_tool_use_id }) => custom_tool_use_id),
      ];
      expect(answered.toSorted(), label).toEqual(uses.toSorted());
      for (const id of uses) {
        expect(rig.server.runs.get(`${session.id}/${id}`) ?? 0, label).toBeLessThanOrEqual(1);
      }
    }
  }, 400_000);
});
