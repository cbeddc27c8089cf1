/** `tendon agent`: definitions of what runs. */
import { clone, create } from "@bufbuild/protobuf";
import type { Command } from "commander";
import { WEB_TOOL_NAMES } from "../../kit/web/tool-names.ts";
import {
  type Agent,
  type AgentMember,
  AgentMemberSchema,
  AgentSchema,
  type AgentSpec,
  AgentSpecSchema,
  type Model,
  ModelSchema,
  MultiagentSchema,
  type Tool,
  ToolSchema,
} from "../../proto/gen/tendon/v1/agent_pb.js";
import { ListAgentsResponseSchema } from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { CALL_WITHIN, onAction } from "../command.ts";
import { agentIdOf } from "../named.ts";
import { readJsonFile, readText } from "../read-file.ts";
import { formatFields, formatTable } from "../table.ts";
import { pairsText, parseCount, parsePair, parseRepeated, timeText } from "../words.ts";
import { addPageOptions, nextPageNote, type PageOptions, pageOf } from "./page-options.ts";

const THREAD_TOOLS = ["thread_create", "thread_send", "thread_wait", "thread_list", "thread_stop"];

interface SpecOptions {
  spec?: string;
  name?: string;
  description?: string;
  model?: string;
  system?: string;
  systemFile?: string;
  tools?: boolean;
  brainTool?: string[];
  web?: boolean;
  mayCall?: string[];
  loop?: string;
  metadata?: Record<string, string>;
}

export function addAgentCommands(program: Command): void {
  const agent = program.command("agent").description("what runs: model, system prompt, tools");
  agent.addHelpText(
    "after",
    `
Examples:
  tendon agent create --name helper --model claude-opus-5-5
  tendon agent list`,
  );
  const createCommand = agent
    .command("create")
    .description("make an agent; it gets the tools of its sessions' hands");
  addSpecOptions(createCommand)
    .option("--request-id <id>", "makes repeating this command safe")
    .addHelpText(
      "after",
      "\nExamples:\n  tendon agent create --name helper\n  tendon agent create --spec agent.json --json",
    );
  onAction<SpecOptions & { requestId?: string }>(createCommand, async ({ options, api, output }) => {
    const spec = changedSpec(options.spec === undefined ? newSpec() : readSpec(options.spec), options);
    const request = { requestId: options.requestId ?? "", spec };
    const { agent: made } = await api.agents.createAgent(request, CALL_WITHIN);
    output.message(AgentSchema, made!, () => agentText(made!));
  });
  addReadCommands(agent);
  const update = agent
    .command("update <agent>")
    .description("make a new version; options that are left out keep what is there");
  addSpecOptions(update)
    .option(
      "--expected-version <n>",
      "refuse when this is not the latest version",
      parseCount(1, 2 ** 31 - 1),
    )
    .addHelpText("after", "\nExample:\n  tendon agent update agent_01… --system-file prompt.md");
  onAction<SpecOptions & { expectedVersion?: number }>(update, async ({ options, args, api, output }) => {
    const agentId = await agentIdOf(api.agents, String(args[0]));
    const { agent: before } = await api.agents.getAgent({ agentId }, CALL_WITHIN);
    const base = options.spec === undefined ? before!.spec! : readSpec(options.spec);
    // What was read is what is changed: somebody else's change in between is not overwritten.
    const expectedVersion = options.expectedVersion ?? before!.version;
    const request = { agentId, spec: changedSpec(base, options), expectedVersion };
    const { agent: after } = await api.agents.updateAgent(request, CALL_WITHIN);
    output.message(AgentSchema, after!, () => agentText(after!));
  });
  const archive = agent.command("archive <agent>").description("end an agent; its sessions go on");
  onAction(archive, async ({ args, api, output }) => {
    const { agent: archived } = await api.agents.archiveAgent(
      { agentId: await agentIdOf(api.agents, String(args[0])) },
      CALL_WITHIN,
    );
    output.message(AgentSchema, archived!, () => agentText(archived!));
  });
}

function addReadCommands(agent: Command): void {
  const list = addPageOptions(agent.command("list").description("list agents, newest first")).option(
    "--archived",
    "also archived ones",
  );
  onAction<PageOptions & { archived?: boolean }>(list, async ({ options, api, output }) => {
    const request = { ...pageOf(options), includeArchived: options.archived === true };
    const page = await api.agents.listAgents(request, CALL_WITHIN);
    output.message(ListAgentsResponseSchema, page, () => agentTable(page.agents) + nextPageNote(page));
  });
  const get = agent
    .command("get <agent>")
    .description("show an agent, by id or name")
    .option("--version-number <n>", "an older version", parseCount(1, 2 ** 31 - 1));
  onAction<{ versionNumber?: number }>(get, async ({ options, args, api, output }) => {
    const agentId = await agentIdOf(api.agents, String(args[0]));
    const request = { agentId, version: options.versionNumber ?? 0 };
    const { agent: found } = await api.agents.getAgent(request, CALL_WITHIN);
    output.message(AgentSchema, found!, () => agentText(found!));
  });
}

function addSpecOptions(command: Command): Command {
  return command
    .option("--name <name>", "name for people")
    .option("--description <text>", "what it is for")
    .option("--model <id>", "model; left out: the harness's default")
    .option("--system <text>", "system prompt")
    .option("--system-file <file>", "system prompt from a file")
    .option("--no-tools", "no tools at all")
    .option(
      "--brain-tool <name>",
      "tool that the brain runs itself, such as hand_list; may be given several times",
      parseRepeated,
    )
    .option("--web", "the tools web_fetch and web_search, which the proxy runs")
    .option(
      "--may-call <agent>",
      'id of an agent that it may call in threads, or "self", with the tools for that; may be given several times',
      parseRepeated,
    )
    .option("--loop <name>", "loop that runs it")
    .option("--metadata <name=value>", "may be given several times", parsePair)
    .option("--spec <file>", "everything as the JSON form of AgentSpec; other options win over it");
}

/** All tools of the session's hands. */
function newSpec(): AgentSpec {
  return create(AgentSpecSchema, { name: "agent", tools: [{ kind: { case: "handToolset", value: {} } }] });
}

function readSpec(file: string): AgentSpec {
  return readJsonFile(AgentSpecSchema, file, ["loop_settings", "loopSettings"]);
}

function changedSpec(base: AgentSpec, options: SpecOptions): AgentSpec {
  const spec = create(AgentSpecSchema, { ...base });
  if (options.name !== undefined) spec.name = options.name;
  if (options.description !== undefined) spec.description = options.description;
  if (options.system !== undefined) spec.system = options.system;
  if (options.systemFile !== undefined) spec.system = readText(options.systemFile);
  if (options.tools === false) spec.tools = [];
  if (options.brainTool !== undefined) spec.tools = withBrainTools(spec.tools, options.brainTool);
  if (options.web) spec.tools = withWebTools(spec.tools);
  if (options.mayCall !== undefined) {
    const multiagent =
      spec.multiagent === undefined ? create(MultiagentSchema) : clone(MultiagentSchema, spec.multiagent);
    multiagent.agents = options.mayCall.map(memberOf);
    spec.multiagent = multiagent;
    spec.tools = withBrainTools(spec.tools, THREAD_TOOLS);
  }
  if (options.loop !== undefined) spec.loop = options.loop;
  if (options.metadata !== undefined) spec.metadata = { ...spec.metadata, ...options.metadata };
  if (options.model !== undefined) spec.model = withId(spec.model, options.model);
  return spec;
}

/** Those that an entry offers already keep what it says of them. */
function withBrainTools(tools: readonly Tool[], names: readonly string[]): Tool[] {
  const offered = new Set(
    tools.flatMap(({ kind }) => (kind.case === "brainToolset" ? kind.value.names : [])),
  );
  const more = [...new Set(names)].filter((name) => !offered.has(name));
  if (more.length === 0) return [...tools];
  return [...tools, create(ToolSchema, { kind: { case: "brainToolset", value: { names: more } } })];
}

function withWebTools(tools: readonly Tool[]): Tool[] {
  if (tools.some(({ kind }) => kind.case === "webToolset")) return [...tools];
  return [...tools, create(ToolSchema, { kind: { case: "webToolset", value: {} } })];
}

function memberOf(id: string): AgentMember {
  return create(AgentMemberSchema, {
    kind: id === "self" ? { case: "self", value: true } : { case: "agent", value: { id } },
  });
}

function withId(model: Model | undefined, id: string): Model {
  const changed = model === undefined ? create(ModelSchema) : clone(ModelSchema, model);
  changed.id = id;
  return changed;
}

function agentTable(agents: readonly Agent[]): string {
  const rows = agents.map(({ id, version, spec, createdAt, archivedAt }) => [
    id,
    spec?.name ?? "",
    String(version),
    spec?.model?.id || "default",
    archivedAt === undefined ? timeText(createdAt) : `${timeText(createdAt)} archived`,
  ]);
  return formatTable(["ID", "NAME", "VERSION", "MODEL", "CREATED"], rows);
}

function agentText({ id, version, spec, createdAt, updatedAt, archivedAt }: Agent): string {
  return formatFields([
    ["id", id],
    ["name", spec?.name],
    ["description", spec?.description],
    ["version", String(version)],
    ["model", spec?.model?.id || "the harness's default"],
    ["loop", spec?.loop || "claude"],
    ["tools", toolsText(spec)],
    ["may call", membersText(spec)],
    ["system", spec?.system],
    ["metadata", pairsText(spec?.metadata ?? {})],
    ["created", timeText(createdAt)],
    ["updated", timeText(updatedAt)],
    ["archived", timeText(archivedAt)],
  ]);
}

function membersText(spec: AgentSpec | undefined): string {
  const members = spec?.multiagent?.agents ?? [];
  return members.map(({ kind }) => (kind.case === "agent" ? kind.value.id : "self")).join(", ");
}

function toolsText(spec: AgentSpec | undefined): string {
  const words = (spec?.tools ?? []).map(({ kind }) => {
    if (kind.case === "custom") return kind.value.name;
    if (kind.case === "mcpToolset") return `MCP server ${kind.value.serverName}`;
    if (kind.case === "brainToolset") return kind.value.names.join(", ");
    if (kind.case === "webToolset") return WEB_TOOL_NAMES.join(", ");
    return kind.value?.slot ? `hand ${kind.value.slot}` : "hand";
  });
  return words.length === 0 ? "none" : words.join(", ");
}
