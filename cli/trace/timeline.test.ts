import { describe, expect, test } from "vitest";
import { drawTimeline, duration } from "./draw-timeline.ts";
import { type LogEvent, timeByPart, timelineOf } from "./timeline.ts";

const TRACE = "4bf92f3577b34da6a3ce929d0e0e4736";
const SAID = "marzipan";

/** Events of these types and payloads, each so many milliseconds after the one before. */
function log(...events: readonly [afterMs: number, type: string, payload?: object][]): LogEvent[] {
  let atMs = 1_000_000;
  return events.map(([afterMs, type, payload = {}], index) => {
    atMs += afterMs;
    return { position: index + 1, id: `sevt_${index + 1}`, type, atMs, payload: JSON.stringify(payload) };
  });
}

const idle = (type: string): [number, string, object] => [
  0,
  "session.status_idle",
  { stop_reason: { type } },
];

const ONE_CALL = log(
  [0, "user.message", { content: [{ type: "text", text: SAID }] }],
  [12, "session.status_running"],
  [0, "brain.inputs_consumed", { event_ids: ["sevt_1"], turn: 1, trace_id: TRACE }],
  [0, "span.model_request_start", { model: "claude-x", turn: 1 }],
  [800, "agent.tool_use", { name: "bash", input: { command: SAID }, hand: "" }],
  [0, "span.model_request_end", { model_request_start_id: "sevt_4", is_error: false }],
  [50, "hand.provisioned", { driver: "process" }],
  [
    2_000,
    "agent.tool_result",
    { tool_use_id: "sevt_5", content: [{ type: "text", text: SAID }], is_error: false },
  ],
  [1_500, "span.model_request_start", { model: "claude-x", turn: 1 }],
  [400, "agent.message", { content: [{ type: "text", text: SAID }] }],
  [0, "span.model_request_end", { model_request_start_id: "sevt_9", is_error: false }],
  idle("end_turn"),
);

describe("a session's timeline", () => {
  test("tells what of an MCP call was the proxy's, where the result says how long the MCP server had it", () => {
    const result = { mcp_tool_use_id: "sevt_2", content: [], is_error: false };
    const partsOf = (more: object) =>
      timelineOf(
        log(
          [0, "user.message"],
          [10, "agent.mcp_tool_use", { name: "note", mcp_server_name: "notes", input: {} }],
          [100, "agent.mcp_tool_result", { ...result, ...more }],
        ),
      )
        .steps.filter(({ from }) => from === 2)
        .map(({ part, startMs, endMs = Number.NaN }) => [part, endMs - startMs]);
    expect(partsOf({ upstream_ms: 70 })).toEqual([
      ["proxy", 30],
      ["upstream", 70],
    ]);
    expect(partsOf({})).toEqual([["upstream", 100]]);
    // Two clocks: what cannot be is cut.
    expect(partsOf({ upstream_ms: 5_000 })).toEqual([
      ["proxy", 0],
      ["upstream", 100],
    ]);
  });

  test("has a step for the judging of calls, apart from the answer that holds them", () => {
    const { steps } = timelineOf(
      log(
        [0, "span.model_request_start", { model: "claude-x", turn: 1 }],
        [700, "brain.judging_began", { model: "claude-y", model_request_start_id: "sevt_1" }],
        [200, "brain.call_judged", { tool_use_id: "sevt_4" }],
        [0, "agent.tool_use", { name: "bash", input: {}, evaluated_permission: "ask" }],
        [0, "span.model_request_end", { model_request_start_id: "sevt_1", is_error: false }],
      ),
    );
    const ofModels = steps.filter(({ part }) => part === "model");
    expect(ofModels.map(({ what, startMs, endMs = Number.NaN }) => [what, endMs - startMs])).toEqual([
      ["claude-x", 700],
      ["claude-y judges calls", 200],
    ]);
  });

  test("has a step for what each part did, and the gap where nothing happened", () => {
    const { turns, steps, gaps } = timelineOf(ONE_CALL);
    expect(turns).toMatchObject([{ turn: 1, traceId: TRACE, stopReason: "end_turn" }]);
    const shown = steps.map(({ part, what, startMs, endMs }) => [
      part,
      what,
      (endMs ?? Number.NaN) - startMs,
    ]);
    expect(shown).toEqual([
      ["client", "user.message", 0],
      ["harness", "waits for a brain", 12],
      ["model", "claude-x", 800],
      ["hand_agent", "makes a hand (process)", 50],
      ["sandbox", "bash", 2_000],
      ["model", "claude-x", 400],
      ["client", "at rest", Number.NaN],
    ]);
    expect(gaps.map(({ startMs, endMs, to, part }) => [endMs - startMs, to, part])).toEqual([
      [1_500, 9, "harness"],
    ]);
  });

  test("counts time that a part spends on two things at once once", () => {
    const at = (part: "model" | "sandbox", startMs: number, endMs: number) => ({
      part,
      what: "x",
      startMs,
      endMs,
      from: 1,
      to: 2,
      turn: 1,
    });
    const steps = [at("sandbox", 0, 100), at("sandbox", 50, 150), at("sandbox", 60, 70), at("model", 0, 20)];
    expect(timeByPart(steps, 200)).toEqual([
      ["sandbox", 150],
      ["model", 20],
    ]);
  });

  test("names the part and the reason of what failed, wherever the log says it", () => {
    const { steps } = timelineOf(
      log(
        [0, "user.message"],
        [0, "brain.inputs_consumed", { event_ids: ["sevt_1"], turn: 1 }],
        [0, "span.model_request_start", { model: "m" }],
        [
          5,
          "span.model_request_end",
          {
            model_request_start_id: "sevt_3",
            is_error: true,
            failure: { part: "model", reason: "MODEL_OVERLOADED" },
          },
        ],
        [
          0,
          "session.error",
          { error: { part: "model", reason: "MODEL_OVERLOADED", retry_status: { type: "retrying" } } },
        ],
        [0, "session.status_rescheduled", { reason: { part: "model", reason: "MODEL_OVERLOADED" } }],
        [900, "span.model_request_start", { model: "m" }],
        [
          5,
          "span.model_request_end",
          {
            model_request_start_id: "sevt_7",
            is_error: true,
            failure: { part: "harness", reason: "HARNESS_GONE" },
          },
        ],
        [0, "agent.tool_use", { name: "bash" }],
        [
          5,
          "agent.tool_result",
          {
            tool_use_id: "sevt_9",
            is_error: true,
            failure: { part: "hand_agent", reason: "OUTCOME_UNKNOWN" },
          },
        ],
        [0, "hand.lost", { failure: { part: "sandbox", reason: "WORKSPACE_LOST" } }],
        [
          0,
          "session.error",
          { error: { part: "model", reason: "TOO_MANY_ROUNDS", retry_status: { type: "exhausted" } } },
        ],
      ),
    );
    const failures = steps.flatMap(({ what, failure }) =>
      failure === undefined ? [] : [`${what}: ${failure.part} ${failure.reason}`],
    );
    expect(failures).toEqual([
      "m: model MODEL_OVERLOADED",
      "m: harness HARNESS_GONE",
      "bash: hand_agent OUTCOME_UNKNOWN",
      "hand lost: sandbox WORKSPACE_LOST",
      "given up: model TOO_MANY_ROUNDS",
    ]);
    expect(steps.find(({ what }) => what === "waits to try again")).toMatchObject({ part: "harness", to: 7 });
  });

  test("shows time that passed for a client's answer as the client's", () => {
    const { steps, gaps } = timelineOf(
      log(
        [0, "user.message"],
        [0, "brain.inputs_consumed", { event_ids: ["sevt_1"], turn: 1 }],
        [0, "agent.tool_use", { name: "bash", evaluated_permission: "ask" }],
        idle("requires_action"),
        [60_000, "user.tool_confirmation", { tool_use_id: "sevt_3", result: "allow" }],
        [20, "agent.tool_result", { tool_use_id: "sevt_3", is_error: false }],
      ),
    );
    expect(steps.find(({ what }) => what === "answer awaited")).toMatchObject({
      part: "client",
      from: 4,
      to: 5,
    });
    expect(steps.find(({ what }) => what === "bash")).toMatchObject({ from: 5, to: 6 });
    expect(gaps).toEqual([]);
  });

  test("survives payloads that say nothing, logs that begin in the middle, and steps that go on", () => {
    const { steps } = timelineOf([
      ...log([0, "agent.tool_result", { tool_use_id: "sevt_gone" }], [0, "span.model_request_end"]),
      { position: 3, id: "sevt_3", type: "session.error", atMs: 1_000_001, payload: "" },
      { position: 4, id: "sevt_4", type: "agent.tool_use", atMs: 1_000_002, payload: "[]" },
    ]);
    expect(steps).toMatchObject([
      { what: "trouble", failure: { part: "server", reason: "UNKNOWN" } },
      { what: "tool", part: "sandbox", endMs: undefined },
    ]);
    expect(timelineOf([])).toMatchObject({ events: 0, steps: [], gaps: [] });
  });
});

describe("its drawing", () => {
  test("has a line a step, with bars to scale, durations, positions, and where the time went", () => {
    expect(drawTimeline("sesn_1", timelineOf(ONE_CALL)).split("\n")).toEqual([
      "sesn_1: 1 turn, 12 events in 4.76 s",
      "",
      `turn 1  trace ${TRACE}  4.75 s, end turn`,
      "     0 ms            client     |                         user.message                 #1",
      "     0 ms     12 ms  harness    █                         waits for a brain            #1–#3",
      "    12 ms    800 ms  model      ████                      claude-x                     #4–#6",
      "   812 ms     50 ms  hand agent     █                     makes a hand (process)       #5–#7",
      "   862 ms    2.00 s  sandbox        ██████████            bash                         #5–#8",
      "   2.86 s    1.50 s                           ········    nothing, until the harness goes on at #9",
      "   4.36 s    400 ms  model                           ███  claude-x                     #9–#11",
      "   4.76 s  at rest",
      "",
      "time: sandbox 2.00 s, model 1.20 s, hand agent 50 ms, harness 12 ms, nothing 1.50 s",
      "no failures",
    ]);
  });

  test("says nothing of what was said unless it is asked to", () => {
    const timeline = timelineOf(ONE_CALL);
    expect(drawTimeline("sesn_1", timeline)).not.toContain(SAID);
    const payloads = new Map(ONE_CALL.map(({ position, payload }) => [position, payload]));
    expect(drawTimeline("sesn_1", timeline, { payloads })).toContain(SAID);
  });

  test("shows no name of a tool or model that is none", () => {
    const events = log(
      [0, "agent.tool_use", { name: `${SAID} with blanks` }],
      [0, "span.model_request_start", { model: `${SAID}\n` }],
      [0, "session.error", { error: { part: SAID, reason: SAID } }],
      idle(`${SAID} `),
    );
    expect(drawTimeline("sesn_1", timelineOf(events))).not.toContain(SAID);
  });

  test("writes durations that can be compared at a glance", () => {
    expect([0, 999, 1_000, 12_345, 61_000, 3_720_000].map(duration)).toEqual([
      "0 ms",
      "999 ms",
      "1.00 s",
      "12.3 s",
      "1 m 01 s",
      "1 h 02 m",
    ]);
  });
});
