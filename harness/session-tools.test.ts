import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { AssignmentSchema } from "../proto/gen/tendon/v1/harness_service_pb.js";
import { newSessionState } from "./session-state.ts";
import { SessionTools } from "./session-tools.ts";

const offered = (parentSessionId: string, maxDepth: number, named: string[] = []) => {
  const tools = named.length > 0 ? [{ kind: { case: "brainToolset", value: { names: named } } }] : [];
  const spec = { tools, multiagent: { agents: [{ kind: { case: "self", value: true } }], maxDepth } };
  const assignment = create(AssignmentSchema, { session: { parentSessionId, agent: { spec } } } as never);
  return new SessionTools(assignment, newSessionState()).catalogue.offered.map(({ modelName }) => modelName);
};

test("threads have the tools of threads where their agent names them, or allows threads of threads", () => {
  expect(offered("", 0)).toHaveLength(5);
  expect(offered("sesn_1", 0)).toEqual([]);
  expect(offered("sesn_1", 1)).toEqual([]);
  expect(offered("sesn_1", 2)).toHaveLength(5);
  expect(offered("sesn_1", 0, ["thread_create"])).toEqual(["thread_create"]);
});
