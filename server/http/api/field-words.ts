/** Paths of the contract's fields, in the words that callers of the HTTP API wrote (pure). */

type Words = readonly (readonly [RegExp, string])[];

/** Steps that the contract has and JSON does not. */
const STEPS =
  /\.payload(?=[.[]|$)|\.(?:hand_toolset|custom|mcp_toolset|brain_toolset|memory_store|file|git_repository)(?=\.)/g;

/** An entry that callers need not have written: its tools stand in the toolset of hands. */
const WEB_TOOLSET = /^((?:agent\.)?)tools\[\d+\]\.web_toolset\.(fetch|search)(?=\.)/;

/** A credential's use and secret, which JSON has in one object. */
const CREDENTIAL: Words = [
  [/^use\.oauth\.client_auth$/, "auth.refresh.token_endpoint_auth.type"],
  [/^use\.oauth\.(?!server_url$)/, "auth.refresh."],
  [/^use\.environment_variable\.name$/, "auth.secret_name"],
  [/^use\.environment_variable\.in_headers$/, "auth.injection_location.header"],
  [/^use\.environment_variable\.in_body$/, "auth.injection_location.body"],
  [/^use\.environment_variable\./, "auth.networking."],
  [/^use(?:\.(?:static_bearer|header|git|oauth)(?=\.|$))?(?=\.|$)/, "auth"],
  [/^secret\.plain\.client_secret$/, "auth.refresh.token_endpoint_auth.client_secret"],
  [/^secret\.plain\.refresh_token$/, "auth.refresh.refresh_token"],
  [/^secret\.plain\.expires_at$/, "auth.expires_at"],
  [/^secret\.plain\.user_name$/, "auth.user_name"],
  // Each type has its own word for it.
  [/^secret(?:\.plain(?:\.value)?)?$/, "auth"],
];

/** What a `spec` holds and JSON has elsewhere: an environment's in its `config`, and what only Tendon has in `tendon`. */
const SPEC: Words = [
  [/^spec\.network(?=[.[]|$)/, "config.networking"],
  [/^spec\.packages(?=[.[]|$)/, "config.packages"],
  [/^spec\.(?=(?:driver|image|pool|labels|session_files|mcp_tunnel_hosts)(?:[.[]|$))/, "config.tendon."],
  [/^spec\.model\.(?=(?:max_output_tokens|thinking_budget_tokens)$)/, "tendon."],
  [/^spec\.(?=(?:loop|loop_settings|queued_messages|on_interrupt)$)/, "tendon."],
  [/^spec\.agent_id$/, "agent"],
  [/^spec\.agent_version$/, "agent.version"],
  [/^spec(?:\.|$)/, ""],
];

/** Names of queries and bodies. */
const NAMES: Words = [
  [/^request_id$/, "Idempotency-Key"],
  [/^page_token$/, "page"],
  [/^page_size$/, "limit"],
  [/^file_ids(?=\[|$)/, "ids"],
  [/^created_at_or_after$/, "created_at[gte]"],
  [/^created_(?:before|at_or_before)$/, "created_at[lte]"],
  [/^expected_version$/, "version"],
  [/^agent_version$/, "agent.version"],
  [/^new_path$/, "path"],
  [/^endpoint_id$/, "webhook_endpoint_id"],
  [/^run_id$/, "deployment_run_id"],
  [/^agent_spec\./, "agent."],
  [/^agent\.(tools|mcp_servers)\.\1(?=\[)/, "agent.$1"],
  [/^(?:start|end)\./, ""],
  [/^resource$/, "type"],
  [/^resource\.(?:file\.)?/, ""],
  [/(?:^|\.)budget\.max_list_cost_cents$/, "budget.max_list_cost.amount"],
];

const ENDS: Words = [
  [/^(resources\[\d+\])\.(?:memory_store|file|git_repository)$/, "$1"],
  [/^network(?=\.|$)/, "config.networking"],
  [/^((?:agent\.)?tools\[\d+\])\.tools(?=\[|$)/, "$1.configs"],
  [/^(multiagent\.agents\[\d+\])\.agent(?=\.|$)/, "$1"],
  [/^auth\.server_url$/, "auth.mcp_server_url"],
  [/\.server_name$/, ".mcp_server_name"],
  [/\.checkout\.(?:branch|tag)$/, ".checkout.name"],
  [/\.checkout\.commit$/, ".checkout.sha"],
  [/(^|\.)time_zone$/, "$1timezone"],
  [/(\.url_sources\.\w+)\.names(?=\[|$)/, "$1.tools"],
];

/** What follows in messages about several fields. */
const OTHERS = /; also ([^;]+)$/;

/** The message of a failure and the field that it is about. */
export function fieldWords(message: string, field: string | undefined) {
  if (field === undefined || field === "") return { message, field: undefined };
  const words = wordsOf(field);
  if (!message.startsWith(`${field}: `)) return { message, field: words || undefined };
  if (words === "") return { message: message.slice(`${field}: `.length), field: undefined };
  const said = `${words}${message.slice(field.length)}`.replace(
    OTHERS,
    (_, others: string) => `; also ${others.split(", ").map(wordsOf).join(", ")}`,
  );
  return { message: said, field: words };
}

function wordsOf(field: string): string {
  const named = [CREDENTIAL, SPEC, NAMES].reduce(firstOf, field);
  const inJson = named.replace(WEB_TOOLSET, "$1web_$2").replace(STEPS, "");
  return ENDS.reduce((path, [from, to]) => path.replace(from, to), inJson);
}

/** A path is one of these or none. */
function firstOf(field: string, words: Words): string {
  const found = words.find(([path]) => path.test(field));
  return found === undefined ? field : field.replace(found[0], found[1]);
}
