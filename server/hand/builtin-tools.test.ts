import { expect, test } from "vitest";
import { TOOL_DEFINITIONS } from "../../hand-agent/tools/registry.ts";
import { BUILTIN_TOOLS } from "./builtin-tools.ts";

test("the built-in tool list is the one that the process driver offers", () => {
  const offered = TOOL_DEFINITIONS.map(({ name, description, inputSchema }) => ({
    name,
    description,
    inputSchema: JSON.stringify(inputSchema),
  }));
  expect(BUILTIN_TOOLS).toEqual(offered);
});
