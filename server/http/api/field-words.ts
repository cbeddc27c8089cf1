/** Paths of the contract's fields, in the words that callers of the HTTP API wrote (pure). */

/** Steps that the contract has and JSON does not. */
const STEPS =
  /^spec\.|\.payload(?=[.[]|$)|\.(?:hand_toolset|custom|mcp_toolset|brain_toolset|memory_store|file|git_repository)(?=\.)/g;

/** An entry that callers need not have written: its tools stand in the toolset of hands. */
const WEB_TOOLSET = /^(spec\.)?tools\[\d+\]\.web_toolset\.(fetch|search)(?=\.)/;

/** The message of a failure and the field that it is about. */
export function fieldWords(message: string, field: string | undefined) {
  if (field === undefined || field === "") return { message, field: undefined };
  const words = field
    .replace(WEB_TOOLSET, "$1web_$2")
    .replace(STEPS, "")
    .replace(/^agent\.(tools|mcp_servers)\.\1(?=\[)/, "agent.$1")
    .replace(/\.server_name$/, ".mcp_server_name")
    .replace(/\.checkout\.(?:branch|tag)$/, ".checkout.name")
    .replace(/\.checkout\.commit$/, ".checkout.sha")
    .replace(/\.time_zone$/, ".timezone");
  const isAtHead = message.startsWith(field);
  return { message: isAtHead ? `${words}${message.slice(field.length)}` : message, field: words };
}
