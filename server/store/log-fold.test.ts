import { expect, test } from "vitest";
import { LogFold } from "./log-fold.ts";

/** Folds events a second apart. */
function folded(...events: [type: string, payload?: object][]): LogFold {
  const fold = new LogFold();
  for (const [index, [type, payload = {}]] of events.entries()) {
    const position = index + 1;
    fold.add({ type, payload: JSON.stringify(payload), position, createdAt: new Date(position * 1000) });
  }
  return fold;
}

const usage = { model_usage: { input_tokens: 3, output_tokens: 2, cache_read_input_tokens: 1 } };

test("status, time and usage are what appending the events would have left", () => {
  const fold = folded(
    ["user.message"],
    ["session.status_running"],
    ["span.model_request_end", usage],
    ["session.status_running"],
    ["session.status_rescheduled"],
    ["session.status_running"],
    ["span.model_request_end", usage],
    ["session.status_idle", { stop_reason: { type: "end_turn" } }],
  );
  expect(fold).toMatchObject({ status: "idle", stopReason: "end_turn", activeMs: 3_000 + 2_000 });
  expect(fold).toMatchObject({ modelRequests: 2, tokens: [6, 4, 2, 0] });
});

test("what models used that judged calls is counted with the rest, and calls that none was asked about are not", () => {
  const verdict = { tool_use_id: "sevt_1", evaluated_permission: { type: "allow" } };
  const fold = folded(
    ["brain.call_judged", { ...verdict, ...usage, list_cost: { nano_usd: 7 } }],
    ["brain.call_judged", { ...verdict, ...usage, list_cost: null }],
    ["brain.call_judged", { ...verdict, why: "too large" }],
  );
  expect(fold).toMatchObject({
    modelRequests: 2,
    tokens: [6, 4, 2, 0],
    listCostNanoUsd: 7,
    unpricedRequests: 1,
  });
});

test("what a grader used counts as one request, and one that nobody answered as none", () => {
  const tokens = { input_tokens: 7, output_tokens: 1 };
  const fold = folded(
    ["span.outcome_evaluation_end", { result: "satisfied", usage: tokens, list_cost: { nano_usd: 5 } }],
    ["span.outcome_evaluation_end", { result: "interrupted", usage: { input_tokens: 0 } }],
    ["span.outcome_evaluation_end", { result: "failed", usage: tokens, list_cost: null }],
  );
  expect(fold).toMatchObject({ modelRequests: 2, tokens: [14, 2, 0, 0] });
  expect(fold).toMatchObject({ listCostNanoUsd: 5, unpricedRequests: 1 });
});

test("searches of the web are counted, and cost what their results say; reading pages is free", () => {
  const searched = { server_tool_use: { web_search_requests: 1 }, list_cost: { nano_usd: 10 } };
  const fold = folded(
    ["agent.tool_result", { tool_use_id: "sevt_1", ...searched }],
    ["agent.tool_result", { tool_use_id: "sevt_2" }],
    ["agent.tool_result", { tool_use_id: "sevt_3", ...searched }],
  );
  expect(fold).toMatchObject({ webSearchRequests: 2, listCostNanoUsd: 20, modelRequests: 0 });
});

test("a fork begins at rest and owes nothing of what its origin had used", () => {
  const fold = folded(
    ["session.status_running"],
    ["span.model_request_end", usage],
    ["session.forked", { origin_session_id: "sesn_1", position: 2 }],
  );
  expect(fold).toMatchObject({
    status: "idle",
    stopReason: "",
    activeMs: 0,
    modelRequests: 0,
    tokens: [0, 0, 0, 0],
  });
});

test("an input counts as taken in by the first event that says so, and a result names its call", () => {
  const fold = folded(
    ["brain.inputs_consumed", { event_ids: ["sevt_1", "sevt_2"] }],
    ["brain.inputs_consumed", { event_ids: ["sevt_2", "sevt_3"] }],
  );
  expect([...fold.consumed]).toEqual([
    ["sevt_1", 1],
    ["sevt_2", 1],
    ["sevt_3", 2],
  ]);
  const result = {
    type: "agent.tool_result",
    payload: '{"tool_use_id":"sevt_1"}',
    position: 3,
    createdAt: new Date(),
  };
  expect(fold.add(result)).toEqual({ answers: "sevt_1" });
});
