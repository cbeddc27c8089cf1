/** Paths of the contract's fields, in the words that callers of the HTTP API wrote (pure). */

/** Steps that the contract has and JSON does not. */
const STEPS =
  /^spec\.|\.payload(?=[.[]|$)|\.(?:hand_toolset|custom|mcp_toolset|brain_toolset|memory_store|file|git_repository)(?=\.)/g;

/** An entry that callers need not have written: its tools stand in the toolset of hands. */
const WEB_TOOLSET = /^(spec\.)?tools\[\d+\]\.web_toolset\.(fetch|search)(?=\.)/;

/** A credential's use and secret, which JSON has in one object. */
const CREDENTIAL: readonly (readonly [RegExp, string])[] = [
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
  // Each type has its own word for it.
  [/^secret(?:\.plain(?:\.value)?)?$/, "auth"],
];

function credentialWords(field: string): string {
  const found = CREDENTIAL.find(([path]) => path.test(field));
  return found === undefined ? field : field.replace(found[0], found[1]);
}

/** The message of a failure and the field that it is about. */
export function fieldWords(message: string, field: string | undefined) {
  if (field === undefined || field === "") return { message, field: undefined };
  const words = credentialWords(field)
    .replace(WEB_TOOLSET, "$1web_$2")
    .replace(STEPS, "")
    .replace(/^(resources\[\d+\])\.(?:memory_store|file|git_repository)$/, "$1")
    .replace(/^(?:start|end)\./, "")
    .replace(/^network(?=\.|$)/, "config.networking")
    .replace(/^agent\.(tools|mcp_servers)\.\1(?=\[)/, "agent.$1")
    .replace(/^auth\.server_url$/, "auth.mcp_server_url")
    .replace(/\.server_name$/, ".mcp_server_name")
    .replace(/\.checkout\.(?:branch|tag)$/, ".checkout.name")
    .replace(/\.checkout\.commit$/, ".checkout.sha")
    .replace(/\.time_zone$/, ".timezone");
  const isAtHead = message.startsWith(field);
  return { message: isAtHead ? `${words}${message.slice(field.length)}` : message, field: words };
}
