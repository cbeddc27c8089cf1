import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { AgentSchema, type AgentSpecSchema } from "../proto/gen/tendon/v1/agent_pb.js";
import { SessionResourceSchema } from "../proto/gen/tendon/v1/session_pb.js";
import { withMemoryNote } from "./memory-note.ts";

const RESOURCES = [
  create(SessionResourceSchema, {
    kind: {
      case: "memoryStore",
      value: { memoryStoreId: "memstore_1", name: "Notes", mountPath: "/mnt/memory/notes" },
    },
  }),
];
const hands = { kind: { case: "handToolset" as const, value: {} } };
const tool = { kind: { case: "brainToolset" as const, value: { names: ["memory"] } } };

function systemOf(spec: MessageInitShape<typeof AgentSpecSchema>, resources = RESOURCES): string {
  return withMemoryNote(create(AgentSchema, { spec }), resources).spec?.system ?? "";
}

test("the note names the places that the agent can reach, and no others", () => {
  expect(systemOf({ tools: [hands] })).toContain("- /mnt/memory/notes (read and write): Notes\n</memory>");
  expect(systemOf({ tools: [tool] })).toContain("- /memories/notes (read and write): Notes");
  expect(systemOf({ tools: [hands, tool] })).toContain("- /mnt/memory/notes, /memories/notes (");
  expect(systemOf({ tools: [hands] })).not.toContain("/memories");
  const disabled = { names: ["memory"], tools: { memory: { disabled: true } } };
  expect(systemOf({ tools: [{ kind: { case: "brainToolset", value: disabled } }] })).toBe("");
});

test("an agent that can reach no store, or has none, keeps its system prompt byte for byte", () => {
  const agent = create(AgentSchema, { spec: { system: " as it is ", tools: [hands] } });
  expect(withMemoryNote(agent, [])).toBe(agent);
  expect(systemOf({ system: "plain" })).toBe("plain");
  expect(systemOf({ system: "first", tools: [tool] }).startsWith("first\n\n<memory>\n")).toBe(true);
});
