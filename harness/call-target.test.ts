import { create } from "@bufbuild/protobuf";
import { describe, expect, it } from "vitest";
import { AgentSpecSchema, Permission, Verdict } from "../proto/gen/tendon/v1/agent_pb.js";
import { SlotToolsSchema } from "../proto/gen/tendon/v1/harness_service_pb.js";
import { callTarget } from "./call-target.ts";
import { toolCatalogue } from "./tool-catalogue.ts";

const slots = [
  create(SlotToolsSchema, {
    slot: "",
    tools: ["bash", "write"].map((name) => ({ name, inputSchema: "{}" })),
  }),
];
const hands = (value: object) => ({ kind: { case: "handToolset" as const, value } });
const through = (defaultPolicy?: object) => ({
  kind: { case: "brainToolset" as const, value: { names: ["hand_execute"], defaultPolicy } },
});

function target(inputText: string, tools: object[], modelName = "hand_execute") {
  const spec = create(AgentSpecSchema, { name: "a", tools } as never);
  const call = {
    kind: "call" as const,
    eventId: "sevt_1",
    modelName,
    inputText,
    problem: undefined,
    blocks: [],
  };
  const { tool, ...rest } = callTarget(call, toolCatalogue(spec, slots));
  return {
    ...rest,
    tool: tool && { kind: tool.kind, slot: tool.slot, name: tool.name, policy: tool.policy },
  };
}

describe("what a call stands for", () => {
  it("is the tool that the model named, with its input as written", () => {
    expect(target(`{"a": 1e400}`, [hands({})], "bash")).toEqual({
      tool: { kind: "hand", slot: "", name: "bash", policy: "always_allow" },
      input: `{"a": 1e400}`,
      via: undefined,
      problem: undefined,
    });
    expect(target("{", [hands({})], "nothing").problem).toContain("Tools: bash, write");
  });

  it("is through hand_execute the tool of the hand that it names, with that part of the input as written", () => {
    const text = `{"tool":"bash", "hand":"late","input":{"n": 12345678901234567890 , "x":"\\u0041"}}`;
    expect(target(text, [through()])).toEqual({
      tool: { kind: "hand", slot: "late", name: "bash", policy: "always_allow" },
      input: `{"n": 12345678901234567890 , "x":"\\u0041"}`,
      via: "hand_execute",
      problem: undefined,
    });
    expect(target(`{"tool":"bash"}`, [through()])).toMatchObject({ input: "{}", tool: { slot: "" } });
  });

  it("is nothing when hand, tool or input are none, and then the model is told", () => {
    for (const text of [
      `{"hand":"UP","tool":"bash"}`,
      `{"hand":"a__b","tool":"bash"}`,
      `{"hand":"mcp","tool":"bash"}`,
      `{"hand":1,"tool":"bash"}`,
      `{"tool":"no tool"}`,
      `{"input":{}}`,
      `{"tool":"bash","input":"text"}`,
      `{"tool":"bash","input":[]}`,
    ]) {
      expect(target(text, [through()])).toMatchObject({
        problem: expect.stringContaining('"'),
        via: undefined,
      });
    }
  });

  it("is allowed only as the strictest of toolset and hand_execute says, and a hand that no toolset speaks of as all of them say", () => {
    const asks = { permission: Permission.ALWAYS_ASK, answerTimeoutMs: 5n, timeoutVerdict: Verdict.ALLOW };
    const ownRules = hands({ tools: { bash: asks, write: { disabled: true } } });
    const policy = (text: string, tools: object[]) => target(text, tools).tool?.policy;
    expect(policy(`{"tool":"bash"}`, [ownRules, through()])).toBe("always_ask");
    expect(policy(`{"tool":"other"}`, [ownRules, through()])).toBe("always_allow");
    expect(target(`{"tool":"write"}`, [ownRules, through()]).problem).toContain("not allowed");
    expect(policy(`{"tool":"bash"}`, [hands({}), through(asks)])).toBe("always_ask");
    expect(policy(`{"tool":"bash","hand":"late"}`, [hands({}), through()])).toBe("always_allow");
    expect(policy(`{"tool":"bash","hand":"late"}`, [through()])).toBe("always_allow");
    // A rule is not got round by making one more hand, or by passing the hand on and back.
    expect(policy(`{"tool":"bash","hand":"late"}`, [ownRules, through()])).toBe("always_ask");
    expect(policy(`{"tool":"bash","hand":"late"}`, [hands({ slot: "x" }), ownRules, through()])).toBe(
      "always_ask",
    );
    expect(target(`{"tool":"write","hand":"late"}`, [ownRules, through()]).problem).toContain("not allowed");
    expect(policy(`{"tool":"bash","hand":"x"}`, [hands({ slot: "x" }), ownRules, through()])).toBe(
      "always_allow",
    );
    expect(policy(`{"tool":"bash","hand":"late"}`, [ownRules, through(asks)])).toBe("always_ask");
    expect(toolCatalogue(create(AgentSpecSchema, { name: "a" }), slots).reach("", "bash")).toBeUndefined();
  });

  it("does not run when its time is over as long as one of those that ask would wait on", () => {
    const ask = Permission.ALWAYS_ASK;
    const lenient = { permission: ask, answerTimeoutMs: 5n, timeoutVerdict: Verdict.ALLOW };
    const terms = (own: object, reaching: object) => {
      const spec = create(AgentSpecSchema, {
        name: "a",
        tools: [hands({ defaultPolicy: own }), through(reaching)],
      } as never);
      return toolCatalogue(spec, slots).reach("", "bash")?.answerTerms;
    };
    expect(terms({ permission: ask }, lenient)).toBeUndefined();
    expect(terms(lenient, { permission: ask })).toBeUndefined();
    expect(terms({ permission: ask, answerTimeoutMs: 9n }, lenient)).toEqual({
      timeoutMs: 9,
      verdict: "deny",
    });
    expect(terms({ ...lenient, answerTimeoutMs: 7n }, lenient)).toEqual({ timeoutMs: 7, verdict: "allow" });
    expect(terms(lenient, {})).toEqual({ timeoutMs: 5, verdict: "allow" });
  });
});
