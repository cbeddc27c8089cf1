/** What an agent may be, beyond what the proto's own rules say. Errors name the field's path in the request. */
import { invalidField } from "../../kit/errors.ts";
import { isHandAgentUrl, parseHandAgentUrl } from "../../kit/network/hand-agent-url.ts";
import { refuseNul } from "../../kit/nul.ts";
import type { AgentSpec, CustomTool, McpServer, Tool } from "../../proto/gen/tendon/v1/agent_pb.js";
import { BRAIN_TOOL_NAMES } from "./brain-tool-names.ts";
import { checkInputSchema } from "./input-schema.ts";
import { checkMembers } from "./members.ts";
import { checkWebTools, webToolNames } from "./web-tools.ts";

/** Names of the tools that hands bring, and of the one that reaches hands which came later. */
const HAND_TOOL_NAMES = new Set(["bash", "read", "write", "edit", "glob", "grep", "hand_execute"]);

const LOOPBACK = new Set(["localhost", "127.0.0.1", "[::1]"]);

/** Throws INVALID_FIELD for the first thing that is wrong. */
export function checkAgentSpec(spec: AgentSpec): void {
  refuseNul(spec, "spec");
  if (spec.loopSettings !== "") parseObject("spec.loop_settings", spec.loopSettings);
  checkMcpServers(spec.mcpServers);
  checkToolsets(spec.tools);
  checkBrainTools(spec.tools);
  checkWebTools(spec.tools);
  checkCustomTools(spec.tools);
  checkReferences(spec.tools, spec.mcpServers);
  checkMembers(spec);
}

function checkMcpServers(servers: readonly McpServer[]): void {
  const names = new Set<string>();
  for (const [index, { name, url }] of servers.entries()) {
    const path = `spec.mcp_servers[${index}]`;
    if (names.has(name)) throw invalidField(`${path}.name`, `another MCP server is called "${name}"`);
    names.add(name);
    checkMcpUrl(`${path}.url`, url);
  }
}

function checkMcpUrl(path: string, text: string): void {
  if (isHandAgentUrl(text)) {
    if (parseHandAgentUrl(text) !== undefined) return;
    throw invalidField(
      path,
      "must be hand-agent://<pool>/<host>[:port]/<path>, or hand-agent+http:// for plain HTTP there; without user, password and fragment",
    );
  }
  const url = URL.canParse(text) ? new URL(text) : undefined;
  const local = url?.protocol === "http:" && LOOPBACK.has(url.hostname);
  if (url === undefined || !(url.protocol === "https:" || local)) {
    throw invalidField(
      path,
      "must be https://… or hand-agent://<pool>/<host>/…; http:// only on this machine",
    );
  }
  if (url.hostname === "") throw invalidField(path, "names no host");
  if (url.username !== "" || url.password !== "") {
    throw invalidField(path, "must hold no user or password; put them into a vault");
  }
}

function checkToolsets(tools: readonly Tool[]): void {
  const slots = new Set<string>();
  for (const [index, { kind }] of tools.entries()) {
    if (kind.case !== "handToolset") continue;
    const path = `spec.tools[${index}].hand_toolset.slot`;
    const { slot } = kind.value;
    if (slot === "mcp") throw invalidField(path, `"mcp" is reserved for tools of MCP servers`);
    if (slot.includes("__")) throw invalidField(path, `must not contain "__"`);
    if (slots.has(slot)) throw invalidField(path, `another entry has the slot "${slot}"`);
    slots.add(slot);
  }
}

/** Each is known and offered once; policies are for what is offered. */
function checkBrainTools(tools: readonly Tool[]): void {
  const offered = new Set<string>();
  for (const [index, { kind }] of tools.entries()) {
    if (kind.case !== "brainToolset") continue;
    const path = `spec.tools[${index}].brain_toolset`;
    const { names, tools: exceptions } = kind.value;
    for (const [at, name] of names.entries()) {
      if (!BRAIN_TOOL_NAMES.has(name)) {
        const known = [...BRAIN_TOOL_NAMES].join(", ");
        throw invalidField(`${path}.names[${at}]`, `no brain has a tool "${name}"; there are: ${known}`);
      }
      if (offered.has(name)) throw invalidField(`${path}.names[${at}]`, `"${name}" is offered already`);
      offered.add(name);
    }
    const stray = Object.keys(exceptions).find((name) => !names.includes(name));
    if (stray !== undefined) throw invalidField(`${path}.tools["${stray}"]`, "is none of the entry's names");
  }
}

function checkCustomTools(tools: readonly Tool[]): void {
  const brainNames = tools.flatMap(({ kind }) => (kind.case === "brainToolset" ? kind.value.names : []));
  const reserved = new Set([...HAND_TOOL_NAMES, ...brainNames]);
  const web = new Set(webToolNames(tools));
  const prefixes = tools.flatMap(({ kind }) =>
    kind.case === "handToolset" && kind.value.slot !== "" ? [`${kind.value.slot}__`] : [],
  );
  const names = new Set<string>();
  for (const [index, { kind }] of tools.entries()) {
    if (kind.case !== "custom") continue;
    const path = `spec.tools[${index}].custom`;
    checkCustomName(`${path}.name`, kind.value, { taken: names, reserved, web }, ["mcp__", ...prefixes]);
    names.add(kind.value.name);
    const field = `${path}.input_schema`;
    checkInputSchema(field, parseObject(field, kind.value.inputSchema));
  }
}

function checkCustomName(
  path: string,
  { name }: CustomTool,
  { taken, reserved, web }: Readonly<Record<"taken" | "reserved" | "web", ReadonlySet<string>>>,
  prefixes: readonly string[],
): void {
  if (HAND_TOOL_NAMES.has(name)) throw invalidField(path, `"${name}" is the name of a hand's tool`);
  if (web.has(name)) throw invalidField(path, `"${name}" is the name of a tool of the web`);
  if (reserved.has(name)) throw invalidField(path, `"${name}" is the name of a tool of the agent's brain`);
  const prefix = prefixes.find((reserved) => name.startsWith(reserved));
  if (prefix !== undefined) throw invalidField(path, `must not begin with "${prefix}"`);
  if (taken.has(name)) throw invalidField(path, `another custom tool is called "${name}"`);
}

/** Each MCP server is used by exactly one toolset, and each toolset has its server. */
function checkReferences(tools: readonly Tool[], servers: readonly McpServer[]): void {
  const names = new Set(servers.map(({ name }) => name));
  const used = new Set<string>();
  for (const [index, { kind }] of tools.entries()) {
    if (kind.case !== "mcpToolset") continue;
    const path = `spec.tools[${index}].mcp_toolset.server_name`;
    const { serverName } = kind.value;
    if (!names.has(serverName)) throw invalidField(path, `no entry of mcp_servers is called "${serverName}"`);
    if (used.has(serverName)) throw invalidField(path, `another entry brings the tools of "${serverName}"`);
    used.add(serverName);
  }
  const unused = servers.findIndex(({ name }) => !used.has(name));
  if (unused >= 0) {
    throw invalidField(
      `spec.mcp_servers[${unused}].name`,
      "no mcp_toolset of the agent's tools names this server",
    );
  }
}

function parseObject(path: string, text: string): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw invalidField(path, "is not JSON");
  }
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw invalidField(path, "must be a JSON object");
  }
  return value as Record<string, unknown>;
}
