/** The toolset that existing clients name by its date. */
import { WEB_TOOL_NAMES } from "../../../../kit/web/tool-names.ts";

export const TOOLSET_TYPE = "agent_toolset_20260401";

/** Its tools that hands run, in the order in which clients see them. */
export const HAND_TOOLS: readonly string[] = ["bash", "read", "write", "edit", "glob", "grep"];

/** All of them. */
export const TOOLSET_TOOLS: readonly string[] = [...HAND_TOOLS, ...WEB_TOOL_NAMES];

/** The tools of the web by themselves, for agents without hands. */
export const WEB_TOOLSET_TYPE = "tendon_web_toolset";
