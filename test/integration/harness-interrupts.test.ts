import { afterEach, describe, expect, it } from "vitest";
import { QueuedMessages } from "../../proto/gen/tendon/v1/agent_pb.js";
import { eventually } from "../kit/eventually.ts";
import { gate, type MessagesRequest, text, toolUse, turn } from "../kit/fake-messages-api.ts";
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

describe("messages while a turn runs (L6)", () => {
  const script = (held: { opened: Promise<void> }) => [
    turn([toolUse("bash", { command: "x" })], { before: { headers: held.opened } }),
    turn(["first"]),
    turn(["second"]),
  ];
  const usersOf = (request: MessagesRequest | undefined) =>
    JSON.stringify(request?.messages.filter(({ role }) => role === "user"));

  it("wait for the end of the turn, and all that wait are taken together in log order", async () => {
    const held = gate();
    await start({ model: { script: script(held) } });
    const session = rig.talk("one");
    await rig.api.received(1);
    session.say("two");
    session.say("three");
    held.open();
    await rested(session);
    const second = rig.api.requests[1]!.json as unknown as MessagesRequest;
    const third = rig.api.requests[2]!.json as unknown as MessagesRequest;
    expect(usersOf(second)).not.toContain("two");
    expect(usersOf(third)).toMatch(/one.*two.*three/);
    expect(session.payloads("brain.inputs_consumed").map(({ turn: n }) => n)).toEqual([1, 2]);
    expect(stopReasons(session)).toEqual(["end_turn"]);
    expect(session.types().filter((type) => type === "session.status_running")).toHaveLength(1);
  });

  it("go along with the next request where the agent wants it so", async () => {
    const held = gate();
    await start({ model: { script: [...script(held).slice(0, 1), turn(["both"])] } });
    const session = rig.talk("one", { queuedMessages: QueuedMessages.NEXT_STEP });
    await rig.api.received(1);
    session.say("two");
    held.open();
    await rested(session);
    const second = rig.api.requests[1]!.json as unknown as MessagesRequest;
    const blocks = second.messages.at(-1)!.content;
    expect(blocks.map(({ type }) => type)).toEqual(["tool_result", "text"]);
    expect(rig.api.requests).toHaveLength(2);
  });

  it("a system message follows the user's word that it came after", async () => {
    await start({ model: { script: [turn(["ok"])] } });
    const session = rig.server.createSession();
    session.send(
      { type: "user.message", payload: { content: [{ type: "text", text: "hi" }] } },
      { type: "system.message", payload: { content: [{ type: "text", text: "be brief" }] } },
    );
    await rested(session);
    const { messages } = rig.api.requests[0]!.json as unknown as MessagesRequest;
    expect(messages.map(({ role }) => role)).toEqual(["user", "system"]);
  });
});

describe("an interrupt", () => {
  const interrupt = { type: "user.interrupt", payload: {} };

  it("closes the model's stream and leaves only the span pair; what follows is answered", async () => {
    const held = gate();
    await start({
      model: { script: [turn([text("never ", "whole")], { before: { end: held.opened } }), turn(["next"])] },
    });
    const session = rig.talk("one");
    await eventually(() => rig.server.previews.some(({ preview }) => preview.kind.case === "text"));
    session.send(interrupt);
    await rested(session);
    await eventually(() => rig.api.requests[0]!.outcome === "client_closed");
    expect(session.types()).not.toContain("agent.message");
    expect(session.payloads("span.model_request_end")).toMatchObject([{ is_error: true }]);
    expect(session.payloads("session.status_idle")[0]).toMatchObject({
      stop_reason: { type: "end_turn" },
      interrupted: { event_id: session.events.find(({ type }) => type === "user.interrupt")!.id },
    });
    session.say("two");
    await rested(session, 2);
    expect(spoken(session)).toEqual(["next"]);
    held.open();
  });

  it("cancels running calls; each gets exactly one result and the next turn is valid (X3)", async () => {
    const hangs: ScriptedTool = (_, signal) =>
      new Promise((resolve) => signal.addEventListener("abort", () => resolve({ text: "late" })));
    await start({
      server: { tools: { bash, slow: hangs } },
      model: {
        script: [
          turn([toolUse("slow", {}), toolUse("bash", { command: "a" }), toolUse("slow", {})]),
          turn(["ok"]),
        ],
      },
    });
    const session = rig.talk("one");
    await eventually(() => rig.server.runs.size === 3 && session.types().includes("agent.tool_result"));
    session.send(interrupt, {
      type: "user.message",
      payload: { content: [{ type: "text", text: "instead" }] },
    });
    await rested(session, 2);
    const answered = session.payloads("agent.tool_result").map(({ tool_use_id }) => tool_use_id);
    expect(new Set(answered).size).toBe(3);
    expect(answered).toHaveLength(3);
    expect(spoken(session)).toEqual(["ok"]);
    expect(stopReasons(session)).toEqual(["end_turn", "end_turn"]);
  });

  it("of a session that rests is taken in and changes nothing", async () => {
    await start({ model: { script: [turn(["ok"])] } });
    const session = rig.talk("one");
    await rested(session);
    session.send(interrupt);
    await eventually(() => session.types().at(-1) === "brain.inputs_consumed" && !session.isHeld);
    expect(stopReasons(session)).toEqual(["end_turn"]);
  });
});
