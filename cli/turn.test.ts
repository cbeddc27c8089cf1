import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { type Event, EventSchema } from "../proto/gen/tendon/v1/event_pb.js";
import {
  type GetEventsRequest,
  GetEventsResponseSchema,
  type WatchEventsRequest,
  WatchEventsResponseSchema,
} from "../proto/gen/tendon/v1/session_service_pb.js";
import { followTurn } from "./turn.ts";

type Sessions = Parameters<typeof followTurn>[0]["sessions"];
type Step = readonly [type: string, payload: object];

/** A log of which `headAtFirst` events are there when the follower comes; event n has the id `sevt_n`. */
function sessionsWith(steps: readonly Step[], headAtFirst = steps.length): Sessions {
  const events = steps.map(([type, payload], index) =>
    create(EventSchema, {
      id: `sevt_${index + 1}`,
      position: BigInt(index + 1),
      type,
      payload: JSON.stringify(payload),
    }),
  );
  async function* play(after: bigint) {
    for (const value of events.slice(Number(after)))
      yield create(WatchEventsResponseSchema, { kind: { case: "event", value } });
    throw new Error("the follower goes on behind the end of the log");
  }
  const isAskedFor = ({ beforePosition, types }: Partial<GetEventsRequest>, { position, type }: Event) =>
    position <= BigInt(headAtFirst) &&
    (beforePosition === 0n || position < beforePosition!) &&
    types!.includes(type);
  return {
    watchEvents: ({ afterPosition }: Partial<WatchEventsRequest>) =>
      Object.assign(play(afterPosition!), { cancel: () => {} }),
    getEvents: async (request: Partial<GetEventsRequest>) =>
      create(GetEventsResponseSchema, {
        events: events.filter((event) => isAskedFor(request, event)).reverse(),
        head: BigInt(headAtFirst),
      }),
  } as unknown as Sessions;
}

const follow = (sessions: Sessions, after: bigint) =>
  followTurn({ sessions, sessionId: "s", after }, () => {});

const message: Step = ["user.message", { content: [] }];
const interrupt: Step = ["user.interrupt", {}];
const running: Step = ["session.status_running", {}];
const other: Step = ["acme.noted", {}];
const idle = (type: string, ...ids: string[]): Step => [
  "session.status_idle",
  { stop_reason: { type, event_ids: ids } },
];
const consumed = (...ids: string[]): Step => ["brain.inputs_consumed", { event_ids: ids, turn: 1 }];

const twoTurns: Step[] = [
  message,
  running,
  consumed("sevt_1"),
  message, // 4: queued while the first turn runs
  idle("end_turn"), // 5
  running,
  consumed("sevt_4"),
  idle("end_turn"), // 8
];

test.each([
  ["of a session whose log is all there", 0n, 8],
  ["of a session that is made", 0n, 1],
  ["behind the queued message", 4n, 4],
  ["behind the first turn", 5n, 5],
  ["behind the first turn, later", 5n, 8],
])(
  "the end of the first turn does not count while a second message is queued: %s (L6)",
  async (_, after, head) => {
    expect(await follow(sessionsWith(twoTurns, head), after)).toEqual({ reason: "end_turn", position: 8n });
  },
);

test("an old end of a turn does not count while there is more history", async () => {
  const log = [
    ...twoTurns.slice(0, 3),
    idle("end_turn"),
    other,
    message,
    running,
    consumed("sevt_6"),
    idle("refusal"),
  ];
  expect(await follow(sessionsWith(log), 0n)).toEqual({ reason: "refusal", position: 9n });
});

test("what others append to a session that rests wakes nobody", async () => {
  const log = [message, running, consumed("sevt_1"), idle("end_turn"), other];
  expect(await follow(sessionsWith(log), 0n)).toEqual({ reason: "end_turn", position: 5n });
});

test.each([0n, 5n, -1n])("a session that rests already is not waited for (after %s)", async (after) => {
  const log = [message, running, consumed("sevt_1"), idle("end_turn"), other];
  expect(await follow(sessionsWith(log), after)).toEqual({ reason: "end_turn", position: 5n });
});

test("retries that are exhausted end it, whatever is queued, until the next message", async () => {
  const log = [message, running, message, idle("retries_exhausted")];
  expect((await follow(sessionsWith(log), 0n)).reason).toBe("retries_exhausted");
  const more = [...log, message, running, consumed("sevt_1", "sevt_3", "sevt_5"), idle("end_turn")];
  expect(await follow(sessionsWith(more, 5), 5n)).toEqual({ reason: "end_turn", position: 8n });
});

test("a session that waits for clients rests until one of the calls is answered", async () => {
  const log = [message, running, consumed("sevt_1"), idle("requires_action", "sevt_call"), message];
  expect(await follow(sessionsWith(log), 0n)).toEqual({ reason: "requires_action", position: 5n });
  const answer: Step = ["user.tool_confirmation", { tool_use_id: "sevt_call", result: "allow" }];
  const more = [...log, answer, running, consumed("sevt_5", "sevt_6"), idle("end_turn")];
  expect(await follow(sessionsWith(more, 6), 6n)).toEqual({ reason: "end_turn", position: 9n });
});

test("the checkpoint of the rest is waited for and shown, and nothing after it", async () => {
  const log = [message, running, consumed("sevt_1"), idle("end_turn")];
  const checkpoint = (position: bigint) =>
    create(WatchEventsResponseSchema, {
      kind: { case: "checkpoint", value: { sessionId: "s", position, hash: "" } },
    });
  for (const [before, after] of [
    [[], [checkpoint(2n), checkpoint(4n)]],
    [[checkpoint(4n)], []],
  ]) {
    const sessions = sessionsWith(log);
    async function* play() {
      yield* before!;
      for (const [index, [type, payload]] of log.entries()) {
        const event = {
          id: `sevt_${index + 1}`,
          position: BigInt(index + 1),
          type,
          payload: JSON.stringify(payload),
        };
        yield create(WatchEventsResponseSchema, { kind: { case: "event", value: event } });
      }
      yield* after!;
      throw new Error("the follower goes on behind the checkpoint");
    }
    const watchEvents = () => Object.assign(play(), { cancel: () => {} });
    const shown: string[] = [];
    const end = await followTurn(
      {
        sessions: { ...sessions, watchEvents } as unknown as Sessions,
        sessionId: "s",
        after: 0n,
        checkpointWithinMs: 60_000,
      },
      (seen) =>
        shown.push(
          "checkpoint" in seen ? `checkpoint ${seen.checkpoint.position}` : "event" in seen ? "event" : "",
        ),
    );
    expect(end).toEqual({ reason: "end_turn", position: 4n });
    expect(shown).toContain("checkpoint 4");
    expect(shown.filter((one) => one === "event")).toHaveLength(4);
  }
});

test("a checkpoint that does not come is not waited for longer than told", async () => {
  const sessions = sessionsWith([message, running, consumed("sevt_1"), idle("end_turn")]);
  const { watchEvents } = sessions;
  const silent = (
    request: Parameters<Sessions["watchEvents"]>[0],
    { signal }: { signal?: AbortSignal } = {},
  ) => {
    async function* play() {
      let left = 4;
      for await (const one of watchEvents(request)) {
        yield one;
        left -= 1;
        if (left === 0) break;
      }
      await new Promise((_, reject) => signal!.addEventListener("abort", () => reject(signal!.reason)));
    }
    return Object.assign(play(), { cancel: () => {} });
  };
  const watched = { ...sessions, watchEvents: silent } as unknown as Sessions;
  const end = await followTurn(
    { sessions: watched, sessionId: "s", after: 0n, checkpointWithinMs: 20 },
    () => {},
  );
  expect(end).toEqual({ reason: "end_turn", position: 4n });
});

test("an interrupt has to be taken in too", async () => {
  const log = [message, running, consumed("sevt_1"), interrupt, idle("end_turn"), consumed("sevt_4")];
  expect(await follow(sessionsWith(log, 4), 4n)).toEqual({ reason: "end_turn", position: 6n });
});

test("a terminated session ends it", async () => {
  const log: Step[] = [message, ["session.status_terminated", {}]];
  expect((await follow(sessionsWith(log), 0n)).reason).toBe("terminated");
});
