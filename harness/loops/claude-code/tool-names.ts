/** Names of the session's tools as the SDK and its model know them, and back. Pure. */
import { createHash } from "node:crypto";
import type { CatalogueTool, ToolCatalogue } from "../../tool-catalogue.ts";

export const SERVER_NAME = "tendon";
const PREFIX = `mcp__${SERVER_NAME}__`;
/** The model API takes 128 characters with the prefix. */
const MAX_NAME_CHARS = 100;
const DIGEST_CHARS = 8;

export interface NamedTool {
  /** As the MCP server offers it. */
  readonly name: string;
  readonly tool: CatalogueTool;
}

export function namedTools({ offered }: ToolCatalogue): NamedTool[] {
  return offered.map((tool) => ({ name: shortName(tool.modelName), tool }));
}

/** As the SDK's model knows it. */
export function sdkName(name: string): string {
  return PREFIX + name;
}

/** The catalogue's name of a tool that the model calls by this one; any other name is its own. */
export function catalogueName(calledAs: string, tools: readonly NamedTool[]): string {
  if (!calledAs.startsWith(PREFIX)) return calledAs;
  const name = calledAs.slice(PREFIX.length);
  return tools.find((named) => named.name === name)?.tool.modelName ?? name;
}

function shortName(name: string): string {
  if (name.length <= MAX_NAME_CHARS) return name;
  const digest = createHash("sha256").update(name).digest("hex").slice(0, DIGEST_CHARS);
  return `${name.slice(0, MAX_NAME_CHARS - DIGEST_CHARS - 1)}_${digest}`;
}
