/** Sessions with several hands, a real server, harness and hand agent: tools by slot, side by side, and the brain's own tools. */
import { describe, expect, it } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { Permission } from "../../proto/gen/tendon/v1/agent_pb.js";
import { eventually } from "../kit/eventually.ts";
import { enrolledAgent } from "../kit/replica-rig.ts";
import { payloads, resultTexts } from "../kit/tool-results.ts";
import { brainTools, GO, handTools, useSeveralHands } from "../kit/use-several-hands.ts";

const rig = useSeveralHands();
const { environment, hands, handsOf, ran, rested, sessions, talk } = rig;

describe("the brain's own tools", () => {
  it("run in the harness: the log says so before, has one result, and no hand was made for them", async () => {
    const sessionId = await talk(
      [{ calls: [{ name: "hand_list" }, { name: "hand_list" }] }],
      [brainTools(["hand_list"]), handTools()],
    );
    const events = await rested(sessionId);
    expect(payloads(events, "agent.tool_use")).toMatchObject([
      { name: "hand_list", runs_in: "brain", evaluated_permission: "allow" },
      { name: "hand_list", runs_in: "brain" },
    ]);
    expect(resultTexts(events)).toHaveLength(2);
    for (const text of resultTexts(events)) expect(text).toContain("default slot: no hand yet");
    expect(await handsOf(sessionId)).toEqual([]);
  });

  it("wait for a confirmation where the agent wants one, and a client cannot answer for them (R23)", async () => {
    const always = { defaultPolicy: { permission: Permission.ALWAYS_ASK } };
    const steps = [{ calls: [{ name: "hand_list" }, { name: "hand_list" }] }];
    const sessionId = await talk(steps, [brainTools(["hand_list"], always)]);
    const asked = await rested(sessionId);
    const [first, second] = asked.filter(({ type }) => type === "agent.tool_use").map(({ id }) => id);
    const say = (type: string, payload: object) =>
      sessions().emitEvents({ sessionId, events: [{ type, payload: JSON.stringify(payload) }] });
    const forged = { tool_use_id: first, content: [{ type: "text", text: "mine" }] };
    await expect(say("user.tool_result", forged)).rejects.toThrow("the brain runs itself");
    await expect(hands().cancelExecution({ sessionId, executionId: first! })).rejects.toThrow(
      "the brain runs itself",
    );
    await say("user.tool_confirmation", { tool_use_id: first, result: "allow" });
    await say("user.tool_confirmation", { tool_use_id: second, result: "deny", deny_message: "no need" });
    const events = await eventually(async () => {
      const now = await rested(sessionId);
      return payloads(now, "agent.message").length > 0 ? now : undefined;
    });
    const texts = Object.fromEntries(
      payloads(events, "agent.tool_result").map((p) => [p.tool_use_id, p.content[0]!.text]),
    );
    expect(texts[first!]).toContain("default slot");
    expect(texts[second!]).toContain("denied this call: no need");
  });
});

describe("a session with several hands", () => {
  it("has an environment for each slot: its own word first, then its agent's, then the default slot's", async () => {
    const [gpu, other] = await Promise.all([environment("gpu"), environment("other")]);
    const tools = [handTools(), handTools("gpu", { environmentId: gpu }), handTools("test")];
    const byAgent = await sessions().getSession({ sessionId: await talk([], tools) });
    const { environmentId } = byAgent.session!;
    expect(byAgent.session?.slotEnvironmentIds).toEqual({ gpu, test: environmentId });
    const said = await talk([], tools, { slots: { gpu: other } });
    expect((await sessions().getSession({ sessionId: said })).session?.slotEnvironmentIds).toEqual({
      gpu: other,
      test: environmentId,
    });
    await expect(talk([], [handTools("gpu", { environmentId: "env_none" })])).rejects.toThrow("env_none");
  });

  it("offers each slot's tools under the slot's name, and calls to different hands run side by side", async () => {
    const gpu = await environment("another gpu");
    // Nobody answers before all three run.
    rig.beforeAnswer = async () => {
      await eventually(() => ran.length === 3);
    };
    const call = (name: string) => ({ name, input: { command: name } });
    const sessionId = await talk(
      [{ calls: [call("bash"), call("gpu__bash"), call("test__bash")] }],
      [handTools(), handTools("gpu", { environmentId: gpu }), handTools("test")],
    );
    const events = await rested(sessionId);
    expect(resultTexts(events).sort()).toEqual([
      "bash ran bash",
      "bash ran gpu__bash",
      "bash ran test__bash",
    ]);
    expect(new Set(ran.map(({ handId }) => handId)).size).toBe(3);
    const made = await handsOf(sessionId);
    const { environmentId } = (await sessions().getSession({ sessionId })).session!;
    expect(Object.fromEntries(made.map((hand) => [hand.slot, hand.environmentId]))).toEqual({
      "": environmentId,
      gpu,
      test: environmentId,
    });
  });
});

describe("the tools of a slot", () => {
  it("stay what they were at the session's first model request, whatever hand agents come to offer", async () => {
    const bash = { calls: [{ name: "bash", input: { command: "x" } }] };
    const sessionId = await talk([{ say: "first" }, bash], [handTools()]);
    await rested(sessionId);
    await rig.agent.disconnect();
    const tools = [{ name: "draw", description: "Draws.", inputSchema: `{"type":"object"}` }];
    const other = await enrolledAgent(
      { url: rig.server.url, admin: rig.server.client(AdminService) },
      { greeting: { drivers: [{ name: "process", available: true, tools, capabilities: [] }] } },
    );
    await other.connect();
    await sessions().emitEvents({ sessionId, events: [GO] });
    const says = (id: string) =>
      eventually(async () => {
        const [text] = resultTexts(await rested(id));
        return text;
      });
    expect(await says(sessionId)).toContain(`this hand has no tool "bash". It has: draw`);
    const next = await talk([bash], [handTools()]);
    expect(await says(next)).toContain(`There is no tool named "bash". Tools: draw`);
    await other.disconnect();
    await rig.agent.connect();
  });
});
