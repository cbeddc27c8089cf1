import { create } from "@bufbuild/protobuf";
import { expect, it } from "vitest";
import { SessionSchema } from "../../../../proto/gen/tendon/v1/session_pb.js";
import { NO_MEMBERS } from "../agents/roster.ts";
import { sessionJson } from "./session-json.ts";

it("a session's sums hold its threads: what they used, and the time that each of them worked", () => {
  const usage = { inputTokens: 1n, activeMs: 1_000n };
  const all = { inputTokens: 7n, activeMs: 3_500n };

  const agent = { id: "agent_1", version: 1, spec: { name: "a" } };
  const alone = sessionJson(create(SessionSchema, { id: "sesn_1", agent, usage }), 0, NO_MEMBERS);
  expect(alone).toMatchObject({ usage: { input_tokens: 1 }, stats: { active_seconds: 1 } });
  const tree = { threads: 2, liveThreads: 2, usage: all };
  const lead = sessionJson(create(SessionSchema, { id: "sesn_1", agent, usage, tree }), 0, NO_MEMBERS);
  expect(lead).toMatchObject({ usage: { input_tokens: 7 }, stats: { active_seconds: 3.5 } });
});
