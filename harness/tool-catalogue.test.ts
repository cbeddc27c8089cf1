import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { AgentSpecSchema, Permission, Verdict } from "../proto/gen/tendon/v1/agent_pb.js";
import { SlotToolsSchema } from "../proto/gen/tendon/v1/harness_service_pb.js";
import { toolCatalogue } from "./tool-catalogue.ts";

const slot = (name: string, ...tools: string[]) =>
  create(SlotToolsSchema, { slot: name, tools: tools.map((tool) => ({ name: tool, inputSchema: "{}" })) });
const toolset = (value: object) => ({ kind: { case: "handToolset" as const, value } });
const custom = (name: string) => ({
  kind: { case: "custom" as const, value: { name, description: "d", inputSchema: "{}" } },
});
const specOf = (...tools: object[]) => create(AgentSpecSchema, { name: "a", tools } as never);
const names = (catalogue: ReturnType<typeof toolCatalogue>) =>
  catalogue.offered.map(({ modelName }) => modelName);

describe("the tool catalogue", () => {
  it("offers plain names for the default slot, and names with the slot for others", () => {
    const catalogue = toolCatalogue(specOf(toolset({}), toolset({ slot: "gpu" })), [
      slot("", "bash"),
      slot("gpu", "bash"),
    ]);
    expect(names(catalogue)).toEqual(["bash", "gpu__bash"]);
    expect(catalogue.find("gpu__bash")).toMatchObject({ name: "bash", slot: "gpu" });
  });

  it("offers nothing that the agent does not list, and nothing that a policy disables", () => {
    expect(names(toolCatalogue(specOf(), [slot("", "bash")]))).toEqual([]);
    const spec = specOf(toolset({ tools: { write: { disabled: true } } }));
    expect(names(toolCatalogue(spec, [slot("", "bash", "write")]))).toEqual(["bash"]);
    const only = specOf(toolset({ defaultPolicy: { disabled: true }, tools: { bash: {} } }));
    expect(names(toolCatalogue(only, [slot("", "bash", "write")]))).toEqual(["bash"]);
  });

  it("offers the tools of threads to an agent that may call others and names none of them itself", () => {
    const may = (...tools: object[]) =>
      create(AgentSpecSchema, {
        tools,
        multiagent: { agents: [{ kind: { case: "self", value: true } }] },
      } as never);
    const brain = (...named: string[]) => ({ kind: { case: "brainToolset", value: { names: named } } });
    const all = ["thread_create", "thread_send", "thread_wait", "thread_list", "thread_stop"];
    const { offered } = toolCatalogue(may(toolset({})), [slot("", "bash")]);
    expect(offered.map(({ modelName }) => modelName)).toEqual(["bash", ...all]);
    expect(offered.at(-1)).toMatchObject({ kind: "brain", policy: "always_allow" });
    expect(names(toolCatalogue(may(brain("memory")), []))).toEqual(["memory", ...all]);
    expect(names(toolCatalogue(may(brain("thread_create")), []))).toEqual(["thread_create"]);
    expect(names(toolCatalogue(specOf(brain("memory")), []))).toEqual(["memory"]);
  });

  it("takes a tool's own permission before its toolset's", () => {
    const spec = specOf(
      toolset({
        defaultPolicy: { permission: Permission.ALWAYS_ASK },
        tools: { read: { permission: Permission.ALWAYS_ALLOW }, edit: {} },
      }),
    );
    const catalogue = toolCatalogue(spec, [slot("", "bash", "read", "edit")]);
    expect(catalogue.offered.map(({ policy }) => policy)).toEqual([
      "always_ask",
      "always_allow",
      "always_ask",
    ]);
  });

  it("takes how long a client has to answer from the tool, else from its toolset", () => {
    const spec = specOf(
      toolset({
        defaultPolicy: { answerTimeoutMs: 5_000n },
        tools: { read: { answerTimeoutMs: 1_000n, timeoutVerdict: Verdict.ALLOW }, edit: {} },
      }),
      { kind: { case: "custom", value: { ...custom("ask").kind.value, answerTimeoutMs: 7_000n } } },
      custom("wait"),
    );
    const { offered } = toolCatalogue(spec, [slot("", "bash", "read", "edit")]);
    expect(offered.map(({ answerTerms }) => answerTerms)).toEqual([
      { timeoutMs: 5_000, verdict: "deny" },
      { timeoutMs: 1_000, verdict: "allow" },
      { timeoutMs: 5_000, verdict: "deny" },
      { timeoutMs: 7_000, verdict: "deny" },
      undefined,
    ]);
  });

  it("offers the brain's own tools that the agent names, in its order, with their policies", () => {
    const own = (value: object) => ({ kind: { case: "brainToolset", value } });
    const spec = specOf(own({ names: ["hand_list", "of_another_build"] }), toolset({}));
    const catalogue = toolCatalogue(spec, [slot("", "bash")]);
    expect(names(catalogue)).toEqual(["hand_list", "bash"]);
    expect(catalogue.find("hand_list")).toMatchObject({ kind: "brain", slot: "", policy: "always_allow" });
    const asks = { defaultPolicy: { permission: Permission.ALWAYS_ASK } };
    expect(toolCatalogue(specOf(own({ names: ["hand_list"], ...asks })), []).offered[0]?.policy).toBe(
      "always_ask",
    );
    const off = own({ names: ["hand_list"], tools: { hand_list: { disabled: true } } });
    expect(names(toolCatalogue(specOf(off), []))).toEqual([]);
  });

  it("offers the tools of the web that the installation has, with the agent's policies", () => {
    const web = (value: object) => ({ kind: { case: "webToolset", value } });
    const both = { fetch: true, search: true };
    const asks = { tools: { web_search: { permission: Permission.ALWAYS_ASK } } };
    const catalogue = toolCatalogue(specOf(toolset({}), web(asks)), [slot("", "bash")], undefined, both);
    expect(names(catalogue)).toEqual(["bash", "web_fetch", "web_search"]);
    expect(catalogue.find("web_fetch")).toMatchObject({ kind: "web", slot: "", policy: "always_allow" });
    expect(catalogue.find("web_search")).toMatchObject({ kind: "web", policy: "always_ask" });
    const none = { fetch: false, search: false };
    expect(names(toolCatalogue(specOf(web({})), [], undefined, none))).toEqual([]);
    const off = web({ tools: { web_fetch: { disabled: true } } });
    expect(names(toolCatalogue(specOf(off), [], undefined, both))).toEqual(["web_search"]);
  });

  it("keeps names unique and short enough, the same way each time", () => {
    const long = "t".repeat(128);
    const spec = specOf(toolset({ slot: "s" }), toolset({}), custom("bash"));
    const slots = [slot("", "bash"), slot("s", long)];
    const offered = names(toolCatalogue(spec, slots));
    expect(new Set(offered).size).toBe(3);
    expect(offered.every((name) => /^[a-zA-Z0-9_-]{1,128}$/.test(name))).toBe(true);
    expect(names(toolCatalogue(spec, slots))).toEqual(offered);
  });

  it("names tools of MCP servers by their server, in characters that models take, and asks before each unless told otherwise", () => {
    const mcp = (value: object) => ({ kind: { case: "mcpToolset" as const, value } });
    const tool = (name: string) => ({ name, description: "", inputSchema: "{}" });
    const servers = new Map([
      [
        "my notes",
        { tools: [tool("add.one"), tool("add_one"), tool("gone"), tool("x".repeat(128))], turn: 1 },
      ],
      ["away", { tools: undefined, turn: 1 }],
    ]);
    const spec = specOf(
      mcp({
        serverName: "my notes",
        tools: { gone: { disabled: true }, add_one: { permission: Permission.ALWAYS_ALLOW } },
      }),
      mcp({ serverName: "away" }),
    );
    const catalogue = toolCatalogue(spec, [], servers);
    const [first, second, long] = names(catalogue);
    expect(names(catalogue)).toHaveLength(3);
    expect(first).toBe("mcp__my_notes__add_one");
    expect(second).toMatch(/^mcp__my_notes__add_one_[0-9a-f]{8}$/);
    expect(long).toMatch(/^mcp__my_notes__x{104}_[0-9a-f]{8}$/);
    expect(catalogue.find(second!)).toMatchObject({
      server: "my notes",
      name: "add_one",
      policy: "always_allow",
    });
    expect(catalogue.find(first!)).toMatchObject({ name: "add.one", policy: "always_ask" });
    expect(names(toolCatalogue(spec, []))).toEqual([]);
  });
});
