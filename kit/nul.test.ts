import { create } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { AgentSpecSchema } from "../proto/gen/tendon/v1/agent_pb.js";
import { refuseNul } from "./nul.ts";

function pathOf(value: unknown): string | undefined {
  try {
    refuseNul(value, "spec");
    return undefined;
  } catch (error) {
    return (error as { metadata: { field: string } }).metadata.field;
  }
}

test("a NUL is refused wherever it stands, with the path of its field in the contract's names", () => {
  const custom = (description: string) => ({
    kind: { case: "custom" as const, value: { name: "t", description, inputSchema: "{}" } },
  });
  expect(
    pathOf(create(AgentSpecSchema, { name: "a", tools: [custom("fine")], metadata: { k: "v" } })),
  ).toBeUndefined();
  expect(pathOf(create(AgentSpecSchema, { loopSettings: "a\0b" }))).toBe("spec.loop_settings");
  expect(pathOf(create(AgentSpecSchema, { tools: [custom("fine"), custom("\0")] }))).toBe(
    "spec.tools[1].custom.description",
  );
  expect(pathOf(create(AgentSpecSchema, { metadata: { "my-key": "\0" } }))).toBe('spec.metadata["my-key"]');
  expect(pathOf({ "a\0": "" })).toBe("spec");
  expect(pathOf({ content: new Uint8Array(3) })).toBeUndefined();
});
