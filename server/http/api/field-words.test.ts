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
  ["spec.packages.npm[0]", "config.packages.npm[0]"],
  ["spec.mcp_tunnel_hosts[1]", "config.tendon.mcp_tunnel_hosts[1]"],
  ['spec.labels["a"]', 'config.tendon.labels["a"]'],
  ["spec.loop_settings", "tendon.loop_settings"],
  ["spec.model.max_output_tokens", "tendon.max_output_tokens"],
  ["spec.model.effort", "model.effort"],
  ["spec.tools[2].custom.input_schema", "tools[2].input_schema"],
  ["spec.tools[2].mcp_toolset.server_name", "tools[2].mcp_server_name"],
  ["spec.tools[0].mcp_toolset.tools", "tools[0].configs"],
  ["spec.tools[3].web_toolset.fetch.allowed_domains[0]", "web_fetch.allowed_domains[0]"],
  ["agent_spec.tools[2].custom.name", "agent.tools[2].name"],
  ["agent_spec.skills", "agent.skills"],
  ["agent.tools.tools[1].custom.name", "agent.tools[1].name"],
  ["spec.multiagent.agents[1].agent", "multiagent.agents[1]"],
  ["spec.multiagent.agents[1].agent.id", "multiagent.agents[1].id"],
  ["spec.agent_id", "agent"],
  ["spec.agent_version", "agent.version"],
  ["agent_version", "agent.version"],
  ["spec.schedule.time_zone", "schedule.timezone"],
  ["spec.initial_events[0].payload.content", "initial_events[0].content"],
  ["request_id", "Idempotency-Key"],
  ["page_token", "page"],
  ["page_size", "limit"],
  ["file_ids[3]", "ids[3]"],
  ["created_at_or_after", "created_at[gte]"],
  ["created_before", "created_at[lte]"],
  ["expected_version", "version"],
  ["new_path", "path"],
  ["resource", "type"],
  ["resource.file.file_id", "file_id"],
  ["budget.max_list_cost_cents", "budget.max_list_cost.amount"],
  ["start.filename", "filename"],
  ["end.expires_in_seconds", "expires_in_seconds"],
  ["resources[8].memory_store", "resources[8]"],
  ["resources[8].memory_store.access", "resources[8].access"],
  ["metadata.use", "metadata.use"],
  ["metadata.file", "metadata.file"],
])("the contract's %s is %s to callers over HTTP, in message and field", (field, words) => {
  expect(fieldWords(`${field}: is wrong`, field)).toEqual({ message: `${words}: is wrong`, field: words });
});

test("a message about several fields has the words of all of them", () => {
  const also = "spec.tools[1].custom.name, spec.network.allowed_hosts[0]";
  expect(fieldWords(`spec.name: is too long; also ${also}`, "spec.name")).toEqual({
    message: "name: is too long; also tools[1].name, config.networking.allowed_hosts[0]",
    field: "name",
  });
});

test("what is wrong with the whole of a request is wrong with no field", () => {
  expect(fieldWords("spec: has 2 bytes", "spec")).toEqual({ message: "has 2 bytes", field: undefined });
});

test("what a caller wrote stays as it is, however it looks", () => {
  const message = 'spec.tools[0].custom.name: another custom tool is called "spec.page_token"';
  expect(fieldWords(message, "spec.tools[0].custom.name").message).toBe(
    'tools[0].name: another custom tool is called "spec.page_token"',
  );
});
