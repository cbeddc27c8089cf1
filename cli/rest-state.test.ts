import { describe, expect, it } from "vitest";
import { outcomeIdOf } from "../kit/ids.ts";
import { RestState } from "./rest-state.ts";

/** Why a session rests after these events, each with the id `e<n>`; undefined while it goes on. */
function reasonAfter(events: readonly [type: string, payload?: object, threadId?: string][]) {
  const state = new RestState();
  for (const [index, [type, payload = {}, threadId = ""]] of events.entries()) {
    state.take({ id: `e${index + 1}`, type, payload: JSON.stringify(payload), threadId });
  }
  return state.reason;
}

const running: [string] = ["session.status_running"];
const idle = (type: string, more: object = {}): [string, object] => [
  "session.status_idle",
  { stop_reason: { type }, ...more },
];

describe("a session that makes threads", () => {
  it("does not rest while it waits for them, whatever they do", () => {
    expect(reasonAfter([running, idle("waiting_for_threads")])).toBeUndefined();
    const shown: [string, object, string] = ["session.thread_status_idle", {}, "sthr_1"];
    expect(reasonAfter([running, idle("waiting_for_threads"), shown])).toBeUndefined();
    expect(reasonAfter([running, idle("waiting_for_threads"), running, idle("end_turn")])).toBe("end_turn");
  });

  it("goes on with what a thread says, unless it was stopped", () => {
    const said: [string] = ["agent.thread_message_received"];
    expect(reasonAfter([running, idle("end_turn"), said])).toBeUndefined();
    expect(reasonAfter([running, said, idle("end_turn", { keeps_queued: true })])).toBe("end_turn");
    const consumed: [string, object] = ["brain.inputs_consumed", { event_ids: ["e2"] }];
    expect(reasonAfter([running, said, consumed, idle("end_turn")])).toBe("end_turn");
  });

  it("rests once it was stopped, whatever threads say after that, until somebody has a word for it", () => {
    const said = (more = {}): [string, object] => ["agent.thread_message_received", more];
    const stop: [string, object] = ["user.interrupt", { keeps_queued: true }];
    const taken: [string, object] = ["brain.inputs_consumed", { event_ids: ["e3"] }];
    const stopped = idle("end_turn", { keeps_queued: true });
    expect(reasonAfter([running, stopped, said()])).toBe("end_turn");
    expect(reasonAfter([running, stopped, said({ from_parent: true })])).toBeUndefined();
    expect(reasonAfter([running, stopped, said(), ["user.message"]])).toBeUndefined();
    // It rested already, so no idle event tells of it.
    expect(reasonAfter([running, idle("end_turn"), stop])).toBeUndefined();
    expect(reasonAfter([running, idle("end_turn"), stop, taken, said()])).toBe("end_turn");
  });

  it("rests when the budget is spent, with whatever waits", () => {
    expect(reasonAfter([["user.message"], idle("budget_reached")])).toBe("budget_reached");
  });
});

describe("a session with an outcome", () => {
  it("does not rest while the outcome waits for a brain, and does once that was interrupted", () => {
    const defined: [string] = ["user.define_outcome"];
    const ended: [string, object] = ["span.outcome_evaluation_end", { outcome_id: outcomeIdOf("e3") }];
    expect(reasonAfter([running, idle("end_turn"), defined])).toBeUndefined();
    expect(reasonAfter([running, idle("end_turn"), defined, ended])).toBe("end_turn");
  });
});

describe("a session in a self-hosted environment", () => {
  const asks = (ids: string[], ofWorkers: string[]): [string, object] => [
    "session.status_idle",
    { stop_reason: { type: "requires_action", event_ids: ids }, worker_calls: ofWorkers },
  ];

  it("does not rest while only workers are waited for, and waits for a client where one has to say something", () => {
    expect(reasonAfter([running, asks(["e9"], ["e9"])])).toBeUndefined();
    expect(reasonAfter([running, asks(["e8", "e9"], ["e9"])])).toBe("requires_action");
  });
});
