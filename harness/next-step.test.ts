import { describe, expect, it } from "vitest";
import { type ShortEvent, shortLog } from "../test/kit/short-log.ts";
import { nextStep } from "./next-step.ts";
import { applyEvent } from "./session-fold.ts";
import { newSessionState } from "./session-state.ts";

const SETTINGS = { takeQueuedEachStep: false, maxRounds: 10, maxCutOffs: 3, maxCompactions: 3 };

/** What comes next after these events; each is its type, payload and internal, and its id is e<position>. */
function stepAfter(events: readonly ShortEvent[], settings = SETTINGS) {
  const state = newSessionState();
  for (const event of shortLog(...events)) applyEvent(state, event);
  return nextStep(state, settings);
}

const message: [string] = ["user.message"];
const running: [string] = ["session.status_running"];
const start: [string] = ["span.model_request_start"];
const consumed = (...event_ids: string[]): [string, object] => [
  "brain.inputs_consumed",
  { event_ids, turn: 1 },
];
const end = (calls = 0, stop = "done"): [string, object, object] => [
  "span.model_request_end",
  { is_error: false },
  { v: 1, stop, calls },
];
const result = (tool_use_id: string): [string, object] => ["agent.tool_result", { tool_use_id }];
const died: [string, object] = ["span.model_request_end", { is_error: true }];
const call = (permission = "allow"): [string, object] => [
  "agent.tool_use",
  { name: "bash", input: {}, evaluated_permission: permission },
];
const idle = (type: string, more: object = {}): [string, object] => [
  "session.status_idle",
  { stop_reason: { type, ...more } },
];
const begun = [message, running, consumed("e1"), start];

describe("the next step", () => {
  it("is to rest in an empty log, and with nothing but a system message", () => {
    expect(stepAfter([])).toEqual({ kind: "rest" });
    expect(stepAfter([["system.message"]])).toEqual({ kind: "rest" });
  });

  it("is to rest in a session that ended, and to go on in its fork", () => {
    const ended: [string] = ["session.status_terminated"];
    expect(stepAfter([message, ended])).toEqual({ kind: "rest" });
    const forked: [string, object] = ["session.forked", { origin_session_id: "sesn_1", position: 2 }];
    expect(stepAfter([message, ended, forked])).toMatchObject({ kind: "ask", inputs: [{ eventId: "e1" }] });
  });

  it("is to ask the model with all that waits, as a new turn", () => {
    const step = stepAfter([message, ["system.message"], message]);
    expect(step).toMatchObject({
      kind: "ask",
      turn: 1,
      inputs: [{ eventId: "e1" }, { eventId: "e2" }, { eventId: "e3" }],
    });
  });

  it("is to end the request of a holder that is gone, then to ask again without taking anything twice", () => {
    expect(stepAfter(begun)).toEqual({ kind: "close_span", spanId: "e4" });
    expect(stepAfter([...begun, died])).toMatchObject({ kind: "ask", turn: 1, inputs: [] });
  });

  it("is to run calls, then to ask with their results, then to end the turn", () => {
    const called = [...begun, call(), end(1)] as const;
    expect(stepAfter(called)).toEqual({ kind: "run_calls" });
    const answered = [...called, ["agent.tool_result", { tool_use_id: "e5" }]] as const;
    expect(stepAfter(answered as never)).toMatchObject({ kind: "ask", turn: 1 });
    expect(stepAfter([...answered, start, end()] as never)).toEqual({ kind: "end_turn", reason: "end_turn" });
    expect(stepAfter([...answered, start, end(), idle("end_turn")] as never)).toEqual({ kind: "rest" });
  });

  it("is the next turn instead of the end of this one when messages wait (L6)", () => {
    expect(stepAfter([...begun, message, end()])).toMatchObject({
      kind: "ask",
      turn: 2,
      inputs: [{ eventId: "e5" }],
    });
  });

  it("takes waiting messages along with results only where the agent wants that", () => {
    const log = [...begun, call(), end(1), message, ["agent.tool_result", { tool_use_id: "e5" }]] as never;
    expect(stepAfter(log)).toMatchObject({ kind: "ask", inputs: [] });
    expect(stepAfter(log, { ...SETTINGS, takeQueuedEachStep: true })).toMatchObject({
      inputs: [{ eventId: "e7" }],
    });
  });

  it("is to tell clients which calls wait for them, once, and again when fewer do", () => {
    const asked = [...begun, call("ask"), call("ask"), end(2)];
    expect(stepAfter(asked)).toEqual({
      kind: "await_others",
      callIds: ["e5", "e6"],
      waitIds: [],
      workerIds: [],
    });
    const told = [...asked, idle("requires_action", { event_ids: ["e5", "e6"] })];
    expect(stepAfter(told)).toEqual({ kind: "rest" });
    const allowed = [...told, ["user.tool_confirmation", { tool_use_id: "e5", result: "allow" }]] as never[];
    expect(stepAfter(allowed)).toEqual({ kind: "run_calls" });
    expect(stepAfter([...allowed, ["agent.tool_result", { tool_use_id: "e5" }] as never])).toEqual({
      kind: "await_others",
      callIds: ["e6"],
      waitIds: [],
      workerIds: [],
    });
  });

  it("leaves calls to the workers that they were offered to, and says which still wait when some have answered", () => {
    const asked = [...begun, call(), call(), end(2)];
    const ids = ["e5", "e6"];
    const waits = { stop_reason: { type: "requires_action", event_ids: ids }, worker_calls: ids };
    const told = [...asked, ["session.status_idle", waits]] as never[];
    expect(stepAfter(told)).toEqual({ kind: "rest" });
    expect(stepAfter([...told, message as never])).toEqual({ kind: "rest" });
    const answered = [...told, ["user.tool_result", { tool_use_id: "e5" }]] as never[];
    expect(stepAfter(answered)).toEqual({
      kind: "await_others",
      callIds: ["e6"],
      waitIds: [],
      workerIds: ["e6"],
    });
    expect(stepAfter([...answered, ["user.tool_result", { tool_use_id: "e6" }] as never])).toMatchObject({
      kind: "ask",
    });
    // Whoever takes the session while it works asks for them again, and hears that they wait.
    expect(stepAfter([...told, running as never])).toEqual({ kind: "run_calls" });
  });

  it("keeps messages queued while clients are waited for", () => {
    const told = [...begun, call("ask"), end(1), idle("requires_action", { event_ids: ["e5"] }), message];
    expect(stepAfter(told)).toEqual({ kind: "rest" });
  });

  it("is to interrupt before anything else but the end of a dead request", () => {
    expect(stepAfter([...begun, ["user.interrupt"]])).toMatchObject({ kind: "close_span" });
    expect(stepAfter([...begun, ["user.interrupt"], died])).toMatchObject({ kind: "interrupt" });
    expect(stepAfter([...begun, call(), end(1), ["user.interrupt"]])).toMatchObject({ kind: "interrupt" });
  });

  it("after retries are exhausted is to rest until a new message comes, which takes the old ones along", () => {
    const given = [...begun, message, died, idle("retries_exhausted")];
    expect(stepAfter(given)).toEqual({ kind: "rest" });
    expect(stepAfter([...given, message])).toMatchObject({
      kind: "ask",
      turn: 2,
      inputs: [{ eventId: "e5" }, { eventId: "e8" }],
    });
  });

  it("is to give up a turn of too many rounds, and too many answers that were cut inside a call", () => {
    const round = (n: number) =>
      [call(), end(1), ["agent.tool_result", { tool_use_id: `e${5 + 4 * n}` }], start] as never[];
    const rounds = [...begun, ...[0, 1].flatMap(round)].slice(0, -1);
    expect(stepAfter(rounds, { ...SETTINGS, maxRounds: 2 })).toEqual({ kind: "give_up", why: "rounds" });
    const cut = (n: number) =>
      [
        call("deny"),
        end(1, "cut_in_call"),
        ["agent.tool_result", { tool_use_id: `e${5 + 4 * n}` }],
        start,
      ] as never[];
    const cuts = [...begun, ...[0, 1, 2].flatMap(cut)].slice(0, -1);
    expect(stepAfter(cuts)).toEqual({ kind: "give_up", why: "cut_offs" });
  });

  it("ignores events of threads, and types that it does not know", () => {
    expect(stepAfter([["acme.created"], ["session.updated"]])).toEqual({ kind: "rest" });
  });

  it("waits for threads without anybody holding the session, and lets clients answer meanwhile", () => {
    const waits = (type: string, ids: string[], waiting: string[]): [string, object] => [
      "session.status_idle",
      { stop_reason: { type, event_ids: ids }, waiting_calls: waiting },
    ];
    const asked = [message, running, consumed("e1"), start, call(), call("ask"), end(2)] as const;
    const both = [...asked, waits("requires_action", ["e6"], ["e5"])] as const;
    expect(stepAfter([...both]).kind).toBe("rest");
    // A message has to wait; the word on the other call is acted on.
    expect(stepAfter([...both, message]).kind).toBe("rest");
    const allowed: [string, object] = ["user.tool_confirmation", { tool_use_id: "e6", result: "allow" }];
    expect(stepAfter([...both, allowed]).kind).toBe("run_calls");
    const answered: [string, object] = ["agent.tool_result", { tool_use_id: "e6" }];
    expect(stepAfter([...both, answered])).toEqual({
      kind: "await_others",
      callIds: [],
      waitIds: ["e5"],
      workerIds: [],
    });
    const alone = [...both, answered, waits("waiting_for_threads", ["e5"], ["e5"])] as const;
    expect(stepAfter([...alone]).kind).toBe("rest");
    expect(stepAfter([...alone, ["agent.tool_result", { tool_use_id: "e5" }]]).kind).toBe("ask");
    // Whoever holds it again for another reason looks whether the server still has the call.
    expect(stepAfter([...alone, running]).kind).toBe("run_calls");
  });

  it("takes what threads say into the running turn, and starts one for it", () => {
    const said: [string, object] = ["agent.thread_message_received", { content: [] }];
    const inTurn = stepAfter([
      message,
      running,
      consumed("e1"),
      start,
      call(),
      end(1),
      said,
      message,
      result("e5"),
    ]);
    expect(inTurn).toMatchObject({ kind: "ask", turn: 1, inputs: [{ eventId: "e7" }] });
    const idle: [string, object] = ["session.status_idle", { stop_reason: { type: "end_turn" } }];
    expect(stepAfter([idle, said])).toMatchObject({ kind: "ask", inputs: [{ eventId: "e2" }] });
  });

  it("does nothing after a stop until a user, or who made the thread, says something", () => {
    const said = (more = {}): [string, object] => ["agent.thread_message_received", { content: [], ...more }];
    const stopped: [string, object] = [
      "session.status_idle",
      { stop_reason: { type: "end_turn" }, keeps_queued: true },
    ];
    expect(stepAfter([message, stopped]).kind).toBe("rest");
    expect(stepAfter([message, stopped, said()]).kind).toBe("rest");
    expect(stepAfter([message, stopped, said({ from_parent: true })]).kind).toBe("ask");
    expect(stepAfter([message, stopped, said(), message])).toMatchObject({
      kind: "ask",
      inputs: [{ eventId: "e1" }, { eventId: "e3" }, { eventId: "e4" }],
    });
  });

  it("holds a session that rested already when it was stopped: what a thread had said before may come after", () => {
    const said: [string, object] = ["agent.thread_message_received", { content: [] }];
    const rested = [...begun, end(), idle("end_turn")] as const;
    const stop: [string, object] = ["user.interrupt", { keeps_queued: true }];
    const taken = consumed("e7");
    expect(stepAfter([...rested, stop, taken, said]).kind).toBe("rest");
    expect(stepAfter([...rested, stop, said, taken]).kind).toBe("rest");
    expect(stepAfter([...rested, stop, taken, said, message])).toMatchObject({
      kind: "ask",
      inputs: [{ eventId: "e9" }, { eventId: "e10" }],
    });
    expect(stepAfter([...rested, ["user.interrupt", {}], taken, said]).kind).toBe("ask");
  });

  it("takes what a client says after a stop for a new word, also when it comes before the stop was heard", () => {
    const stop: [string, object] = ["user.interrupt", { keeps_queued: true }];
    const stopped: [string, object] = [
      "session.status_idle",
      { stop_reason: { type: "end_turn" }, keeps_queued: true },
    ];
    const heard: [string, object] = ["agent.thread_message_received", { content: [] }];
    expect(stepAfter([message, stop, message, consumed("e2"), stopped])).toMatchObject({
      kind: "ask",
      inputs: [{ eventId: "e1" }, { eventId: "e3" }],
    });
    expect(stepAfter([message, stop, heard, consumed("e2"), stopped]).kind).toBe("rest");
    expect(stepAfter([message, stop, message, stop, consumed("e2", "e4"), stopped]).kind).toBe("rest");
  });

  it("rests while the budget is spent, and goes on with the same turn once it is changed", () => {
    const spent: [string, object] = ["session.status_idle", { stop_reason: { type: "budget_reached" } }];
    const mid = [message, running, consumed("e1"), start, call(), end(1), result("e5"), spent] as const;
    expect(stepAfter([...mid]).kind).toBe("rest");
    expect(stepAfter([...mid, ["session.updated", { title: "x" }]]).kind).toBe("rest");
    expect(stepAfter([...mid, ["session.updated", { budget: {} }]])).toMatchObject({ kind: "ask", turn: 1 });
    // Whether it still is spent is for the server to say.
    expect(stepAfter([...mid, message])).toMatchObject({ kind: "ask", turn: 1 });
    expect(stepAfter([message, spent]).kind).toBe("rest");
    expect(stepAfter([message, spent, ["user.interrupt"]]).kind).toBe("interrupt");
  });

  it("is to have work judged at the end of the turn, and not while threads work that the session rests for", () => {
    const defined: [string, object] = ["user.define_outcome", { description: "d", rubric: {} }];
    const worked = [defined, running, consumed("e1"), start, end()];
    const judge = { kind: "begin_evaluation", outcome: { eventId: "e1" } };
    expect(stepAfter(worked)).toMatchObject(judge);
    const waiting = [...worked, idle("waiting_for_threads", { event_ids: ["e1"] })];
    expect(stepAfter(waiting)).toEqual({ kind: "rest" });
    expect(stepAfter([...waiting, ["brain.threads_rested"]])).toMatchObject(judge);
    expect(stepAfter([...waiting, message])).toMatchObject({ kind: "ask", turn: 2 });
    expect(stepAfter([...waiting, message, running, consumed("e7"), start, end()])).toMatchObject(judge);
    // Whoever raises the budget has the rest looked at anew.
    const spent = [...waiting, idle("budget_reached")];
    expect(stepAfter(spent)).toEqual({ kind: "rest" });
    expect(stepAfter([...spent, ["session.updated", { budget: {} }]])).toMatchObject(judge);
  });
});
