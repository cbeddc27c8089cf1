/** The toolset that existing clients name by its date. */

export const TOOLSET_TYPE = "agent_toolset_20260401";

/** Its tools, in the order in which clients see them. The two of the web are no tools of a hand. */
export const TOOLSET_TOOLS: readonly string[] = [
  "bash",
  "read",
  "write",
  "edit",
  "glob",
  "grep",
  "web_fetch",
  "web_search",
];
