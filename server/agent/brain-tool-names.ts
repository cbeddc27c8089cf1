/** Names of the tools that harnesses run themselves; a test compares them with the harness's own. One line each. */
export const BRAIN_TOOL_NAMES: ReadonlySet<string> = new Set(["hand_list", "session_history"]);
