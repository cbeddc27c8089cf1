import { randomBytes } from "node:crypto";
import { describe, expect, test } from "vitest";
import { hashSecret } from "../../kit/sign/secrets.ts";
import { ExecutionOutcome } from "../../proto/gen/tendon/v1/hand_pb.js";
import { eventually } from "../kit/eventually.ts";
import { collectExecution as collect, textOfResult as textOf } from "../kit/execution-stream.ts";
import type { HandRig } from "../kit/hand-rig.ts";
import { promised } from "../kit/promised.ts";
import { runningCall } from "../kit/running-call.ts";
import { textResult } from "../kit/scripted-hand-agent.ts";
import { startTcpRelay } from "../kit/tcp-relay.ts";
import { useHandRig } from "../kit/use-hand-rig.ts";

let rig: HandRig;

const rigs = useHandRig((fresh) => {
  rig = fresh;
});

describe("enrolment", () => {
  async function joinToken(
    change: { uses?: number; expired?: boolean; revoked?: boolean } = {},
  ): Promise<string> {
    const token = `tj_${randomBytes(8).toString("hex")}`;
    await rig.pool.query(
      `insert into join_tokens (join_token_id, workspace_id, pool, secret_hash, uses_left, expires_at, revoked_at)
       values ($1, $2, 'lab', $3, $4, now() + $5::interval, $6)`,
      [
        `jointok_${token}`,
        rig.workspaceId,
        Buffer.from(hashSecret(token), "hex"),
        change.uses ?? 1,
        change.expired ? "-1 second" : "1 hour",
        change.revoked ? new Date() : null,
      ],
    );
    return token;
  }
  const enroll = (token: string, publicKey = randomBytes(32)) =>
    rig
      .agentService({ kind: "anonymous" })
      .enroll({ joinToken: token, publicKey, name: "box", labels: { rack: "1" } });

  test("a join token makes as many agents as it has uses, and a repeated key is no use", async () => {
    const token = await joinToken({ uses: 2 });
    const key = randomBytes(32);
    const first = await enroll(token, key);
    expect(first).toMatchObject({ workspaceId: rig.workspaceId, pool: "lab" });
    expect(await enroll(token, key)).toEqual(first);
    const second = await enroll(token);
    expect(second.handAgentId).not.toBe(first.handAgentId);
    await expect(enroll(token)).rejects.toMatchObject({ reason: "JOIN_TOKEN_INVALID" });
    expect(await enroll(token, key)).toEqual(first);
    const audit = await rig.pool.query<{ actor: string; workspace_id: string }>(
      "select actor, workspace_id from audit_entries where action = 'hand_agent.enroll' and subject = $1",
      [first.handAgentId],
    );
    expect(audit.rows).toEqual([{ actor: `join_token jointok_${token}`, workspace_id: rig.workspaceId }]);
  });

  test("of many at once no more get in than the token has uses", async () => {
    const token = await joinToken({ uses: 3 });
    const settled = await Promise.allSettled(Array.from({ length: 8 }, () => enroll(token)));
    expect(settled.filter(({ status }) => status === "fulfilled")).toHaveLength(3);
  });

  test("unknown, expired and revoked tokens, and revoked agents, are refused", async () => {
    const refused = { reason: "JOIN_TOKEN_INVALID" };
    await expect(enroll("tj_unknown")).rejects.toMatchObject(refused);
    await expect(enroll(await joinToken({ expired: true }))).rejects.toMatchObject(refused);
    await expect(enroll(await joinToken({ revoked: true }))).rejects.toMatchObject(refused);
    const token = await joinToken({ uses: 2 });
    const key = randomBytes(32);
    const { handAgentId } = await enroll(token, key);
    await rig.pool.query("update hand_agents set revoked_at = now() where hand_agent_id = $1", [handAgentId]);
    await expect(enroll(token, key)).rejects.toMatchObject({ reason: "HAND_AGENT_REVOKED" });
  });
});

/** An entry of the audit log waits for whoever holds the lock 13. */
const HELD_AUDIT = `
create function held_audit() returns trigger language plpgsql as $body$
begin
  perform pg_advisory_xact_lock_shared(13);
  return new;
end
$body$;
create trigger held_audit before insert on audit_entries for each row execute function held_audit()`;

describe("connections", () => {
  test("an agent is online while it is connected, and each connection has the next generation", async () => {
    const agent = await rig.agent({ name: "box" });
    await agent.connect();
    const seen = async () =>
      (await rig.admin.listHandAgents({})).handAgents.find(({ id }) => id === agent.handAgentId);
    expect(await seen()).toMatchObject({ online: true, generation: 1n, name: "box", capacityHands: 10 });
    expect((await seen())?.drivers[0]?.tools.map(({ name }) => name)).toEqual(["echo", "bash"]);
    await agent.disconnect();
    await eventually(async () => (await seen())?.online === false);
    await agent.connect();
    expect(await seen()).toMatchObject({ online: true, generation: 2n });
  });

  test("a newer connection replaces the older, whose end changes nothing (H3)", async () => {
    const agent = await rig.agent();
    await agent.connect();
    const twin = await rig.agent();
    Object.assign(twin, { options: (agent as unknown as { options: object }).options });
    await twin.connect();
    await eventually(() => !agent.isOnline);
    expect(String(agent.ended)).toContain("newer connection");
    await agent.disconnect();
    expect(twin.generation).toBe(2n);
    const { handAgents } = await rig.admin.listHandAgents({});
    expect(handAgents.find(({ id }) => id === agent.handAgentId)).toMatchObject({
      online: true,
      generation: 2n,
    });
    const session = await rig.session();
    const ran = await collect(rig.harness.execute(await session.toolUse("echo", { text: "twin" })));
    expect(textOf(ran.result)).toBe("twin");
    expect(twin.runs.size).toBe(1);
  });

  test("a process whose identity another one took over is refused while that one is there, and all who can act are told (S6)", async () => {
    const agent = await rig.agent({ name: "copied" });
    await agent.connect();
    const copy = await rig.agent();
    Object.assign(copy, { options: (agent as unknown as { options: object }).options });
    await copy.connect();
    await eventually(() => agent.ended !== undefined);
    expect(agent.ended).toMatchObject({ reason: "HAND_AGENT_DUPLICATED" });
    await agent.disconnect();
    agent.superseded = true;
    for (let i = 0; i < 2; i++) {
      await expect(agent.connect()).rejects.toMatchObject({
        reason: "HAND_AGENT_DUPLICATED",
        message: expect.stringContaining("copies of one data directory"),
      });
      await agent.disconnect();
    }
    await eventually(() => copy.heard.some(({ case: kind }) => kind === "identityShared"));
    expect([copy.isOnline, copy.generation]).toEqual([true, 2n]);
    const seen = async () =>
      (await rig.admin.listHandAgents({})).handAgents.find(({ id }) => id === agent.handAgentId);
    await eventually(async () => (await seen())?.duplicateSeenAt !== undefined);
    const audit = await rig.pool.query(
      "select 1 from audit_entries where action = 'hand_agent.duplicate' and subject = $1",
      [agent.handAgentId],
    );
    expect(audit.rows).toHaveLength(1);
    await copy.disconnect();
    await eventually(async () => (await seen())?.online === false);
    await agent.connect();
    expect(agent.generation).toBe(3n);
  });

  test("two that are noted at the same moment are noted once", async () => {
    const { handAgentId } = await rig.agent();
    await rig.pool.query(HELD_AUDIT);
    const holder = await rig.pool.connect();
    try {
      // Whoever is about to write down the first one, and whoever comes meanwhile, wait for this connection.
      await holder.query("begin");
      await holder.query("select pg_advisory_xact_lock(13)");
      const { noteDuplicate } = rig.store.handAgents;
      const noted = Promise.all([noteDuplicate(handAgentId), noteDuplicate(handAgentId)]);
      const waiting = "datname = current_database() and wait_event_type = 'Lock' and pid <> pg_backend_pid()";
      const sql = `select 1 from pg_stat_activity where ${waiting}`;
      await eventually(async () => (await rig.pool.query(sql)).rowCount === 2);
      await holder.query("commit");
      await noted;
    } finally {
      await holder.query("rollback");
      holder.release();
      await rig.pool.query("drop trigger held_audit on audit_entries; drop function held_audit()");
    }
    const { rows } = await rig.pool.query("select 1 from audit_entries where subject = $1", [handAgentId]);
    expect(rows).toHaveLength(1);
  });

  test("a look at the old connection whose answer comes late leaves its successor alone (H3)", async () => {
    const agent = await rig.agent();
    await agent.connect();
    const { touch } = rig.store.handAgents;
    let letGo = () => {};
    const late = new Promise<void>((resolve) => {
      letGo = resolve;
    });
    let looks = 0;
    Object.assign(rig.store.handAgents, {
      touch: async (connections: Parameters<typeof touch>[0]) => {
        looks += 1;
        await late;
        return touch(connections);
      },
    });
    await eventually(() => looks === 1);
    const twin = await rig.agent();
    Object.assign(twin, { options: (agent as unknown as { options: object }).options });
    await twin.connect();
    letGo();
    await eventually(() => looks > 1);
    expect([twin.isOnline, twin.generation]).toEqual([true, 2n]);
    const session = await rig.session();
    const ran = await collect(rig.harness.execute(await session.toolUse("echo", { text: "twin" })));
    expect(textOf(ran.result)).toBe("twin");
  });

  test("a half-open connection is found within the heartbeat timeout and does not hold up its successor (H3, R7)", async () => {
    const relay = await startTcpRelay(rig.listener.port);
    try {
      const agent = await rig.agent();
      await agent.connect(`http://127.0.0.1:${relay.port}`);
      const frozenAt = performance.now();
      relay.freeze();
      await eventually(() => rig.area.connectedAgents() === 0);
      // The heartbeat timeout and one beat.
      expect(performance.now() - frozenAt).toBeLessThan(promised(8_000 + 200));
      await eventually(() => rig.listener.connections <= 1);
      await agent.disconnect();
      await agent.connect();
      expect(agent.generation).toBe(2n);
    } finally {
      await relay.close();
    }
  });

  test("an agent that sends no sign of life is cut; one that does stays", async () => {
    const silent = await rig.agent();
    const lively = await rig.agent();
    await silent.connect();
    await lively.connect();
    silent.beating = false;
    await eventually(() => !silent.isOnline);
    expect(lively.isOnline).toBe(true);
    expect(lively.heard.some((kind) => kind.case === "heartbeat")).toBe(true);
  });

  test("another version of the protocol, a missing greeting and a revoked agent are refused with the reason", async () => {
    const future = await rig.agent({ greeting: { protocolVersion: 2 } });
    await expect(future.connect()).rejects.toMatchObject({ reason: "PROTOCOL_VERSION_UNSUPPORTED" });
    const rude = rig.agentService({
      kind: "hand_agent",
      handAgentId: "hagt_x",
      workspaceId: rig.workspaceId,
      pool: "",
    });
    const call = rude.connect();
    await call.send({ kind: { case: "heartbeat", value: {} } });
    await expect(call.responses[Symbol.asyncIterator]().next()).rejects.toMatchObject({
      reason: "INVALID_FIELD",
    });
    const gone = await rig.agent();
    await rig.pool.query("update hand_agents set revoked_at = now() where hand_agent_id = $1", [
      gone.handAgentId,
    ]);
    await expect(gone.connect()).rejects.toMatchObject({ reason: "HAND_AGENT_REVOKED" });
  });

  test("a server that stops tells its agents, takes none in any more, and their calls go on at the next one", async () => {
    const { agent, ran, call, open } = await runningCall(rig, "before ");
    await rig.area.drain!(500);
    await expect(ran).rejects.toMatchObject({ reason: "DRAINING" });
    await eventually(() => agent.heard.some((kind) => kind.case === "draining"));
    await agent.disconnect();
    await expect(agent.connect()).rejects.toMatchObject({ reason: "DRAINING" });
    const next = await rigs.start();
    try {
      await agent.connect(next.url);
      let follows = false;
      const again = collect(next.harness.execute(call), () => {
        follows = true;
      });
      await eventually(() => follows);
      open(textResult("finished"));
      expect(await again).toMatchObject({ attached: true, output: "before " });
      expect([...agent.runs.values()]).toEqual([1]);
    } finally {
      await agent.disconnect();
    }
  });
});

describe("an agent that comes back", () => {
  test("with its journal goes on where it was, and every byte comes once (X1, X2)", async () => {
    const { agent, session, ran, open } = await runningCall(rig, "0123456789");
    await eventually(() => agent.resumeOffsets.length === 1 && rig.previews.length > 0);
    await agent.disconnect();
    await agent.connect();
    await eventually(() => agent.resumeOffsets.length === 2);
    expect(agent.resumeOffsets).toEqual([0, 10]);
    open(textResult("ok"));
    expect(await ran).toMatchObject({ output: "0123456789", result: { isError: false } });
    expect([...agent.runs.values()]).toEqual([1]);
    expect(await session.events("agent.tool_result")).toHaveLength(1);
  });

  test("with a result that the server has not stored gets it stored, without any caller (X3)", async () => {
    const { agent, session, open } = await runningCall(rig);
    await agent.disconnect();
    open(textResult("while away"));
    await agent.connect();
    const event = await eventually(async () => (await session.events("agent.tool_result"))[0]);
    expect(event.payload.content).toEqual([{ type: "text", text: "while away" }]);
    await eventually(() => agent.journal.size === 0);
  });

  test("without its journal leaves the outcome unknown, and the call is never run again (X1)", async () => {
    const { agent, session, ran, call } = await runningCall(rig);
    await agent.disconnect();
    agent.forgetEverything("jrnl_2");
    await agent.connect();
    const { result } = await ran;
    expect(result).toMatchObject({ isError: true, outcome: ExecutionOutcome.UNKNOWN });
    expect((await collect(rig.harness.execute(call))).result.outcome).toBe(ExecutionOutcome.UNKNOWN);
    expect(await session.events("agent.tool_result")).toHaveLength(1);
    expect([...agent.runs.values()]).toEqual([1]);
  });

  test("that never saw a bound call is sent it again (X1b)", async () => {
    const { agent, ran, open, call } = await runningCall(rig);
    await agent.disconnect();
    // As if the start message had been lost on the way: the journal has no entry.
    agent.journal.clear();
    agent.runs.clear();
    open(textResult("second sending"));
    await agent.connect();
    expect(textOf((await ran).result)).toBe("second sending");
    expect([...agent.runs]).toEqual([[`${call.sessionId}/${call.executionId}`, 1]]);
  });

  test("that missed a cancel is told then", async () => {
    const { agent, session, call, ran } = await runningCall(rig);
    await agent.disconnect();
    agent.journal.clear();
    agent.runs.clear();
    await rig.harness.cancelExecution({
      sessionId: session.id,
      executionId: call.executionId,
      lease: session.lease,
    });
    await agent.connect();
    expect((await ran).result.outcome).toBe(ExecutionOutcome.CANCELLED);
    expect(agent.runs.size).toBe(0);
  });

  test("without a hand that it had: the loss is told, and only then a new empty one is made (H2, R16)", async () => {
    const agent = await rig.agent();
    await agent.connect();
    const session = await rig.session();
    const first = await collect(rig.harness.execute(await session.toolUse("echo", { text: "1" })));
    // The brain had asked for this call before it could know of the loss.
    const early = await session.toolUse("echo", { text: "2" });
    await agent.disconnect();
    agent.hands.clear();
    await agent.connect();
    const lost = await eventually(async () => (await session.events("hand.lost"))[0]);
    expect(lost.payload).toMatchObject({ hand_id: first.hand, slot: "" });
    const refused = await collect(rig.harness.execute(early));
    expect(refused.result).toMatchObject({
      outcome: ExecutionOutcome.NOT_STARTED,
      failure: { reason: "HAND_LOST" },
    });
    const next = await collect(rig.harness.execute(await session.toolUse("echo", { text: "3" })));
    expect(next.hand).not.toBe(first.hand);
    expect(textOf(next.result)).toMatch(/lost.*new, empty one.*\n3$/s);
    const after = await collect(rig.harness.execute(await session.toolUse("echo", { text: "4" })));
    expect(textOf(after.result)).toBe("4");
  });

  test("with hands that nobody knows is told so, and never has to destroy ours (H1)", async () => {
    const agent = await rig.agent();
    await agent.connect();
    const session = await rig.session();
    const { hand } = await collect(rig.harness.execute(await session.toolUse("echo", { text: "1" })));
    await agent.disconnect();
    agent.hands.add("hand_stranger");
    await agent.connect();
    const named = await eventually(() => agent.heard.find((kind) => kind.case === "unownedHands"));
    expect(named.value).toMatchObject({ handIds: ["hand_stranger"] });
    expect(agent.hands.has(hand!)).toBe(true);
  });
});

describe("revoking", () => {
  test("cuts the agent off, its hands are lost and what ran is unknown", async () => {
    const { agent, session, ran } = await runningCall(rig);
    await rig.pool.query("update hand_agents set revoked_at = now() where hand_agent_id = $1", [
      agent.handAgentId,
    ]);
    // Whoever revoked it may have talked to another replica: the sweeper finds it.
    await eventually(() => !agent.isOnline);
    expect(agent.ended).toMatchObject({ reason: "HAND_AGENT_REVOKED" });
    expect((await ran).result.outcome).toBe(ExecutionOutcome.UNKNOWN);
    await eventually(async () => (await session.events("hand.lost")).length === 1);
  });
});
