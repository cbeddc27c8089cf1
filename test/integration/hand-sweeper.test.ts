import { describe, expect, test } from "vitest";
import { ExecutionOutcome } from "../../proto/gen/tendon/v1/hand_pb.js";
import type { HandTiming } from "../../server/hand/timing.ts";
import { eventually } from "../kit/eventually.ts";
import { collectExecution as collect, gate, textOfResult as textOf } from "../kit/execution-stream.ts";
import { textResult } from "../kit/scripted-hand-agent.ts";
import { useHandRigs } from "../kit/use-hand-rig.ts";

const rigs = useHandRigs();

const startRig = (timing: Partial<HandTiming> = {}) => rigs.start({ timing });

describe("what nobody else notices", () => {
  test("an execution whose agent stays away is unknown after its bound, without any caller (X3)", async () => {
    const rig = await startRig({ executionGraceMs: 100, agentOfflineMs: 2_000 });
    const agent = await rig.agent({ run: () => new Promise(() => {}) });
    await agent.connect();
    const session = await rig.session();
    const call = await session.toolUse("bash", {});
    const ran = collect(rig.harness.execute({ ...call, timeoutMs: 1_500n }));
    await eventually(() => agent.runs.size === 1);
    const away = performance.now();
    await agent.disconnect();
    const { result } = await ran;
    expect(performance.now() - away).toBeGreaterThanOrEqual(1_900);
    expect(result).toMatchObject({ isError: true, outcome: ExecutionOutcome.UNKNOWN });
    expect(textOf(result)).toContain("out of reach");
    expect(await session.events("agent.tool_result")).toHaveLength(1);
    // The agent's own result comes too late: the first stands.
    agent.journal.get(`${session.id}/${call.executionId}`)!.result = textResult("late");
    await agent.connect();
    await eventually(() => agent.journal.size === 0);
    expect((await collect(rig.harness.execute(call))).result.outcome).toBe(ExecutionOutcome.UNKNOWN);
  });

  test("an agent that lets a call run past its limit is told to stop it", async () => {
    const rig = await startRig({ executionGraceMs: 600 });
    const agent = await rig.agent({
      run: (call) =>
        new Promise((resolve) => {
          call.signal.addEventListener("abort", () =>
            resolve(textResult("cut", { isError: true, outcome: ExecutionOutcome.TIMED_OUT } as never)),
          );
        }),
    });
    await agent.connect();
    const session = await rig.session();
    const ran = await collect(
      rig.harness.execute({ ...(await session.toolUse("bash", {})), timeoutMs: 50n }),
    );
    expect(ran.result.outcome).toBe(ExecutionOutcome.TIMED_OUT);
  });

  test("a connected agent that never opens the stream leaves the outcome unknown", async () => {
    const rig = await startRig({ executionGraceMs: 200 });
    const agent = await rig.agent();
    await agent.connect();
    const session = await rig.session();
    await collect(rig.harness.execute(await session.toolUse("echo", {})));
    agent.deaf = true;
    const ran = await collect(
      rig.harness.execute({ ...(await session.toolUse("bash", {})), timeoutMs: 50n }),
    );
    expect(ran.result.outcome).toBe(ExecutionOutcome.UNKNOWN);
  });

  test("hands of an agent that was away for too long are lost, and destroyed should it come back (H2, H5)", async () => {
    const rig = await startRig({ agentOfflineMs: 200, keepOfflineMs: 60_000 });
    const agent = await rig.agent();
    await agent.connect();
    const session = await rig.session();
    const { hand } = await collect(rig.harness.execute(await session.toolUse("echo", {})));
    await agent.disconnect();
    // As if that had been a minute ago; said again, as a sweep that began before may just say that it is there.
    const longAway = `update hand_agents set last_seen_at = clock_timestamp() - interval '61 seconds'
      where hand_agent_id = $1 and replica_id is null`;
    await eventually(async () => {
      await rig.pool.query(longAway, [agent.handAgentId]);
      return (await session.events("hand.lost")).length === 1;
    });
    expect(agent.hands.has(hand!)).toBe(true);
    await agent.connect();
    await eventually(() => !agent.hands.has(hand!));
  });

  test("hands of a session that ended without a word are released (H1)", async () => {
    const rig = await startRig();
    const agent = await rig.agent();
    await agent.connect();
    const archived = await rig.session();
    const deleted = await rig.session();
    await collect(rig.harness.execute(await archived.toolUse("echo", {})));
    await collect(rig.harness.execute(await deleted.toolUse("echo", {})));
    expect(agent.hands.size).toBe(2);
    await rig.pool.query("update sessions set archived_at = now() where session_id = $1", [archived.id]);
    await rig.pool.query("delete from sessions where session_id = $1", [deleted.id]);
    await eventually(() => agent.hands.size === 0);
    expect(await archived.events("hand.released")).toHaveLength(1);
  });
});

describe("two replicas", () => {
  test("a call that the other replica runs is answered here too, and goes on here when the agent comes over", async () => {
    const first = await startRig();
    const second = await startRig();
    const { open, opened } = gate<ReturnType<typeof textResult>>();
    const agent = await first.agent({
      run: (call) => {
        call.write("output");
        return opened;
      },
    });
    await agent.connect();
    const session = await first.session();
    const call = await session.toolUse("bash", {});
    const here = collect(first.harness.execute(call));
    await eventually(() => agent.resumeOffsets.length === 1);
    const there = collect(second.harness.execute(call));
    await eventually(() => second.area.runningExecutions() === 1);
    const other = await session.toolUse("bash", {});
    await expect(collect(second.harness.execute(other))).rejects.toMatchObject({
      reason: "UNAVAILABLE",
      message: expect.stringContaining("another replica"),
    });
    await agent.disconnect();
    await agent.connect(second.url);
    open(textResult("one result"));
    for (const ran of [await here, await there]) expect(textOf(ran.result)).toBe("one result");
    expect((await there).output).toBe("output");
    expect(agent.generation).toBe(2n);
    expect([...agent.runs.values()]).toEqual([1]);
    expect(await session.events("agent.tool_result")).toHaveLength(1);
  });
});
