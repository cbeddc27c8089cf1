/**
 * Which MCP servers of its machine a hand agent offers as hands. They stand in a file of that machine, and nowhere else:
 * whoever may use the server of Tendon chooses among the names, and never says what is started.
 */
import { readFileSync, statSync } from "node:fs";
import { isAbsolute } from "node:path";

/** One server, started for each hand that is made of it. */
export interface McpServerConfig {
  /** Hands of it have the driver `mcp-<name>`. */
  readonly name: string;
  /** A program by its absolute path, or by its name on the child's PATH. */
  readonly command: string;
  readonly args: readonly string[];
  /** All that the server gets beside PATH, HOME and LANG. `${HAND_DIR}` in values and arguments is the hand's own directory. */
  readonly env: Readonly<Record<string, string>>;
  /** Where it is started; without it in the hand's own directory. */
  readonly cwd?: string;
  /** The tools that hands have; without it all that the server has. */
  readonly tools?: readonly string[];
}

const MAX_FILE_BYTES = 1024 * 1024;
/** A greeting has 32 drivers at most, others among them. */
const MAX_SERVERS = 24;
const SERVER_NAME = /^[a-z0-9][a-z0-9-]{0,58}$/;
const VARIABLE_NAME = /^[A-Za-z_][A-Za-z0-9_]*$/;
const FIELDS = ["command", "args", "env", "cwd", "tools"];

/** Throws an Error that names the file and what in it is wrong. */
export function readMcpServers(path: string): McpServerConfig[] {
  try {
    const { mode, size } = statSync(path);
    if ((mode & 0o022) !== 0) {
      // Who can write it can run programs as the agent.
      throw new Error(`others may write it (mode ${(mode & 0o777).toString(8)}); run: chmod go-w ${path}`);
    }
    if (size > MAX_FILE_BYTES) throw new Error(`has more than ${MAX_FILE_BYTES} bytes`);
    return parseMcpServers(readFileSync(path, "utf8"));
  } catch (error) {
    throw new Error(`the file of MCP servers, ${path}: ${(error as Error).message}`);
  }
}

/** The text is `{"mcpServers": {"<name>": {command, args, env, cwd, tools}}}`. */
export function parseMcpServers(text: string): McpServerConfig[] {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("is not JSON"); // what a parser says may hold a part of the text
  }
  const { mcpServers, ...others } = asObject(value, "the whole");
  refuseUnknown(Object.keys(others), "the whole");
  const entries = Object.entries(asObject(mcpServers, "mcpServers"));
  if (entries.length > MAX_SERVERS) throw new Error(`mcpServers: at most ${MAX_SERVERS} are allowed`);
  return entries.map(([name, entry]) => parseServer(name, entry));
}

function parseServer(name: string, entry: unknown): McpServerConfig {
  const at = `mcpServers.${name}`;
  if (!SERVER_NAME.test(name)) {
    throw new Error(`${at}: a name is 1 to 59 lower-case letters, digits and "-", and begins with no "-"`);
  }
  const { command, args = [], env = {}, cwd, tools, ...others } = asObject(entry, at);
  refuseUnknown(Object.keys(others), at);
  if (typeof command !== "string" || command === "" || command.includes("\0")) {
    throw new Error(`${at}.command: must name a program`);
  }
  if (command.includes("/") && !isAbsolute(command)) {
    throw new Error(`${at}.command: must be an absolute path, or a name without "/"`);
  }
  if (cwd !== undefined && (typeof cwd !== "string" || !isAbsolute(cwd) || cwd.includes("\0"))) {
    throw new Error(`${at}.cwd: must be an absolute path`);
  }
  return {
    name,
    command,
    args: asStrings(args, `${at}.args`),
    env: asVariables(env, `${at}.env`),
    ...(cwd === undefined ? {} : { cwd }),
    ...(tools === undefined ? {} : { tools: asStrings(tools, `${at}.tools`) }),
  };
}

function asObject(value: unknown, at: string): Record<string, unknown> {
  if (typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new Error(`${at}: must be an object`);
  }
  return value as Record<string, unknown>;
}

function asStrings(value: unknown, at: string): string[] {
  const fits =
    Array.isArray(value) && value.every((each) => typeof each === "string" && !each.includes("\0"));
  if (!fits) throw new Error(`${at}: must be a list of texts`);
  return value as string[];
}

function asVariables(value: unknown, at: string): Record<string, string> {
  const entries = Object.entries(asObject(value, at));
  for (const [name, each] of entries) {
    if (!VARIABLE_NAME.test(name) || name.startsWith("TENDON_")) {
      throw new Error(`${at}: "${name}" is not an allowed name`);
    }
    if (typeof each !== "string" || each.includes("\0")) throw new Error(`${at}.${name}: must be a text`);
  }
  return Object.fromEntries(entries) as Record<string, string>;
}

function refuseUnknown(names: readonly string[], at: string): void {
  if (names.length === 0) return;
  throw new Error(
    `${at}: unknown ${names.join(", ")}; there are: ${at === "the whole" ? "mcpServers" : FIELDS.join(", ")}`,
  );
}
