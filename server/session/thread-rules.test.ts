import { create, type MessageInitShape, toJsonString } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { isTendonError } from "../../kit/errors.ts";
import { AgentSchema, type MultiagentSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import type { SessionRecord } from "../store/sessions.ts";
import { agentOfThread, boundsOfTree, calledAgent } from "./thread-rules.ts";

function session(multiagent?: MessageInitShape<typeof MultiagentSchema>): SessionRecord {
  const spec = { name: "lead", ...(multiagent && { multiagent }) };
  const agent = toJsonString(AgentSchema, create(AgentSchema, { id: "agent_0", version: 3, spec }));
  return { agent } as SessionRecord;
}
const member = (id: string, version = 0) => ({ kind: { case: "agent" as const, value: { id, version } } });
const self = { kind: { case: "self" as const, value: true } };

function refusalOf(run: () => unknown) {
  try {
    run();
  } catch (error) {
    if (isTendonError(error)) return { reason: error.reason, ...error.metadata };
    throw error;
  }
  return undefined;
}

describe("the threads of a tree", () => {
  it("have bounds of their root's agent, and usual ones where it names none", () => {
    expect(boundsOfTree(session(), 0)).toEqual({ maxThreads: 1_000, maxLiveThreads: 25 });
    expect(boundsOfTree(session({ maxThreads: 7, maxLiveThreads: 2 }), 0)).toEqual({
      maxThreads: 7,
      maxLiveThreads: 2,
    });
  });

  it("are nested once, or as deep as it says", () => {
    expect(refusalOf(() => boundsOfTree(session(), 1))).toMatchObject({
      reason: "THREAD_LIMIT_REACHED",
      limit: "max_depth",
      most: "1",
    });
    expect(refusalOf(() => boundsOfTree(session({ maxDepth: 3 }), 2))).toBeUndefined();
    expect(refusalOf(() => boundsOfTree(session({ maxDepth: 3 }), 3))).toMatchObject({ most: "3" });
  });

  it("are run by agents that are named by id, by name or as self, and by no others", () => {
    const lead = session({ agents: [member("agent_1", 2), self] });
    const names = new Map([["agent_1", "reader"]]);
    expect(calledAgent(lead, "agent_1", names)).toMatchObject({ id: "agent_1", version: 2 });
    expect(calledAgent(lead, "reader", names)).toMatchObject({ id: "agent_1" });
    expect(calledAgent(lead, "self", names)).toBe("self");
    expect(refusalOf(() => calledAgent(lead, "writer", names))).toMatchObject({ reason: "ROLE_NOT_ALLOWED" });
    expect(refusalOf(() => calledAgent(session(), "self", names))).toMatchObject({
      reason: "ROLE_NOT_ALLOWED",
    });
  });

  it("run the very version that calls when an agent calls itself", () => {
    expect(agentOfThread(session(), "self", undefined)).toMatchObject({ id: "agent_0", version: 3 });
    expect(
      refusalOf(() => agentOfThread(session(), { id: "agent_1", version: 0, skills: [] }, undefined)),
    ).toMatchObject({
      reason: "NOT_FOUND",
    });
  });
});
