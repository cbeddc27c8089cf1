import { create, type MessageInitShape } from "@bufbuild/protobuf";
import { expect, test } from "vitest";
import { isTendonError } from "../../kit/errors.ts";
import { AgentSpecSchema, type WebToolsetSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import { checkAgentSpec } from "./rules.ts";

type Tools = NonNullable<MessageInitShape<typeof AgentSpecSchema>["tools"]>;

const custom = (name: string, inputSchema = '{"type":"object"}'): Tools[number] => ({
  kind: { case: "custom", value: { name, description: "d", inputSchema } },
});
const hands = (slot = ""): Tools[number] => ({ kind: { case: "handToolset", value: { slot } } });
const mcp = (serverName: string): Tools[number] => ({ kind: { case: "mcpToolset", value: { serverName } } });
const brain = (names: string[], tools = {}): Tools[number] => ({
  kind: { case: "brainToolset", value: { names, tools } },
});
const web = (value: MessageInitShape<typeof WebToolsetSchema> = {}): Tools[number] => ({
  kind: { case: "webToolset", value },
});
const server = (name: string, url = "https://mcp.example.com") => ({ name, url });

/** The field that is wrong, or undefined when none is. */
function wrongField(init: MessageInitShape<typeof AgentSpecSchema>): string | undefined {
  try {
    checkAgentSpec(create(AgentSpecSchema, { name: "x", ...init }));
    return undefined;
  } catch (error) {
    if (isTendonError(error, "INVALID_FIELD")) return error.metadata.field;
    throw error;
  }
}

test("an agent with every kind of tool is good", () => {
  const tools = [hands(), hands("db"), custom("ask"), mcp("linear")];
  expect(wrongField({ tools, mcpServers: [server("linear")], loopSettings: '{"a":1}' })).toBeUndefined();
});

test("custom tools have names of their own", () => {
  expect(wrongField({ tools: [custom("a"), custom("a")] })).toBe("spec.tools[1].custom.name");
  expect(wrongField({ tools: [custom("bash")] })).toBe("spec.tools[0].custom.name");
  expect(wrongField({ tools: [custom("hand_execute")] })).toBe("spec.tools[0].custom.name");
  expect(wrongField({ tools: [custom("mcp__linear__x")] })).toBe("spec.tools[0].custom.name");
  expect(wrongField({ tools: [hands("db"), custom("db__bash")] })).toBe("spec.tools[1].custom.name");
  expect(wrongField({ tools: [custom("db__bash")] })).toBeUndefined();
});

test("tools of the brain are known, offered once and of no other kind, and policies are for those", () => {
  expect(wrongField({ tools: [hands(), brain(["hand_list"], { hand_list: {} })] })).toBeUndefined();
  expect(wrongField({ tools: [brain(["no_such_tool"])] })).toBe("spec.tools[0].brain_toolset.names[0]");
  expect(wrongField({ tools: [brain(["hand_list"]), brain(["hand_list"])] })).toBe(
    "spec.tools[1].brain_toolset.names[0]",
  );
  expect(wrongField({ tools: [brain(["hand_list"], { bash: {} })] })).toBe(
    `spec.tools[0].brain_toolset.tools["bash"]`,
  );
  expect(wrongField({ tools: [brain(["hand_list"]), custom("hand_list")] })).toBe(
    "spec.tools[1].custom.name",
  );
  expect(wrongField({ tools: [custom("hand_list")] })).toBeUndefined();
});

test("tools of the web are there once, with lists of hosts of the public internet", () => {
  const field = "spec.tools[0].web_toolset";
  expect(wrongField({ tools: [hands(), web(), custom("a")] })).toBeUndefined();
  expect(wrongField({ tools: [web(), web()] })).toBe("spec.tools[1].web_toolset");
  expect(wrongField({ tools: [web(), custom("web_fetch")] })).toBe("spec.tools[1].custom.name");
  expect(wrongField({ tools: [web({ tools: { bash: {} } })] })).toBe(`${field}.tools["bash"]`);
  const [allowed, blocked] = [["a.com"], ["b.com"]];
  expect(wrongField({ tools: [web({ fetch: { allowedDomains: allowed } })] })).toBeUndefined();
  expect(wrongField({ tools: [web({ fetch: { allowedDomains: allowed, blockedDomains: blocked } })] })).toBe(
    `${field}.fetch.blocked_domains`,
  );
  expect(wrongField({ tools: [web({ fetch: { blockedDomains: ["a.com", "10.0.0.1"] } })] })).toBe(
    `${field}.fetch.blocked_domains[1]`,
  );
  expect(wrongField({ tools: [web({ fetch: { allowedDomains: ["a.com/b"] } })] })).toBe(
    `${field}.fetch.allowed_domains[0]`,
  );
  expect(wrongField({ tools: [web({ search: { allowedDomains: ["a.com/b"] } })] })).toBeUndefined();
  expect(wrongField({ tools: [web({ search: { userLocation: { timezone: "Mars/Phobos" } } })] })).toBe(
    `${field}.search.user_location.timezone`,
  );
  const at = (userLocation: object) => wrongField({ tools: [web({ search: { userLocation } })] });
  expect(at({ timezone: "+01:00" })).toBe(`${field}.search.user_location.timezone`);
  for (const country of ["QQ", "ZZ", "EU"])
    expect(at({ country })).toBe(`${field}.search.user_location.country`);
  expect(at({ country: "CH", timezone: "Europe/Zurich" })).toBeUndefined();
});

test("agents that may be called are named once", () => {
  const member = (id: string) => ({ kind: { case: "agent" as const, value: { id } } });
  const self = { kind: { case: "self" as const, value: true } };
  expect(
    wrongField({ multiagent: { agents: [member("agent_1"), member("agent_2"), self] } }),
  ).toBeUndefined();
  expect(wrongField({ multiagent: { agents: [member("agent_1"), member("agent_1")] } })).toBe(
    "spec.multiagent.agents[1]",
  );
  expect(wrongField({ multiagent: { agents: [self, self] } })).toBe("spec.multiagent.agents[1]");
});

test("an input schema is the JSON text of an object of type object", () => {
  const field = "spec.tools[0].custom.input_schema";
  for (const schema of ["{", "[]", "null", '"x"', "{}", '{"type":"array"}']) {
    expect(wrongField({ tools: [custom("a", schema)] })).toBe(field);
  }
});

test("loop settings are empty or a JSON object", () => {
  for (const loopSettings of ["{", "[]", "1", "null"]) {
    expect(wrongField({ loopSettings })).toBe("spec.loop_settings");
  }
  expect(wrongField({ loopSettings: "" })).toBeUndefined();
});

test("each slot has one toolset, and none has a name that tool names could not carry", () => {
  expect(wrongField({ tools: [hands(), hands()] })).toBe("spec.tools[1].hand_toolset.slot");
  expect(wrongField({ tools: [hands("mcp")] })).toBe("spec.tools[0].hand_toolset.slot");
  expect(wrongField({ tools: [hands("a__b")] })).toBe("spec.tools[0].hand_toolset.slot");
});

test("each MCP server is named once, used by exactly one toolset, and each toolset has its server", () => {
  const twice = [server("a"), server("a")];
  expect(wrongField({ mcpServers: twice, tools: [mcp("a")] })).toBe("spec.mcp_servers[1].name");
  expect(wrongField({ mcpServers: [server("a")] })).toBe("spec.mcp_servers[0].name");
  expect(wrongField({ tools: [mcp("a")] })).toBe("spec.tools[0].mcp_toolset.server_name");
  const both = [mcp("a"), mcp("a")];
  expect(wrongField({ mcpServers: [server("a")], tools: both })).toBe(
    "spec.tools[1].mcp_toolset.server_name",
  );
});

test("an MCP server's URL is https, through a hand agent, or on this machine, and holds no password", () => {
  const field = (url: string) => wrongField({ mcpServers: [server("a", url)], tools: [mcp("a")] });
  for (const url of [
    "https://a.example/mcp?x=1",
    "hand-agent://lab/mcp",
    "hand-agent://lab/mcp.corp:8443/v1?x=1",
    "hand-agent+http://lab/10.1.2.3:8080/mcp",
    "http://127.0.0.1:9/",
    "http://[::1]/",
  ]) {
    expect(field(url)).toBeUndefined();
  }
  const bad = [
    "",
    "a.example",
    "http://a.example",
    "ftp://a.example",
    "https://u:p@a.example",
    "hand-agent:///x",
    "hand-agent://lab",
    "hand-agent://u:p@lab/mcp",
    "hand-agent+http://lab/mcp#x",
  ];
  for (const url of bad) expect(field(url)).toBe("spec.mcp_servers[0].url");
});
