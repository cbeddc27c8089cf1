import { describe, expect, test } from "vitest";
import { verdictsFor } from "./overdue-answers.ts";

const call = (waitedMs: number, terms: object, type = "agent.tool_use") => ({
  eventId: `sevt_${waitedMs}`,
  type,
  payload: JSON.stringify({ name: "bash", input: {}, ...terms }),
  waitedMs,
});
const said = (calls: ReturnType<typeof call>[]) =>
  verdictsFor({ calls }).events.map(({ type, payload }) => ({ type, ...JSON.parse(payload) }));

describe("a call that no client answers", () => {
  test("gets the verdict that it names once its time is over; by default it is denied", () => {
    const [denied, allowed] = said([
      call(1_000, { answer_timeout_ms: 1_000 }),
      call(5_000, { answer_timeout_ms: 1_000, timeout_verdict: "allow" }),
    ]);
    expect(denied).toEqual({
      type: "user.tool_confirmation",
      tool_use_id: "sevt_1000",
      result: "deny",
      deny_message: "Nobody answered within 1 s.",
      timed_out: true,
    });
    expect(allowed).toMatchObject({ tool_use_id: "sevt_5000", result: "allow", timed_out: true });
  });

  test("of a custom tool gets an error result", () => {
    expect(said([call(2_000, { answer_timeout_ms: 1_500 }, "agent.custom_tool_use")])).toMatchObject([
      { type: "user.custom_tool_result", custom_tool_use_id: "sevt_2000", is_error: true },
    ]);
  });

  test("waits for ever where its agent sets no time, and is looked at when the first of the others is due", () => {
    const calls = [
      call(99_000, {}),
      call(98_000, { answer_timeout_ms: 0 }),
      call(97_000, { answer_timeout_ms: "soon" }),
      call(600, { answer_timeout_ms: 1_000 }),
      call(500, { answer_timeout_ms: 1_000 }),
    ];
    expect(verdictsFor({ calls })).toEqual({ events: [], nextMs: 400 });
    expect(verdictsFor({ calls: calls.slice(0, 3) })).toEqual({ events: [], nextMs: undefined });
  });
});
