import { expect, test } from "vitest";
import { fieldWords } from "./field-words.ts";

test.each([
  ["spec.name", "name"],
  ["use", "auth"],
  ["use.static_bearer.server_url", "auth.mcp_server_url"],
  ["use.header.header_name", "auth.header_name"],
  ["use.git.push_branches[1]", "auth.push_branches[1]"],
  ["use.oauth.server_url", "auth.mcp_server_url"],
  ["use.oauth.token_endpoint", "auth.refresh.token_endpoint"],
  ["use.oauth.client_auth", "auth.refresh.token_endpoint_auth.type"],
  ["use.environment_variable.name", "auth.secret_name"],
  ["use.environment_variable.allowed_hosts[0]", "auth.networking.allowed_hosts[0]"],
  ["use.environment_variable.in_headers", "auth.injection_location.header"],
  ["use.environment_variable.in_body", "auth.injection_location.body"],
  ["secret.plain.value", "auth"],
  ["secret.plain.refresh_token", "auth.refresh.refresh_token"],
  ["secret.plain.client_secret", "auth.refresh.token_endpoint_auth.client_secret"],
  ["spec.network.allowed_hosts[0]", "config.networking.allowed_hosts[0]"],
  ["start.filename", "filename"],
  ["end.expires_in_seconds", "expires_in_seconds"],
  ["resources[8].memory_store", "resources[8]"],
  ["resources[8].memory_store.access", "resources[8].access"],
  ["metadata.use", "metadata.use"],
  ["metadata.file", "metadata.file"],
])("the contract's %s is %s to callers over HTTP, in message and field", (field, words) => {
  expect(fieldWords(`${field}: is wrong`, field)).toEqual({ message: `${words}: is wrong`, field: words });
});
