import { describe, expect, test } from "vitest";
import { ExecutionOutcome } from "../../proto/gen/tendon/v1/hand_pb.js";
import { eventually } from "../kit/eventually.ts";
import { collectExecution as collect, gate, textOfResult as textOf } from "../kit/execution-stream.ts";
import type { HandRig } from "../kit/hand-rig.ts";
import { promised } from "../kit/promised.ts";
import { type ScriptedCall, textResult } from "../kit/scripted-hand-agent.ts";
import { useHandRig } from "../kit/use-hand-rig.ts";

let rig: HandRig;

useHandRig((fresh) => {
  rig = fresh;
});

describe("a tool call", () => {
  test("provisions the slot's hand, runs, streams its output and ends in one result event (H4, X3)", async () => {
    const agent = await rig.agent({
      run: (call) => {
        call.write("hello ");
        call.write("world");
        return textResult("hello world", { exit: { code: 0, signal: "" } } as never);
      },
    });
    await agent.connect();
    const session = await rig.session();
    const call = await session.toolUse("echo", { text: "hi" });
    const ran = await collect(rig.harness.execute(call));
    expect(ran).toMatchObject({ attached: false, output: "hello world", firstOffset: 0 });
    expect(ran.result).toMatchObject({ isError: false, outcome: ExecutionOutcome.COMPLETED });

    const [provisioned] = await session.events("hand.provisioned");
    expect(provisioned?.payload).toMatchObject({
      hand_id: ran.hand,
      slot: "",
      driver: "process",
      isolation: "scripted isolation",
    });
    const results = await session.events("agent.tool_result");
    expect(results).toHaveLength(1);
    expect(results[0]?.payload).toEqual({
      tool_use_id: call.executionId,
      content: [{ type: "text", text: "hello world" }],
      is_error: false,
      outcome: "completed",
      hand: "",
      hand_id: ran.hand,
      exit: { code: 0 },
    });
    expect(rig.announced.at(-1)).toMatchObject({
      sessionId: session.id,
      head: BigInt(results[0]!.position),
      hasWork: true,
    });
    await eventually(() => agent.journal.size === 0);
  });

  test("finds the hand of the call before, and a session without calls has none (H4)", async () => {
    const agent = await rig.agent();
    await agent.connect();
    const session = await rig.session();
    const idle = await rig.session();
    const first = await collect(rig.harness.execute(await session.toolUse("echo", { text: "1" })));
    const second = await collect(rig.harness.execute(await session.toolUse("echo", { text: "2" })));
    expect(second.hand).toBe(first.hand);
    expect(agent.hands.size).toBe(1);
    const { hands } = await rig.admin.listHands({ sessionId: idle.id, includeEnded: true });
    expect(hands).toEqual([]);
  });

  test("runs once however many ask for it at once, and all get the same result (X1)", async () => {
    const agent = await rig.agent();
    await agent.connect();
    const session = await rig.session();
    const call = await session.toolUse("echo", { text: "once" });
    const asked = await Promise.all([1, 2, 3, 4, 5].map(() => collect(rig.harness.execute(call))));
    expect(asked.map(({ result }) => textOf(result))).toEqual(Array(5).fill("once"));
    expect([...agent.runs.values()]).toEqual([1]);
    expect(await session.events("agent.tool_result")).toHaveLength(1);
    const again = await collect(rig.harness.execute(call));
    expect(again.attached).toBe(true);
    expect(textOf(again.result)).toBe("once");
    expect([...agent.runs.values()]).toEqual([1]);
  });

  test("can be followed by a second caller from any byte (X2)", async () => {
    const { open, opened } = gate<ReturnType<typeof textResult>>();
    const agent = await rig.agent({
      run: (call) => {
        call.write("0123456789");
        return opened;
      },
    });
    await agent.connect();
    const session = await rig.session();
    const call = await session.toolUse("echo", {});
    const first = collect(rig.harness.execute(call));
    await eventually(() => agent.resumeOffsets.length === 1);
    let follows = false;
    const second = collect(rig.harness.execute({ ...call, fromOffset: 4n }), () => {
      follows = true;
    });
    await eventually(() => follows);
    open(textResult("done"));
    expect((await first).output).toBe("0123456789");
    expect(await second).toMatchObject({ attached: true, output: "456789", firstOffset: 4 });
  });

  test("goes on without its caller, and its result reaches the log (X2, X3)", async () => {
    const { open, opened } = gate<ReturnType<typeof textResult>>();
    const agent = await rig.agent({ run: () => opened });
    await agent.connect();
    const session = await rig.session();
    const call = await session.toolUse("echo", {});
    const abort = new AbortController();
    const left = collect(rig.harness.execute(call, { signal: abort.signal }));
    left.catch(() => {});
    await eventually(() => agent.runs.size === 1);
    abort.abort();
    await expect(left).rejects.toThrow();
    open(textResult("late"));
    await eventually(async () => (await session.events("agent.tool_result")).length === 1);
    expect(textOf((await collect(rig.harness.execute(call))).result)).toBe("late");
  });

  test("has inputs above 256 KiB on its own stream", async () => {
    const agent = await rig.agent({ run: (call) => textResult(String((call.input.text as string).length)) });
    await agent.connect();
    const session = await rig.session();
    const call = await session.toolUse("echo", { text: "é".repeat(400_000) });
    expect(textOf((await collect(rig.harness.execute(call))).result)).toBe("400000");
  });

  test("shows its output to watchers as previews", async () => {
    const agent = await rig.agent({
      run: (call) => {
        call.write("grüße");
        return textResult("done");
      },
    });
    await agent.connect();
    const session = await rig.session();
    const call = await session.toolUse("echo", {});
    await collect(rig.harness.execute(call));
    const shown = rig.previews.flatMap(({ previews }) => previews.map(({ kind }) => kind.value));
    expect(shown).toMatchObject([{ toolUseId: call.executionId, offset: 0n, text: "grüße" }]);
  });

  test("is told how long it may take: the caller's bound, else its own, else the default", async () => {
    const bounds: bigint[] = [];
    const agent = await rig.agent({
      run: (call) => {
        bounds.push(call.timeoutMs);
        return textResult("ok");
      },
    });
    await agent.connect();
    const session = await rig.session();
    await collect(rig.harness.execute({ ...(await session.toolUse("bash", {})), timeoutMs: 7n }));
    await collect(rig.harness.execute(await session.toolUse("bash", { timeout_ms: 600_000 })));
    await collect(rig.harness.execute(await session.toolUse("bash", {})));
    expect(bounds).toEqual([7n, 600_000n, 120_000n]);
  });
});

describe("who may call", () => {
  test("a fenced brain neither starts nor follows nor cancels a call (E1)", async () => {
    const agent = await rig.agent();
    await agent.connect();
    const session = await rig.session();
    const call = await session.toolUse("echo", { text: "x" });
    await session.takeOver();
    await expect(collect(rig.harness.execute(call))).rejects.toMatchObject({ reason: "LEASE_FENCED" });
    const cancel = rig.harness.cancelExecution({
      sessionId: session.id,
      executionId: call.executionId,
      lease: call.lease,
    });
    await expect(cancel).rejects.toMatchObject({ reason: "LEASE_FENCED" });
    expect(agent.runs.size).toBe(0);
    const { result } = await collect(rig.harness.execute({ ...call, lease: session.lease }));
    expect(textOf(result)).toBe("x");
  });

  test("the call must be the one that the log has", async () => {
    const session = await rig.session();
    const call = await session.toolUse("echo", { text: "x" });
    const message = await session.append("agent.message", { content: [] });
    const refused = async (change: object, field: string) =>
      expect(collect(rig.harness.execute({ ...call, ...change }))).rejects.toMatchObject({
        reason: "INVALID_FIELD",
        metadata: { field },
      });
    await refused({ name: "bash" }, "name");
    await refused({ input: '{"text":"y"}' }, "input");
    await refused({ input: "[]" }, "input");
    await refused({ slot: "other" }, "slot");
    await refused({ executionId: message }, "execution_id");
    await refused({ lease: undefined }, "lease");
    await expect(collect(rig.harness.execute({ ...call, executionId: "sevt_none" }))).rejects.toMatchObject({
      reason: "NOT_FOUND",
    });
  });

  test("clients run calls on hands outside sessions, once per id", async () => {
    const agent = await rig.agent();
    await agent.connect();
    const { hand } = await rig.client.provision({ requestId: "r1" });
    const again = await rig.client.provision({ requestId: "r1" });
    expect(again.hand?.id).toBe(hand?.id);
    const call = { executionId: "mine", handId: hand!.id, name: "echo", input: '{"text":"free"}' };
    expect(textOf((await collect(rig.client.execute(call))).result)).toBe("free");
    expect((await collect(rig.client.execute(call))).attached).toBe(true);
    expect([...agent.runs.values()]).toEqual([1]);
    await expect(collect(rig.client.execute({ ...call, input: "{}" }))).rejects.toMatchObject({
      reason: "INVALID_FIELD",
    });
    const stranger = rig.hands({ kind: "client", keyId: "k", workspaceId: "wrkspc_other" });
    await expect(collect(stranger.execute(call))).rejects.toMatchObject({ reason: "NOT_FOUND" });
  });

  test("only an admin with a reason works on a session's hand, and the log says so", async () => {
    const agent = await rig.agent();
    await agent.connect();
    const session = await rig.session();
    const { hand } = await collect(rig.harness.execute(await session.toolUse("echo", { text: "x" })));
    const call = { sessionId: session.id, executionId: "op1", name: "echo", input: '{"text":"look"}' };
    await expect(collect(rig.client.execute({ ...call, reason: "curious" }))).rejects.toMatchObject({
      reason: "ROLE_NOT_ALLOWED",
    });
    await expect(
      collect(rig.client.execute({ ...call, sessionId: "", handId: hand!, reason: "x" })),
    ).rejects.toMatchObject({
      reason: "ROLE_NOT_ALLOWED",
    });
    await expect(collect(rig.admin.execute(call))).rejects.toMatchObject({ reason: "ROLE_NOT_ALLOWED" });
    const ran = await collect(rig.admin.execute({ ...call, reason: "disk is full" }));
    expect(textOf(ran.result)).toBe("look");
    const [operated] = await session.events("hand.operated");
    expect(operated?.payload).toMatchObject({
      hand_id: hand,
      reason: "disk is full",
      execution_id: "op1",
      name: "echo",
    });
    expect(await session.events("agent.tool_result")).toHaveLength(1);
  });
});

describe("what goes wrong is a result", () => {
  test("without a hand agent the model is told within the environment's provision timeout", async () => {
    const session = await rig.session(await rig.environment({ provisionTimeoutMs: 300 }));
    const call = await session.toolUse("echo", { text: "x" });
    const started = performance.now();
    const ran = await collect(rig.harness.execute(call));
    expect(performance.now() - started).toBeLessThan(promised(3_000));
    expect(ran.result).toMatchObject({
      isError: true,
      outcome: ExecutionOutcome.NOT_STARTED,
      failure: { reason: "NO_HAND_AGENT" },
    });
    expect(textOf(ran.result)).toContain("no hand agent");
    const [event] = await session.events("agent.tool_result");
    expect(event?.payload).toMatchObject({
      tool_use_id: call.executionId,
      is_error: true,
      outcome: "not_started",
      failure: { part: "server", reason: "NO_HAND_AGENT" },
    });
    const again = await collect(rig.harness.execute(call));
    expect(again.result.outcome).toBe(ExecutionOutcome.NOT_STARTED);
  });

  test("a call that waits for a hand takes the one of an agent that comes", async () => {
    const session = await rig.session();
    const ran = collect(rig.harness.execute(await session.toolUse("echo", { text: "patience" })));
    await eventually(async () => {
      const { hands } = await rig.admin.listHands({ sessionId: session.id });
      return hands[0]?.stateDetail.includes("no hand agent");
    });
    const agent = await rig.agent();
    await agent.connect();
    expect(textOf((await ran).result)).toBe("patience");
  });

  test("a driver that fails and a tool that does not exist are told", async () => {
    const agent = await rig.agent({
      onProvision: async () => ({ reason: "IMAGE_MISSING", message: "no image" }),
    });
    await agent.connect();
    const session = await rig.session();
    const failed = await collect(rig.harness.execute(await session.toolUse("echo", {})));
    expect(failed.result).toMatchObject({
      isError: true,
      failure: { part: "hand_agent", reason: "PROVISION_FAILED" },
    });
    expect(textOf(failed.result)).toContain("no image");
    agent.onProvision = undefined;
    const unknown = await collect(rig.harness.execute(await session.toolUse("fly", {})));
    expect(unknown.result).toMatchObject({ isError: true, failure: { reason: "UNKNOWN_TOOL" } });
    expect(textOf(unknown.result)).toContain("bash, echo");
  });

  test("what no agent may say is cut to what the log may hold", async () => {
    const agent = await rig.agent({ run: () => textResult("", { content: "not json" } as never) });
    await agent.connect();
    const session = await rig.session();
    const ran = await collect(rig.harness.execute(await session.toolUse("echo", {})));
    expect(ran.result).toMatchObject({
      isError: true,
      failure: { part: "hand_agent", reason: "INVALID_RESULT" },
    });
    agent.run = () => textResult("", { content: '[{"type":"text","text":"a\\ud800b"}]' } as never);
    const cleaned = await collect(rig.harness.execute(await session.toolUse("echo", {})));
    expect(textOf(cleaned.result)).toBe("a\ufffdb");
  });
});

describe("cancelling", () => {
  test("stops a running call", async () => {
    const agent = await rig.agent({
      run: (call: ScriptedCall) =>
        new Promise((resolve) => {
          call.signal.addEventListener("abort", () =>
            resolve(textResult("stopped", { isError: true, outcome: ExecutionOutcome.CANCELLED } as never)),
          );
        }),
    });
    await agent.connect();
    const session = await rig.session();
    const call = await session.toolUse("bash", {});
    const ran = collect(rig.harness.execute(call));
    await eventually(() => agent.runs.size === 1);
    const cancel = { sessionId: session.id, executionId: call.executionId, lease: session.lease };
    expect(await rig.harness.cancelExecution(cancel)).toMatchObject({ alreadyEnded: false });
    expect((await ran).result.outcome).toBe(ExecutionOutcome.CANCELLED);
    expect(await rig.harness.cancelExecution(cancel)).toMatchObject({ alreadyEnded: true });
  });

  test("a call that still waits for a hand never starts", async () => {
    const session = await rig.session();
    const call = await session.toolUse("bash", {});
    const ran = collect(rig.harness.execute(call));
    await eventually(async () => (await rig.admin.listHands({ sessionId: session.id })).hands.length === 1);
    const cancel = { sessionId: session.id, executionId: call.executionId };
    expect(await rig.client.cancelExecution(cancel)).toMatchObject({ alreadyEnded: false });
    expect((await ran).result.outcome).toBe(ExecutionOutcome.CANCELLED);
    const agent = await rig.agent();
    await agent.connect();
    expect((await collect(rig.harness.execute(call))).result.outcome).toBe(ExecutionOutcome.CANCELLED);
    expect(agent.runs.size).toBe(0);
    expect(await session.events("agent.tool_result")).toHaveLength(1);
  });
});
