/** Names of the tools that harnesses run themselves; a test compares them with the harness's own. One line each. */
export const BRAIN_TOOL_NAMES: ReadonlySet<string> = new Set([
  "hand_execute",
  "hand_hand_over",
  "hand_list",
  "hand_provision",
  "hand_release",
  "memory",
  "session_history",
  "thread_create",
  "thread_list",
  "thread_send",
  "thread_stop",
  "thread_wait",
]);
