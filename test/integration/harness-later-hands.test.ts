/** Hands that the brain makes, reaches, passes on and ends by tools of its own, a real server, harness and hand agent; and what a harness that dies in between leaves. */
import { describe, expect, it, onTestFinished } from "vitest";
import type { ServerClients } from "../../harness/server-clients.ts";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { Permission } from "../../proto/gen/tendon/v1/agent_pb.js";
import { eventually } from "../kit/eventually.ts";
import { payloads, resultsInOrder, resultTexts } from "../kit/tool-results.ts";
import { brainTools, GO, handTools, type Step, useSeveralHands } from "../kit/use-several-hands.ts";

const rig = useSeveralHands();
const { environment, hands, handsOf, log, ran, rested, sessions, talk } = rig;

const ALL = ["hand_execute", "hand_hand_over", "hand_list", "hand_provision", "hand_release"];
const reach = (hand: string, tool: string, input: object = {}) => ({
  name: "hand_execute",
  input: { hand, tool, input },
});

describe("hands that come later", () => {
  it("are provisioned, listed, reached and released by the brain, and none is made by a wrong name", async () => {
    const sessionId = await talk(
      [
        { calls: [{ name: "hand_provision", input: { slot: "late" } }] },
        { calls: [reach("late", "bash", { command: "here" }), { name: "hand_list" }] },
        { calls: [{ name: "hand_list", input: { slot: "late" } }, reach("lte", "bash")] },
        { calls: [{ name: "hand_release", input: { slot: "late" } }] },
        { calls: [reach("late", "bash"), { name: "hand_release", input: { slot: "late" } }] },
        { calls: [reach("no slot", "bash"), reach("late", "no tool"), reach("", "no_such")] },
      ],
      [brainTools(ALL)],
    );
    const events = await rested(sessionId);
    const texts = resultsInOrder(events);
    const [hand] = await handsOf(sessionId, true).then((all) => all.filter(({ slot }) => slot === "late"));
    expect(texts[0]).toContain(`the slot "late": ${hand?.id}, ready`);
    expect(texts[1]).toBe("bash ran here");
    expect(ran[0]).toMatchObject({ handId: hand?.id, name: "bash" });
    expect(texts[2]).toContain("the default slot: no hand yet");
    expect(texts[3]).toContain("Input schema: {");
    expect(texts[4]).toContain(`there is no hand in the slot "lte"`);
    expect(texts[5]).toContain(`${hand?.id} in the slot "late" is released`);
    expect(texts[6]).toContain(`there is no hand in the slot "late"`);
    expect(texts[7]).toContain(`There is no hand in the slot "late"`);
    expect(texts[8]).toContain(`"no slot" is no name of a slot`);
    expect(texts[9]).toContain(`"tool" must be the name`);
    expect(texts[10]).toContain(`this hand has no tool "no_such"`);
    expect(await handsOf(sessionId)).toHaveLength(1);
  });

  it("are reached by calls like any other: the log has slot, tool and input as written, and the server the result", async () => {
    const input = { command: "x", at: [1, { deep: "}" }] };
    const sessionId = await talk([{ calls: [reach("", "bash", input)] }], [brainTools(["hand_execute"])]);
    const events = await rested(sessionId);
    expect(payloads(events, "agent.tool_use")).toMatchObject([
      { name: "bash", hand: "", via: "hand_execute", input, evaluated_permission: "allow" },
    ]);
    expect(ran).toMatchObject([{ name: "bash", input }]);
    expect(payloads(events, "agent.tool_result")).toMatchObject([{ outcome: "completed", is_error: false }]);
  });

  it("are reached only as far as the agent allows: the stricter permission of both holds (R23)", async () => {
    const asks = handTools("", {
      tools: { bash: { permission: Permission.ALWAYS_ASK }, write: { disabled: true } },
    });
    const steps = [{ calls: [reach("", "bash", { command: "x" }), reach("", "write"), reach("", "echo")] }];
    const sessionId = await talk(steps, [asks, brainTools(["hand_execute"])]);
    const asked = await rested(sessionId);
    expect(payloads(asked, "agent.tool_use").map((p) => p.evaluated_permission)).toEqual([
      "ask",
      "deny",
      "allow",
    ]);
    expect(ran.map(({ name }) => name)).toEqual(["echo"]);
    const [bash] = asked.filter(({ type }) => type === "agent.tool_use");
    const payload = JSON.stringify({ tool_use_id: bash!.id, result: "allow" });
    await sessions().emitEvents({ sessionId, events: [{ type: "user.tool_confirmation", payload }] });
    await eventually(() => ran.length === 2);
    const always = { defaultPolicy: { permission: Permission.ALWAYS_ASK } };
    const through = await talk(steps, [handTools(), brainTools(["hand_execute"], always)]);
    const both = await rested(through);
    expect(payloads(both, "agent.tool_use").map((p) => p.evaluated_permission)).toEqual([
      "ask",
      "ask",
      "ask",
    ]);
  });

  it("come from another session with what is in them, and go on in their new slot (H6)", async () => {
    const given = [{ calls: [reach("given", "bash", { command: "there" })] }];
    const to = await talk(given, [brainTools(ALL)], { silent: true });
    const pass = { name: "hand_hand_over", input: { to_session: to, to_slot: "given" } };
    const from = await talk(
      [{ calls: [{ name: "bash", input: { command: "first" } }] }, { calls: [pass] }, { calls: [pass] }],
      [handTools(), brainTools(ALL)],
    );
    const texts = resultsInOrder(await rested(from));
    expect(texts[1]).toContain(`is now the hand of ${to} in the slot "given"`);
    expect(texts[2]).toContain("There is no hand in the default slot now");
    await sessions().emitEvents({ sessionId: to, events: [GO] });
    const events = await eventually(async () => {
      const now = await rested(to);
      return ran.length === 2 ? now : undefined;
    });
    expect(resultTexts(events)).toEqual([expect.stringContaining("bash ran there")]);
    expect(ran[1]?.handId).toBe(ran[0]?.handId);
  });

  it("are not passed to a session that takes none, and the one that has them goes on", async () => {
    const to = await talk([], [brainTools(ALL)], { silent: true });
    await sessions().archiveSession({ sessionId: to });
    const pass = { name: "hand_hand_over", input: { to_session: to } };
    const from = await talk(
      [{ calls: [{ name: "bash" }] }, { calls: [pass] }],
      [handTools(), brainTools(ALL)],
    );
    expect(resultsInOrder(await rested(from))[1]).toContain("is archived");
    expect(await handsOf(from)).toHaveLength(1);
  });

  it("are refused where the workspace has as many as it may, instead of being waited for", async () => {
    const holder = await talk([{ calls: [{ name: "bash" }] }], [handTools()]);
    await rested(holder);
    const { workspaceId } = (await sessions().getSession({ sessionId: holder })).session!;
    const limit = (most: number) =>
      rig.server.client(AdminService).updateWorkspace({ workspaceId, limits: { hands: most } });
    onTestFinished(() => limit(0).then(() => {}));
    await limit(1);
    const steps = [{ calls: [{ name: "hand_provision", input: { slot: "late" } }] }];
    const sessionId = await talk(steps, [brainTools(ALL)]);
    expect(resultTexts(await rested(sessionId))[0]).toContain("the one hand that it may have");
  });

  it("are made only in environments that the session has", async () => {
    const foreign = await environment("not of the session");
    const steps = [{ calls: [{ name: "hand_provision", input: { slot: "late", environment: foreign } }] }];
    const sessionId = await talk(steps, [brainTools(ALL)]);
    expect(resultTexts(await rested(sessionId))[0]).toContain("must be one of this session's environments");
    expect(await handsOf(sessionId)).toEqual([]);
  });
});

describe("after the death of a harness between a tool's effect and its result", () => {
  /** The first harness never hears what came of the method; the next one takes over once `between` is done. */
  async function takeOver(
    method: "provision" | "releaseHand" | "handOver",
    steps: Step[],
    between: (sessionId: string) => Promise<void>,
  ): Promise<string> {
    let wasCalled = false;
    await rig.brains.stop();
    const first = await rig.newBrains((clients) => ({
      ...clients,
      hands: {
        ...clients.hands,
        [method]: async (...args: Parameters<ServerClients["hands"][typeof method]>) => {
          await (clients.hands[method] as (...all: unknown[]) => Promise<unknown>)(...args);
          wasCalled = true;
          return new Promise<never>(() => {});
        },
      },
    }));
    const sessionId = await talk(steps, [handTools(), brainTools(ALL)]);
    await eventually(() => wasCalled);
    await between(sessionId);
    const stopped = first.stop();
    rig.brains = await rig.newBrains();
    await stopped;
    await rested(sessionId);
    return sessionId;
  }

  it("the same hand is provisioned, not a second one (H1)", async () => {
    const steps = [{ calls: [{ name: "hand_provision", input: { slot: "late" } }] }];
    const sessionId = await takeOver("provision", steps, async () => {});
    const made = await handsOf(sessionId, true);
    expect(made).toHaveLength(1);
    expect(resultTexts(await log(sessionId))).toEqual([expect.stringContaining(made[0]!.id)]);
  });

  it("what was released stays the hand that was meant: the slot's next one is kept", async () => {
    const steps = [{ calls: [{ name: "bash" }] }, { calls: [{ name: "hand_release" }] }];
    let next = "";
    const sessionId = await takeOver("releaseHand", steps, async (id) => {
      const { hand } = await hands().provision({ requestId: `next ${id}`, sessionId: id });
      next = hand!.id;
    });
    expect((await handsOf(sessionId)).map(({ id }) => id)).toEqual([next]);
    const text = resultsInOrder(await log(sessionId))[1];
    expect(text).toContain("is released");
    expect(text).not.toContain(next);
  });

  it("a hand is handed over once", async () => {
    const to = await talk([], [brainTools(ALL)], { silent: true });
    const pass = { name: "hand_hand_over", input: { to_session: to } };
    const sessionId = await takeOver(
      "handOver",
      [{ calls: [{ name: "bash" }] }, { calls: [pass] }],
      async () => {},
    );
    expect(resultsInOrder(await log(sessionId))[1]).toContain(`is now the hand of ${to}`);
    const [hand] = await handsOf(to);
    expect(hand?.ownerNumber).toBe(2n);
  });
});
