/** The permission policy `auto` with a real harness: a model judges each call, and the log says what it said before anything runs. */
import { afterEach, describe, expect, it } from "vitest";
import { type AgentSpec, Permission } from "../../proto/gen/tendon/v1/agent_pb.js";
import { eventually } from "../kit/eventually.ts";
import {
  drop,
  gate,
  hang,
  type MessagesRequest,
  overloaded,
  type Turn,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import { JUDGING_MODEL, type Rig, rested, spoken, startRig, stopReasons } from "../kit/harness-rig.ts";
import type { ScriptedTool } from "../kit/scripted-harness-server.ts";
import type { ScriptedSession } from "../kit/scripted-session.ts";

let rig: Rig;
afterEach(async () => {
  await rig.stop();
  expect(rig.api.refusals).toEqual([]);
});

const bash: ScriptedTool = ({ command }) => ({ text: `ran ${command}` });

/** The newest request is the model's own talk: the commands of the user's first words, then "Done.". */
const talks = ({ messages }: MessagesRequest): Turn => {
  if (messages.some(({ role }) => role === "assistant")) return turn(["Done."]);
  const commands = String(messages[0]!.content[0]!.text).split(" ");
  return turn(["I will.", ...commands.map((command) => toolUse("bash", { command }))]);
};
const verdict = (word: string, reason = "so") => turn([JSON.stringify({ verdict: word, reason })]);

async function start(judges: (command: string, request: MessagesRequest) => Turn | Promise<Turn>) {
  const script = (request: MessagesRequest) => {
    if (request.model !== JUDGING_MODEL) return talks(request);
    const { call } = JSON.parse(String(request.messages[0]!.content[0]!.text));
    return judges(JSON.parse(call.input_json).command, request);
  };
  rig = await startRig({ server: { tools: { bash } }, model: { script } });
}

const AUTO = {
  system: "You run commands.",
  tools: [{ kind: { case: "handToolset", value: { defaultPolicy: { permission: Permission.AUTO } } } }],
} as unknown as Partial<AgentSpec>;

const judging = () => rig.api.requests.filter(({ json }) => json?.model === JUDGING_MODEL);
const uses = (session: ScriptedSession) =>
  session
    .payloads("agent.tool_use")
    .map(({ evaluated_permission, evaluation }) => [evaluated_permission, evaluation]);
const results = (session: ScriptedSession) =>
  session
    .payloads("agent.tool_result")
    .map(({ content, failure }) => [
      (content as { text: string }[])[0]!.text,
      (failure as { reason?: string })?.reason,
    ]);
const judged = (type: string, reason_code?: string) => [
  type,
  { type: "auto", evaluated_permission: reason_code === undefined ? { type } : { type, reason_code } },
];

describe("a call whose policy is auto", () => {
  it("runs when it was judged safe; the verdict and its usage are in the log before it is sent", async () => {
    await start(() => verdict("allow"));
    const session = rig.talk("ls", AUTO);
    await rested(session);
    expect(uses(session)).toEqual([judged("allow")]);
    expect(results(session)).toEqual([["ran ls", undefined]]);
    expect(spoken(session)).toEqual(["I will.", "Done."]);
    const [use] = session.events.filter(({ type }) => type === "agent.tool_use");
    const [said] = session.payloads("brain.call_judged");
    expect(said).toMatchObject({
      tool_use_id: use!.id,
      evaluated_permission: { type: "allow" },
      why: "so",
      model: JUDGING_MODEL,
    });
    const order = session.types();
    const at = (type: string) => order.indexOf(type);
    expect(at("brain.judging_began")).toBeLessThan(at("brain.call_judged"));
    expect(at("brain.call_judged")).toBeLessThan(at("agent.tool_use"));
    expect(at("agent.tool_use")).toBeLessThan(at("agent.tool_result"));
    // Two of the talk, one that judges.
    const spent = [...session.payloads("span.model_request_end"), said!].map(
      ({ model_usage }) => (model_usage as { input_tokens: number; output_tokens: number }) ?? {},
    );
    const [usage] = session.payloads("session.usage").map(({ usage: sum }) => sum as Record<string, number>);
    expect(usage).toMatchObject({
      model_requests: 3,
      input_tokens: spent.reduce((sum, { input_tokens }) => sum + input_tokens, 0),
      output_tokens: spent.reduce((sum, { output_tokens }) => sum + output_tokens, 0),
    });
  });

  it("is judged without tools, with what was said as data, and bounded", async () => {
    await start(() => verdict("allow"));
    await rested(rig.talk("ls", AUTO));
    const { tools, system, max_tokens, messages } = judging()[0]!.json as never as MessagesRequest["raw"];
    expect(tools).toBeUndefined();
    expect(max_tokens).toBeLessThanOrEqual(2_000);
    expect(system).not.toContain("You run commands.");
    const [{ content }] = messages as [{ content: [{ text: string }] }];
    expect(JSON.parse(content[0].text)).toMatchObject({
      agent_instructions: "You run commands.",
      conversation: [
        { from: "user", text: "ls" },
        { from: "agent", text: "I will." },
        { from: "agent", calls: "bash" },
      ],
      call: { tool: "bash" },
    });
  });

  it("does not run when it was judged too risky, and the model is told", async () => {
    await start((command) => verdict(command === "rm" ? "deny" : "allow"));
    const session = rig.talk("ls rm", AUTO);
    await rested(session);
    expect(uses(session)).toEqual([judged("allow"), judged("deny", "high_risk")]);
    expect(rig.server.runs.size).toBe(1);
    const denied = results(session).find(([, reason]) => reason === "HIGH_RISK");
    expect(denied?.[0]).toContain("high_risk");
    expect(spoken(session).at(-1)).toBe("Done.");
  });

  it("waits for a client when the judge leaves it open, and runs once it is allowed", async () => {
    await start(() => verdict("ask"));
    const session = rig.talk("ls", AUTO);
    await rested(session);
    const [use] = session.events.filter(({ type }) => type === "agent.tool_use");
    expect(uses(session)).toEqual([judged("ask", "indeterminate")]);
    expect(session.payloads("session.status_idle")[0]!.stop_reason).toEqual({
      type: "requires_action",
      event_ids: [use!.id],
    });
    expect(rig.server.runs.size).toBe(0);
    session.send({ type: "user.tool_confirmation", payload: { tool_use_id: use!.id, result: "allow" } });
    await rested(session, 2);
    expect(results(session)).toEqual([["ran ls", undefined]]);
    expect(judging()).toHaveLength(1);
  });

  it.each<[string, () => Turn, number]>([
    ["no verdict", () => turn(["The tool's result says: allow this. So I allow it."]), 1],
    ["a verdict with more around it", () => turn([`OK: {"verdict":"allow"}`]), 1],
    ["a refusal", () => turn([`{"verdict":"allow"}`], { stopReason: "refusal" }), 1],
    ["a call", () => turn([`{"verdict":"allow"}`, toolUse("bash", {})]), 1],
    ["an overloaded model, asked twice", overloaded, 2],
    ["a broken connection, tried twice", () => drop, 2],
  ])("is held for a client after %s", async (_what, answer, requests) => {
    await start(answer);
    const session = rig.talk("ls", AUTO);
    await rested(session);
    expect(uses(session)).toEqual([judged("ask", "indeterminate")]);
    expect(stopReasons(session)).toEqual(["requires_action"]);
    expect(rig.server.runs.size).toBe(0);
    expect(judging()).toHaveLength(requests);
  });

  it("runs after a second attempt when the judge failed in passing", async () => {
    await start(() => (judging().length === 1 ? overloaded() : verdict("allow")));
    const session = rig.talk("ls", AUTO);
    await rested(session);
    expect(uses(session)).toEqual([judged("allow")]);
    expect(judging()).toHaveLength(2);
  });

  it("is refused when the provider wants money, and nobody is asked", async () => {
    const message = "credit balance is too low";
    await start(() => ({ kind: "http_failure", status: 402, errorType: "billing_error", message }));
    const session = rig.talk("ls", AUTO);
    await rested(session);
    expect(uses(session)).toEqual([judged("deny", "indeterminate")]);
    expect(results(session)).toMatchObject([[expect.stringContaining("indeterminate"), "NOT_JUDGED"]]);
    expect(session.payloads("brain.call_judged")).toMatchObject([
      { failure: { part: "model", reason: "BILLING" } },
    ]);
    expect(stopReasons(session)).toEqual(["end_turn"]);
  });

  it("is not judged when it is too large to be shown whole: a client is asked", async () => {
    await start(() => verdict("allow"));
    const session = rig.talk("x".repeat(70_000), AUTO);
    await rested(session);
    expect(uses(session)).toEqual([judged("ask", "indeterminate")]);
    expect(judging()).toHaveLength(0);
    expect(session.payloads("brain.call_judged")[0]).not.toHaveProperty("model_usage");
    expect(session.payloads("session.usage")[0]!.usage).toMatchObject({ model_requests: 1 });
  });
});

describe("several calls of one answer", () => {
  it("are judged side by side, four at a time, and each gets its own verdict", async () => {
    const held = gate();
    await start(async (command) => {
      await held.opened;
      return verdict(command === "c3" ? "deny" : "allow");
    });
    const session = rig.talk("c1 c2 c3 c4 c5 c6", AUTO);
    await eventually(() => judging().length === 4);
    expect(session.types()).not.toContain("agent.tool_use");
    held.open();
    await rested(session);
    expect(judging()).toHaveLength(6);
    expect(uses(session).map(([permission]) => permission)).toEqual([
      "allow",
      "allow",
      "deny",
      "allow",
      "allow",
      "allow",
    ]);
    expect(rig.server.runs.size).toBe(5);
  });

  it("beyond 32 are held", async () => {
    await start(() => verdict("allow"));
    const session = rig.talk(Array.from({ length: 34 }, (_, n) => `c${n}`).join(" "), AUTO);
    await rested(session);
    expect(judging()).toHaveLength(32);
    expect(uses(session).filter(([permission]) => permission === "ask")).toHaveLength(2);
  });
});

describe("an interrupt while calls are judged", () => {
  it("ends the turn; what was not judged does not run, and what the model said is kept", async () => {
    await start((command) => (command === "ls" ? verdict("allow") : hang));
    const session = rig.talk("ls slow", AUTO);
    await eventually(() => judging().length === 2 && judging().some(({ outcome }) => outcome === "answered"));
    session.send({ type: "user.interrupt", payload: {} });
    await rested(session);
    await eventually(() => judging().some(({ outcome }) => outcome === "client_closed"));
    expect(spoken(session)).toEqual(["I will."]);
    expect(uses(session)[1]).toEqual(judged("deny", "indeterminate"));
    expect(session.payloads("agent.tool_result")).toHaveLength(2);
    expect(session.payloads("agent.tool_result")).toMatchObject([
      { failure: { reason: "INTERRUPTED" } },
      { failure: { reason: "INTERRUPTED" } },
    ]);
    expect(stopReasons(session)).toEqual(["end_turn"]);
    expect(rig.server.runs.size).toBe(0);
    session.say("go on");
    await rested(session, 2);
    expect(spoken(session).at(-1)).toBe("Done.");
  });
});

describe("whoever goes on from the log", () => {
  it("judges nothing again: the verdict stands with the call", async () => {
    await start(() => verdict("allow"));
    const session = rig.talk("ls", AUTO);
    await rested(session);
    // The same log up to the call, as a harness leaves it that dies before it sends the call.
    const until = session.events.findIndex(({ type }) => type === "agent.tool_result");
    const resumed = rig.resume(session.events.slice(0, until), AUTO);
    await rested(resumed);
    expect(results(resumed)).toEqual([["ran ls", undefined]]);
    expect(judging()).toHaveLength(1);
    expect(session.payloads("session.usage").at(-1)).toEqual(resumed.payloads("session.usage").at(-1));
  });
});
