import { afterEach, describe, expect, it } from "vitest";
import { traceOfEvent } from "../../kit/trace.ts";
import { type AgentSpec, Permission, Verdict } from "../../proto/gen/tendon/v1/agent_pb.js";
import { eventually } from "../kit/eventually.ts";
import { gate, redactedThinking, refusal, text, thinking, toolUse, turn } from "../kit/fake-messages-api.ts";
import { type Rig, type RigOptions, rested, spoken, startRig, stopReasons } from "../kit/harness-rig.ts";
import type { ScriptedTool } from "../kit/scripted-harness-server.ts";

let rig: Rig;
afterEach(async () => {
  await rig.stop();
  expect(rig.api.refusals).toEqual([]);
});

const bash: ScriptedTool = ({ command }) => ({ text: `ran ${command}` });
const start = async (options: RigOptions = {}) => {
  rig = await startRig({ server: { tools: { bash } }, ...options });
};
const custom = (name: string): AgentSpec["tools"][number] => ({
  $typeName: "tendon.v1.Tool",
  kind: {
    case: "custom",
    value: {
      $typeName: "tendon.v1.CustomTool",
      name,
      description: "Asks.",
      inputSchema: `{"type":"object"}`,
      answerTimeoutMs: 0n,
    },
  },
});

describe("a turn", () => {
  it("goes from a message to an answer, with the events in their order and batches", async () => {
    await start({ model: { script: [turn([text("Hel", "lo.")])] } });
    const session = rig.talk("hi");
    await rested(session);
    expect(session.types()).toEqual([
      "user.message",
      "session.status_running",
      "brain.inputs_consumed",
      "span.model_request_start",
      "agent.message",
      "span.model_request_end",
      "session.usage",
      "session.status_idle",
    ]);
    const first = session.events[0]!.id;
    expect(session.payloads("brain.inputs_consumed")).toEqual([
      { event_ids: [first], turn: 1, trace_id: traceOfEvent(first).traceId },
    ]);
    expect(session.payloads("session.status_idle")).toEqual([
      { stop_reason: { type: "end_turn" }, stop_details: null },
    ]);
    const [end] = session.payloads("span.model_request_end");
    const started = session.events.find(({ type }) => type === "span.model_request_start")!;
    expect(end).toMatchObject({ model_request_start_id: started.id, is_error: false });
    expect((end!.model_usage as { output_tokens: number }).output_tokens).toBeGreaterThan(0);
    expect(spoken(session)).toEqual(["Hello."]);
  });

  it("shows text while it forms, under the id of the event that follows (L5)", async () => {
    const held = gate();
    await start({
      model: {
        script: [
          turn([text("first ", "second")], { before: { delta: (n) => (n === 1 ? held.opened : undefined) } }),
        ],
      },
    });
    const session = rig.talk("hi");
    const shown = () => rig.server.previews.map(({ preview }) => preview.kind);
    await eventually(() => shown().some((kind) => kind.case === "text" && kind.value.text === "first "));
    expect(session.types()).not.toContain("agent.message");
    held.open();
    await rested(session);
    const message = session.events.find(({ type }) => type === "agent.message")!;
    const started = shown().find((kind) => kind.case === "start")!;
    expect(started.value).toMatchObject({ eventId: message.id, type: "agent.message" });
  });

  it("runs the calls of one answer side by side and gives their results back in the order of the calls", async () => {
    const both = gate();
    let running = 0;
    const waits: ScriptedTool = async ({ command }) => {
      running += 1;
      if (running === 2) both.open();
      await both.opened;
      return { text: `ran ${command}` };
    };
    await start({
      server: { tools: { bash: waits } },
      model: {
        script: [
          turn([
            thinking("Two ", "calls."),
            redactedThinking("secret"),
            text("Both."),
            toolUse("bash", { command: "a" }, { pieces: ['{"command" : ', '"a"}'] }),
            toolUse("bash", { command: "b" }),
          ]),
          turn(["Done."]),
        ],
      },
    });
    const session = rig.talk("both");
    await rested(session);
    const uses = session.events.filter(({ type }) => type === "agent.tool_use");
    expect(uses.map(({ payload }) => payload)).toEqual([
      `{"name":"bash","hand":"","input":{"command" : "a"},"evaluated_permission":"allow","evaluation":{"type":"always_allow"}}`,
      `{"name":"bash","hand":"","input":{"command":"b"},"evaluated_permission":"allow","evaluation":{"type":"always_allow"}}`,
    ]);
    const messages = (rig.api.requests[1]!.json as { messages: { role: string; content: object[] }[] })
      .messages;
    expect(messages.map(({ role }) => role)).toEqual(["user", "assistant", "user"]);
    expect(messages[2]!.content).toMatchObject([
      { type: "tool_result", content: [{ text: "ran a" }] },
      { type: "tool_result", content: [{ text: "ran b" }] },
    ]);
    expect([...rig.server.runs.values()]).toEqual([1, 1]);
    expect(spoken(session)).toEqual(["Both.", "Done."]);
  });

  it("sends requests of which each begins with the one before, over turns and harnesses", async () => {
    const calls = (n: number) => turn([thinking(`step ${n}`), toolUse("bash", { command: `c${n}` })]);
    await start({ model: { script: [calls(1), calls(2), turn(["one"]), calls(3), turn(["two"])] } });
    const session = rig.talk("first");
    await rested(session);
    await rig.harness.stop();
    await rig.addHarness();
    session.say("second");
    await rested(session, 2);
    const bodies = rig.api.requests.map(({ body }) => withoutMarks(body.toString()));
    expect(bodies).toHaveLength(5);
    for (const [i, body] of bodies.slice(1).entries()) {
      expect(body.startsWith(bodies[i]!.replace(/\]\}\]\}$/, ""))).toBe(true);
    }
  });

  it("passes what is written byte for byte through log and hand, also keys and numbers that JavaScript would change", async () => {
    const odd = `{"b":1.0,"10":"x","2":12345678901234567890}`;
    const inputs: string[] = [];
    await start({
      server: { tools: { bash: (input) => ({ text: String(inputs.push(JSON.stringify(input))) }) } },
      model: { script: [turn([toolUse("bash", odd)]), turn(["ok"])] },
    });
    const session = rig.talk("go");
    await rested(session);
    expect(session.events.find(({ type }) => type === "agent.tool_use")!.payload).toContain(`"input":${odd}`);
    expect(rig.api.requests[1]!.body.toString()).toContain(`"input":${odd}`);
  });

  it("reads texts that the server left out for their size", async () => {
    await start({ server: { tools: { bash }, inlineLimitBytes: 200 }, model: { script: [turn(["ok"])] } });
    const long = "long ".repeat(500);
    const session = rig.talk(long);
    await rested(session);
    const { messages } = rig.api.requests[0]!.json as { messages: { content: { text: string }[] }[] };
    expect(messages[0]!.content[0]!.text).toBe(long);
  });
});

describe("many sessions on one harness", () => {
  it("each get what is theirs, all at the same time", async () => {
    const all = gate();
    let waiting = 0;
    await start({
      harness: { capacity: 60 },
      // The first waits for the last.
      settings: { modelTimeoutMs: 60_000, retry: { firstMs: 5, maxMs: 20, totalMs: 60_000 } },
      server: { tools: { bash: ({ command }) => ({ text: `answer to ${command}` }) } },
      model: {
        script: async ({ messages }) => {
          const [first] = messages[0]!.content;
          if (messages.length > 1) return turn([`done ${first!.text}`]);
          waiting += 1;
          if (waiting === 60) all.open();
          await all.opened;
          return turn([toolUse("bash", { command: `${first!.text}` })]);
        },
      },
    });
    const sessions = Array.from({ length: 60 }, (_, i) => rig.talk(`question ${i}`));
    for (const [i, session] of sessions.entries()) {
      await rested(session, 1, 60_000);
      expect(spoken(session)).toEqual([`done question ${i}`]);
      expect(JSON.stringify(session.payloads("agent.tool_result"))).toContain(`answer to question ${i}"`);
    }
    expect(rig.harness.sessions).toBe(0);
  });
});

describe("calls that need a client", () => {
  it("wait for confirmations: allowed ones run, denied ones are told to the model", async () => {
    await start({
      model: {
        script: [turn([toolUse("bash", { command: "a" }), toolUse("bash", { command: "b" })]), turn(["ok"])],
      },
    });
    const session = rig.talk("go", {
      tools: [
        {
          $typeName: "tendon.v1.Tool",
          kind: {
            case: "handToolset",
            value: {
              $typeName: "tendon.v1.HandToolset",
              slot: "",
              environmentId: "",
              tools: {},
              defaultPolicy: {
                $typeName: "tendon.v1.ToolPolicy",
                disabled: false,
                permission: Permission.ALWAYS_ASK,
                answerTimeoutMs: 0n,
                timeoutVerdict: Verdict.UNSPECIFIED,
              },
            },
          },
        },
      ],
    });
    await rested(session);
    const ids = session.events.filter(({ type }) => type === "agent.tool_use").map(({ id }) => id);
    expect(session.payloads("session.status_idle")[0]!.stop_reason).toEqual({
      type: "requires_action",
      event_ids: ids,
    });
    expect(rig.server.runs.size).toBe(0);
    session.send({ type: "user.tool_confirmation", payload: { tool_use_id: ids[0], result: "allow" } });
    await rested(session, 2);
    expect(session.payloads("session.status_idle")[1]!.stop_reason).toEqual({
      type: "requires_action",
      event_ids: [ids[1]],
    });
    session.send({
      type: "user.tool_confirmation",
      payload: { tool_use_id: ids[1], result: "deny", deny_message: "not that" },
    });
    await rested(session, 3);
    expect([...rig.server.runs.keys()]).toEqual([`${session.id}/${ids[0]}`]);
    const second = rig.api.requests[1]!.body.toString();
    expect(second).toContain("ran a");
    expect(second).toContain("The user denied this call: not that");
  });

  it("a custom tool is answered by the client, and its answer goes to the model", async () => {
    await start({ model: { script: [turn([toolUse("ask_user", { q: 1 })]), turn(["ok"])] } });
    const session = rig.talk("go", { tools: [custom("ask_user")] });
    await rested(session);
    const use = session.events.find(({ type }) => type === "agent.custom_tool_use")!;
    expect(JSON.parse(use.payload)).toEqual({ name: "ask_user", input: { q: 1 } });
    session.send({
      type: "user.custom_tool_result",
      payload: { custom_tool_use_id: use.id, content: [{ type: "text", text: "42" }] },
    });
    await rested(session, 2);
    expect(rig.api.requests[1]!.body.toString()).toContain(`"content":[{"type":"text","text":"42"`);
    const consumed = session.payloads("brain.inputs_consumed").flatMap(({ event_ids }) => event_ids);
    expect(consumed).toContain(session.events.find(({ type }) => type === "user.custom_tool_result")!.id);
  });
});

describe("answers that are not plain", () => {
  it("a call of an unknown tool and one whose input is not JSON get error results, and the turn goes on", async () => {
    await start({
      model: { script: [turn([toolUse("nope", {}), toolUse("bash", '{"command": "a"')]), turn(["ok"])] },
    });
    const session = rig.talk("go");
    await rested(session);
    expect(session.payloads("agent.tool_use").map((use) => use.evaluated_permission)).toEqual([
      "deny",
      "deny",
    ]);
    expect(rig.server.runs.size).toBe(0);
    const second = rig.api.requests[1]!.body.toString();
    expect(second).toContain(`There is no tool named \\"nope\\"`);
    expect(second).toContain("not valid JSON");
    expect(spoken(session)).toEqual(["ok"]);
  });

  it("a refusal ends the turn as one, and is not sent back to the model", async () => {
    await start({ model: { script: [refusal(["I will not"], "cyber"), turn(["fine"])] } });
    const session = rig.talk("go");
    await rested(session);
    expect(session.payloads("session.status_idle")[0]).toEqual({
      stop_reason: { type: "refusal" },
      stop_details: { type: "refusal", category: "cyber", explanation: null },
    });
    session.say("something else");
    await rested(session, 2);
    expect(rig.api.requests[1]!.body.toString()).not.toContain("I will not");
  });

  it("an answer that reaches its length limit stands as it is, and the log says so", async () => {
    await start({ model: { script: [turn(["cut he"], { stopReason: "max_tokens" }), turn(["on"])] } });
    const session = rig.talk("go");
    await rested(session);
    expect(session.payloads("span.model_request_end")[0]).toMatchObject({ stop_reason: "max_tokens" });
    session.say("go on");
    await rested(session, 2);
    expect(spoken(session)).toEqual(["cut he", "on"]);
  });

  it("answers that are cut inside a call again and again end the turn", async () => {
    const cut = turn([toolUse("bash", '{"command": "long')], { stopReason: "max_tokens" });
    await start({ model: { script: [cut, cut, cut, turn(["ok"])] } });
    const session = rig.talk("go");
    await rested(session);
    expect(session.payloads("session.error")[0]).toMatchObject({
      error: { type: "tool_use_limit_reached_error" },
    });
    expect(stopReasons(session)).toEqual(["retries_exhausted"]);
    expect(rig.server.runs.size).toBe(0);
    session.say("again");
    await rested(session, 2);
    expect(spoken(session)).toEqual(["ok"]);
  });

  it("a paused answer goes on with the next request", async () => {
    await start({
      model: { script: [turn(["part one"], { stopReason: "pause_turn" }), turn([" part two"])] },
    });
    const session = rig.talk("go");
    await rested(session);
    expect(spoken(session)).toEqual(["part one", " part two"]);
    expect(stopReasons(session)).toEqual(["end_turn"]);
  });

  it("a turn of too many rounds is ended", async () => {
    await start({
      model: { script: (_, n) => (n <= 3 ? turn([toolUse("bash", { command: `${n}` })]) : turn(["ok"])) },
      settings: { maxRounds: 3 },
    });
    const session = rig.talk("go");
    await rested(session);
    expect(rig.api.requests).toHaveLength(3);
    expect(stopReasons(session)).toEqual(["retries_exhausted"]);
    session.say("again");
    await rested(session, 2);
    expect(spoken(session)).toEqual(["ok"]);
  });
});

function withoutMarks(body: string): string {
  return body.replaceAll(`,"cache_control":{"type":"ephemeral"}`, "");
}
