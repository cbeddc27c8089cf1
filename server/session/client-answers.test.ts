import { describe, expect, test } from "vitest";
import type { ClientCall } from "../store/client-calls.ts";
import { repeatsOf, spokenOf } from "./client-answers.ts";

const event = (type: string, payload: object, id = "new") => ({
  id,
  type,
  threadId: "",
  payload: JSON.stringify(payload),
  internal: undefined,
});
const confirm = (result: string, more: object = {}, id = "new") =>
  event("user.tool_confirmation", { tool_use_id: "call", result, ...more }, id);
const answer = (text: string, id = "new") =>
  event("user.custom_tool_result", { custom_tool_use_id: "call", content: [{ type: "text", text }] }, id);
const answered = ({ type, payload }: ReturnType<typeof event>) => ({
  eventId: "old",
  position: 7,
  type,
  payload,
});
const call = (type: string, permission: string, more: Partial<ClientCall> = {}): ClientCall => ({
  eventId: "call",
  type,
  payload: JSON.stringify({ name: "bash", input: {}, evaluated_permission: permission }),
  result: undefined,
  confirmation: undefined,
  ...more,
});
const asks = (more: Partial<ClientCall> = {}) => call("agent.tool_use", "ask", more);

describe("a client's word on a call", () => {
  test("names calls once each, and nothing else names any", () => {
    const events = [confirm("allow"), answer("a"), event("user.message", { tool_use_id: "other" })];
    expect(spokenOf(events)).toEqual(["call"]);
  });

  test("is new when the call waits for it, or when nobody knows the call", () => {
    expect(repeatsOf([confirm("allow")], [asks()])).toEqual([undefined]);
    expect(repeatsOf([confirm("allow")], [])).toEqual([undefined]);
    expect(repeatsOf([answer("a")], [call("agent.custom_tool_use", "")])).toEqual([undefined]);
  });

  test("is a repeat when it stands already in the same words, whatever else its event holds", () => {
    const allowed = asks({ confirmation: answered(confirm("allow")), result: answered(answer("ran")) });
    expect(repeatsOf([confirm("allow", { deny_message: null, note: 1 })], [allowed])).toMatchObject([
      { eventId: "old", position: 7 },
    ]);
    const custom = call("agent.custom_tool_use", "", { result: answered(answer("a")) });
    expect(repeatsOf([answer("a")], [custom])).toMatchObject([{ eventId: "old" }]);
    // The same event once more is the log's to recognise.
    expect(repeatsOf([answer("a", "old")], [custom])).toEqual([undefined]);
    expect(repeatsOf([confirm("allow", {}, "old")], [allowed])).toEqual([undefined]);
  });

  test("is refused as a result of a call that the brain runs itself, and taken as a confirmation of one", () => {
    const payload = JSON.stringify({
      name: "hand_list",
      input: {},
      runs_in: "brain",
      evaluated_permission: "ask",
    });
    const own = asks({ payload });
    const result = event("user.tool_result", { tool_use_id: "call", content: [] });
    expect(() => repeatsOf([result], [own])).toThrow("the brain runs itself");
    expect(repeatsOf([result], [asks()])).toEqual([undefined]);
    expect(repeatsOf([confirm("allow")], [own])).toEqual([undefined]);
  });

  test("of a worker that comes too late is answered with the result that stands, whatever it says", () => {
    const standing = answered(
      event("user.tool_result", { tool_use_id: "call", content: [], is_error: true }),
    );
    const late = event("user.tool_result", { tool_use_id: "call", content: [], is_error: false });
    expect(repeatsOf([late], [asks({ result: standing })], true)).toEqual([standing]);
    expect(repeatsOf([late], [asks({ result: standing })])).toEqual([undefined]);
    expect(repeatsOf([late], [asks()], true)).toEqual([undefined]);
  });

  test("is refused when another one stands, or when the call is closed", () => {
    const denied = asks({ confirmation: answered(confirm("deny", { deny_message: "no" })) });
    for (const word of [confirm("allow"), confirm("deny"), confirm("deny", { deny_message: "never" })])
      expect(() => repeatsOf([word], [denied])).toThrow("another word");
    const closed = asks({ result: answered(answer("interrupted")) });
    expect(() => repeatsOf([confirm("allow")], [closed])).toThrow("has a result already");
  });

  test("is refused with its field when the call does not ask for such a word", () => {
    const wrong: [ReturnType<typeof event>, ClientCall][] = [
      [confirm("allow"), call("agent.tool_use", "allow")],
      [confirm("allow"), call("agent.tool_use", "deny")],
      [confirm("allow"), call("agent.custom_tool_use", "")],
      [answer("a"), asks()],
      [event("user.tool_result", { tool_use_id: "call" }), call("agent.custom_tool_use", "")],
    ];
    for (const [word, of] of wrong) expect(() => repeatsOf([word], [of])).toThrow(/^events\[0\]\.payload\./);
    expect(() => repeatsOf([confirm("allow"), confirm("deny")], [asks()])).toThrow("confirms the same call");
  });
});
