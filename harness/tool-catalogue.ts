/** The tools of a session as its model sees them, and back from the model's names to hands and clients. Pure. */
import { createHash } from "node:crypto";
import { create } from "@bufbuild/protobuf";
import {
  type AgentSpec,
  type BrainToolset,
  type McpToolset,
  Permission,
  type ToolPolicy,
  ToolPolicySchema,
  Verdict,
} from "../proto/gen/tendon/v1/agent_pb.js";
import type { SlotTools } from "../proto/gen/tendon/v1/harness_service_pb.js";
import { HAND_EXECUTE } from "./brain-tools/hand-execute.ts";
import { BRAIN_TOOLS } from "./brain-tools/registry.ts";
import type { KnownServer } from "./mcp-client/mcp-tool-events.ts";
import { type WebAbilities, webToolsOf } from "./web/web-tools.ts";

/** Tools of MCP servers that are known, by the servers' names. */
type McpLists = Pick<ReadonlyMap<string, Pick<KnownServer, "tools">>, "get">;

const NO_SERVERS: McpLists = new Map();
const NO_WEB: WebAbilities = { fetch: false, search: false };
const MAX_NAME_CHARS = 128;
const DIGEST_CHARS = 8;

/** A tool that is offered to the model. */
export interface CatalogueTool {
  /** The name that the model sees; unique. */
  readonly modelName: string;
  readonly kind: "hand" | "custom" | "brain" | "mcp" | "web";
  /** The tool's own name. */
  readonly name: string;
  /** Slot of its hand; empty for the default one and for tools that no hand runs. */
  readonly slot: string;
  /** Of a tool of an MCP server: the server's name. */
  readonly server?: string;
  readonly description: string;
  /** JSON text of one object. */
  readonly inputSchema: string;
  readonly policy: "always_allow" | "always_ask" | "auto";
  /** How long a client has to answer, and what holds when none does; undefined: for ever. */
  readonly answerTerms: AnswerTerms | undefined;
}

export interface AnswerTerms {
  readonly timeoutMs: number;
  readonly verdict: "allow" | "deny";
}

export interface ToolCatalogue {
  /** In an order that depends on the agent and its slots alone, so that the cached prefix of requests stays. */
  readonly offered: readonly CatalogueTool[];
  find(modelName: string): CatalogueTool | undefined;
  /**
   * A tool of a hand as `hand_execute` reaches it, whether or not it is offered by itself, with the strictest permission of
   * `hand_execute` and the slot's toolset; where no toolset speaks of the slot, of all toolsets of hands. Undefined when
   * `hand_execute` is not offered, or when such a toolset disables the tool.
   */
  reach(slot: string, name: string): CatalogueTool | undefined;
}

/** Tools that a policy disables are left out, so a call to one is a call to an unknown tool. */
export function toolCatalogue(
  spec: AgentSpec | undefined,
  slots: readonly SlotTools[],
  mcpServers: McpLists = NO_SERVERS,
  web: WebAbilities = NO_WEB,
): ToolCatalogue {
  const byName = new Map<string, CatalogueTool>();
  for (const tool of offeredTools(spec, slots, mcpServers, web)) {
    const modelName = uniqueName(tool, byName);
    byName.set(modelName, { ...tool, modelName });
  }
  return {
    offered: [...byName.values()],
    find: (modelName) => byName.get(modelName),
    reach: (slot, name) => reachedTool(spec, byName.get(HAND_EXECUTE), slot, name),
  };
}

function reachedTool(
  spec: AgentSpec | undefined,
  through: CatalogueTool | undefined,
  slot: string,
  name: string,
): CatalogueTool | undefined {
  if (through === undefined) return undefined;
  const toolsets = (spec?.tools ?? []).flatMap(({ kind }) => (kind.case === "handToolset" ? kind.value : []));
  const own = toolsets.filter((toolset) => toolset.slot === slot);
  // No toolset speaks of what came later. No rule is got round by making one more hand, so all of them hold there.
  const rules = (own.length > 0 ? own : toolsets).map(({ tools, defaultPolicy }) =>
    permissionOf(tools[name], defaultPolicy),
  );
  const allowed = rules.filter((rule) => rule !== undefined);
  if (allowed.length < rules.length) return undefined;
  return { ...through, kind: "hand", name, slot, ...strictest([through, ...allowed]) };
}

type Terms = Pick<CatalogueTool, "policy" | "answerTerms">;

/** Of those that ask, one after whose time the call would run counts only when all are like that, and then the longest. */
function strictest(all: readonly Terms[]): Terms {
  const asking = all.filter(({ policy }) => policy !== "always_allow");
  const [first] = asking;
  if (first === undefined) return { policy: "always_allow", answerTerms: undefined };
  const policy = asking.find((terms) => terms.policy === "always_ask")?.policy ?? first.policy;
  const never = asking.find(({ answerTerms }) => answerTerms?.verdict !== "allow");
  const timeoutOf = ({ answerTerms }: Terms) => answerTerms?.timeoutMs ?? 0;
  const longest = asking.reduce((most, terms) => (timeoutOf(terms) > timeoutOf(most) ? terms : most));
  return { policy, answerTerms: (never ?? longest).answerTerms };
}

function* offeredTools(
  spec: AgentSpec | undefined,
  slots: readonly SlotTools[],
  mcpServers: McpLists,
  web: WebAbilities,
): Generator<Omit<CatalogueTool, "modelName">> {
  for (const { kind } of spec?.tools ?? []) {
    if (kind.case === "custom") {
      const { name, description, inputSchema, answerTimeoutMs } = kind.value;
      const answerTerms = termsOf(answerTimeoutMs, Verdict.DENY);
      yield { kind: "custom", name, slot: "", description, inputSchema, policy: "always_allow", answerTerms };
    } else if (kind.case === "handToolset") {
      const { slot, defaultPolicy, tools: exceptions } = kind.value;
      for (const { name, description, inputSchema } of slots.find((s) => s.slot === slot)?.tools ?? []) {
        const may = permissionOf(exceptions[name], defaultPolicy);
        if (may !== undefined) yield { kind: "hand", name, slot, description, inputSchema, ...may };
      }
    } else if (kind.case === "mcpToolset") {
      yield* mcpTools(kind.value, mcpServers);
    } else if (kind.case === "webToolset") {
      const { defaultPolicy, tools: exceptions } = kind.value;
      for (const tool of webToolsOf(web)) {
        const may = permissionOf(exceptions[tool.name], defaultPolicy);
        if (may !== undefined) yield { kind: "web", slot: "", ...tool, ...may };
      }
    } else if (kind.case === "brainToolset") {
      yield* brainTools(kind.value);
    }
  }
  if (mayCallOthers(spec) && !namesThreadTools(spec)) yield* brainTools({ names: THREAD_TOOLS, tools: {} });
}

/** What an agent that may call others needs for it: to such a one they are offered unless it names some of them itself. */
const THREAD_TOOLS = ["thread_create", "thread_send", "thread_wait", "thread_list", "thread_stop"];

function mayCallOthers(spec: AgentSpec | undefined): boolean {
  return (spec?.multiagent?.agents.length ?? 0) > 0;
}

function namesThreadTools(spec: AgentSpec | undefined): boolean {
  return (spec?.tools ?? []).some(
    ({ kind }) =>
      kind.case === "brainToolset" && kind.value.names.some((name) => THREAD_TOOLS.includes(name)),
  );
}

function* brainTools({
  names,
  defaultPolicy,
  tools: exceptions,
}: Pick<BrainToolset, "names" | "defaultPolicy" | "tools">): Generator<Omit<CatalogueTool, "modelName">> {
  for (const tool of names.flatMap((name) => BRAIN_TOOLS.get(name) ?? [])) {
    const { name, description, inputSchema } = tool;
    const may = permissionOf(exceptions[name], defaultPolicy);
    if (may !== undefined) yield { kind: "brain", name, slot: "", description, inputSchema, ...may };
  }
}

/** Nobody is asked for a tool's sake: without a word of the agent's a client says yes to each call. */
const ASK = create(ToolPolicySchema, { permission: Permission.ALWAYS_ASK });

function* mcpTools(
  { serverName, defaultPolicy = ASK, tools: exceptions }: McpToolset,
  servers: McpLists,
): Generator<Omit<CatalogueTool, "modelName">> {
  const fallback =
    defaultPolicy.permission === Permission.UNSPECIFIED ? asking(defaultPolicy) : defaultPolicy;
  for (const { name, description, inputSchema } of servers.get(serverName)?.tools ?? []) {
    const may = permissionOf(exceptions[name], fallback);
    if (may !== undefined)
      yield { kind: "mcp", name, slot: "", server: serverName, description, inputSchema, ...may };
  }
}

function asking(policy: ToolPolicy): ToolPolicy {
  return { ...policy, permission: Permission.ALWAYS_ASK };
}

/** What a toolset says of one of its tools; undefined when it is disabled. */
function permissionOf(own: ToolPolicy | undefined, fallback: ToolPolicy | undefined): Terms | undefined {
  const policy = own ?? fallback;
  if (policy?.disabled) return undefined;
  const terms = policy?.answerTimeoutMs ? policy : fallback;
  return {
    policy: policyName(policy, fallback),
    answerTerms: termsOf(terms?.answerTimeoutMs, terms?.timeoutVerdict),
  };
}

function termsOf(timeoutMs: bigint | undefined, verdict: Verdict | undefined): AnswerTerms | undefined {
  if (!timeoutMs) return undefined;
  return { timeoutMs: Number(timeoutMs), verdict: verdict === Verdict.ALLOW ? "allow" : "deny" };
}

function policyName(
  policy: ToolPolicy | undefined,
  fallback: ToolPolicy | undefined,
): CatalogueTool["policy"] {
  const own = policy?.permission ?? Permission.UNSPECIFIED;
  const permission = own === Permission.UNSPECIFIED ? (fallback?.permission ?? own) : own;
  if (permission === Permission.ALWAYS_ASK) return "always_ask";
  return permission === Permission.AUTO ? "auto" : "always_allow";
}

/** Names that are too long or taken are cut and get a digest of what they stand for. */
function uniqueName(tool: Omit<CatalogueTool, "modelName">, taken: ReadonlyMap<string, unknown>): string {
  const plain = plainName(tool);
  if (plain.length <= MAX_NAME_CHARS && !taken.has(plain)) return plain;
  const identity = `${tool.kind}\n${tool.server ?? tool.slot}\n${tool.name}\n${taken.has(plain) ? taken.size : ""}`;
  const digest = createHash("sha256").update(identity).digest("hex").slice(0, DIGEST_CHARS);
  return `${plain.slice(0, MAX_NAME_CHARS - DIGEST_CHARS - 1)}_${digest}`;
}

function plainName({ slot, name, server }: Omit<CatalogueTool, "modelName">): string {
  if (server !== undefined) return `mcp__${cleaned(server)}__${cleaned(name)}`;
  return slot === "" ? name : `${slot}__${name}`;
}

/** Model APIs take these characters in a name. */
function cleaned(name: string): string {
  return name.replace(/[^A-Za-z0-9_-]/g, "_");
}
