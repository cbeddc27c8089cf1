import { expect, test } from "vitest";
import { BRAIN_TOOLS } from "../../harness/brain-tools/registry.ts";
import { BRAIN_TOOL_NAMES } from "./brain-tool-names.ts";

test("agents may name exactly the tools that harnesses can run themselves", () => {
  expect([...BRAIN_TOOL_NAMES].sort()).toEqual([...BRAIN_TOOLS.keys()].sort());
});
