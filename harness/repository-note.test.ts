import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { AgentSchema } from "../proto/gen/tendon/v1/agent_pb.js";
import { SessionResourceSchema } from "../proto/gen/tendon/v1/session_pb.js";
import { withRepositoryNote } from "./repository-note.ts";

const hands = { kind: { case: "handToolset" as const, value: {} } };
const resources = [
  create(SessionResourceSchema, {
    kind: { case: "gitRepository", value: { url: "https://git.example/a/b.git", mountPath: "/workspace/b" } },
  }),
  create(SessionResourceSchema, {
    kind: {
      case: "gitRepository",
      value: {
        url: "https://git.example/c",
        mountPath: "/workspace/src/c",
        slot: "phone",
        checkout: { at: { case: "tag", value: "v1" } },
        pushBranches: ["agent/*"],
      },
    },
  }),
];

test("a model is told where clones are, what of them is checked out, and what may be pushed to", () => {
  const agent = create(AgentSchema, { spec: { system: "Be brief.", tools: [hands] } });
  const { system } = withRepositoryNote(agent, resources).spec!;
  expect(system).toMatch(/^Be brief\.\n\n<repositories>\n.*\n/);
  expect(system).toContain("\n- b: https://git.example/a/b.git\n");
  expect(system).toContain(
    '\n- src/c: https://git.example/c (tag v1; may be pushed to: agent/*; in the environment "phone")\n</repositories>',
  );
});

test("nothing is said where there is none, or no hand to have it in", () => {
  const withHands = create(AgentSchema, { spec: { tools: [hands] } });
  expect(withRepositoryNote(withHands, [])).toBe(withHands);
  const without = create(AgentSchema, { spec: {} });
  expect(withRepositoryNote(without, resources)).toBe(without);
});
