/** The tools that every hand with processes and files has. A new tool is one file and one line here. */
import type { ToolDefinition } from "../drivers/driver.ts";
import { bashTool } from "./bash.ts";
import { editTool } from "./edit.ts";
import { globTool } from "./glob.ts";
import { grepTool } from "./grep.ts";
import { readTool } from "./read.ts";
import type { Tool } from "./tool.ts";
import { writeTool } from "./write.ts";

export const TOOLS: readonly Tool[] = [bashTool, readTool, writeTool, editTool, globTool, grepTool];

export const TOOL_DEFINITIONS: readonly ToolDefinition[] = TOOLS.map((tool) => tool.definition);
