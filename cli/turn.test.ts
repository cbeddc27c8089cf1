import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { WatchEventsResponseSchema } from "../proto/gen/tendon/v1/session_service_pb.js";
import { followTurn } from "./turn.ts";
import type { WatchOptions } from "./watch-session.ts";

function sessionsWith(...events: [type: string, payload: object][]): WatchOptions["sessions"] {
  async function* play() {
    for (const [index, [type, payload]] of events.entries()) {
      const value = {
        id: `sevt_${index}`,
        position: BigInt(index + 1),
        type,
        payload: JSON.stringify(payload),
      };
      yield create(WatchEventsResponseSchema, { kind: { case: "event", value } });
    }
  }
  return {
    watchEvents: () => Object.assign(play(), { cancel: () => {} }),
  } as unknown as WatchOptions["sessions"];
}

const idle = (type: string): [string, object] => ["session.status_idle", { stop_reason: { type } }];
const consumed = (...ids: string[]): [string, object] => [
  "brain.inputs_consumed",
  { event_ids: ids, turn: 1 },
];

test("the end of an earlier turn does not count while the message is queued (L6)", async () => {
  const sessions = sessionsWith(idle("end_turn"), consumed("sevt_mine"), idle("end_turn"));
  const end = await followTurn({ sessions, sessionId: "s", after: 0n, sent: ["sevt_mine"] }, () => {});
  expect(end).toEqual({ reason: "end_turn", position: 3n });
});

test("a session that is given up ends the turn whatever is queued", async () => {
  const sessions = sessionsWith(idle("retries_exhausted"));
  const end = await followTurn({ sessions, sessionId: "s", after: 0n, sent: ["sevt_mine"] }, () => {});
  expect(end.reason).toBe("retries_exhausted");
});

test("a terminated session ends the turn", async () => {
  const sessions = sessionsWith(["session.status_terminated", {}]);
  expect((await followTurn({ sessions, sessionId: "s", after: 0n }, () => {})).reason).toBe("terminated");
});
