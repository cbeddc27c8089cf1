import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { EventSchema } from "../../proto/gen/tendon/v1/event_pb.js";
import { eventText, eventTitle } from "./event-text.ts";
import { historyQuery } from "./history-query.ts";

describe("what a model asks of its session's log", () => {
  it("has defaults for all that it does not say", () => {
    expect(historyQuery({})).toEqual({
      position: undefined,
      fromChar: 0,
      types: [],
      text: "",
      after: 0,
      before: 0,
      oldestFirst: false,
      limit: 20,
    });
  });

  it.each([
    [{ positon: 3 }, `"positon" is not a field`],
    [{ position: 0 }, `"position" must be a whole number, at least 1.`],
    [{ limit: 51 }, `"limit" must be a whole number from 1 to 50.`],
    [{ types: "user.message" }, `"types" must be a list`],
    [{ types: ["span.model_request_end"] }, `Events of type "span.model_request_end" cannot be read here`],
    [{ types: ["acme.secret"] }, `Events of type "acme.secret" cannot be read here`],
    [{ types: ["brain.context_changed"] }, `cannot be read here`],
    [{ text: "x".repeat(201) }, `"text" must be a text of at most 200 characters.`],
  ])("is told what is wrong with %j", (input, problem) => {
    expect(historyQuery(input)).toContain(problem);
  });
});

describe("an event as text", () => {
  it("has each field of the payload on a line, files by their size, and nothing of internal", () => {
    const payload = {
      name: "read",
      input: { path: "/a b" },
      content: [{ type: "image", source: { type: "base64", data: "A".repeat(5_000) } }],
      is_error: false,
    };
    const event = create(EventSchema, {
      position: 7n,
      type: "agent.tool_result",
      payload: JSON.stringify(payload),
      internal: `{"secret":"thought"}`,
    });
    expect(eventTitle(event)).toBe("[7] agent.tool_result");
    expect(eventText(event).split("\n")).toEqual([
      "name: read",
      "input.path: /a b",
      "content[0].type: image",
      "content[0].source.type: base64",
      "content[0].source.data: [5000 characters]",
      "is_error: false",
    ]);
  });
});
