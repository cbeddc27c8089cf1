import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { EventSchema } from "../../../proto/gen/tendon/v1/event_pb.js";
import { spokenBlocks } from "./spoken-blocks.ts";

const said = (type: string, payload: object) =>
  spokenBlocks(create(EventSchema, { type, payload: JSON.stringify(payload) })).map(
    (block) => (JSON.parse(block) as { text: string }).text,
  );
const content = [{ type: "text", text: "hello" }];

describe("what is said to a model", () => {
  it("is a user's word as it stands", () => {
    expect(said("user.message", { content })).toEqual(["hello"]);
  });

  it("names the thread that speaks, and the one that has made this thread", () => {
    const from = { from_session_thread_id: "sthr_1", from_agent_name: 'the "reader"' };
    expect(said("agent.thread_message_received", { content, ...from })).toEqual([
      '[Message from thread sthr_1, agent "the \\"reader\\"":]',
      "hello",
    ]);
    expect(said("agent.thread_message_received", { content, ...from, from_parent: true })[0]).toMatch(
      /which has made this thread/,
    );
  });

  it("is never empty", () => {
    expect(said("agent.thread_message_received", {})).toHaveLength(2);
  });
});
