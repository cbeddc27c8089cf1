import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { isTendonError, type TendonError } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { SessionStatus, StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { createVaultStore } from "../../server/store/postgres/vaults.ts";
import { failure } from "../kit/failure.ts";
import type { TestDatabase } from "../kit/postgres.ts";
import { promised } from "../kit/promised.ts";
import {
  eventsOf,
  leftovers,
  type SessionCallers,
  type Sessions,
  say,
  startSessionCallers,
  talk,
} from "../kit/session-callers.ts";
import type { SessionWorld } from "../kit/session-rig.ts";

let callers: SessionCallers;
let database: TestDatabase;
let world: SessionWorld;
let client: Sessions;
let stranger: Sessions;

beforeAll(async () => {
  callers = await startSessionCallers();
  ({ database, world, client, stranger } = callers);
});

afterAll(() => callers?.stop());

async function newVault(): Promise<string> {
  const id = newId("vault");
  await createVaultStore(database.pool()).create({
    id,
    workspaceId: world.workspaceId,
    displayName: "a vault",
    metadata: {},
    request: { requestId: "", contentHash: new Uint8Array(32) },
    audit: { actor: "test", action: "vault.create", subject: id },
  });
  return id;
}

/** Everything that the log's rows hold. */
async function rowsOf(sessionId: string, upTo = 1e9): Promise<unknown[]> {
  const { rows } = await database.pool().query(
    `select position, event_id, type, thread_id, payload, internal, answers, created_at
       from events where session_id = $1 and position <= $2 order by position`,
    [sessionId, upTo],
  );
  return rows;
}

describe("forks", () => {
  test("a fork at the end of a turn has the same events byte for byte, what it is and a hand that is lost (H2), and rests", async () => {
    const { sessionId } = await talk(callers);
    const { session } = await client.forkSession({ sessionId, title: "second try" });
    expect(session).toMatchObject({
      title: "second try",
      forkedFromSessionId: sessionId,
      forkedFromPosition: 10n,
      head: 12n,
      status: SessionStatus.IDLE,
      stopReason: StopReason.UNSPECIFIED,
      usage: { inputTokens: 0n, modelRequests: 0n, activeMs: 0n },
      vaultIds: [],
    });
    expect(await rowsOf(session!.id, 10)).toEqual(await rowsOf(sessionId));
    const added = (await eventsOf(callers, session!.id)).slice(10);
    expect(added.map(({ type, payload }) => [type, JSON.parse(payload)])).toEqual([
      ["session.forked", { origin_session_id: sessionId, position: 10 }],
      ["hand.lost", expect.objectContaining({ hand_id: "hand_1", slot: "" })],
    ]);
    expect(await client.wakeSession({ sessionId: session!.id })).toMatchObject({ hasWork: false });
    const [message] = await eventsOf(callers, session!.id);
    expect(message!.processedAt).toBeDefined();
    expect((await client.getSession({ sessionId })).session).toMatchObject({ head: 10n });
  });

  test("a fork in the middle of a call ends the call with an error (X3), and the turn goes on as work of a new brain", async () => {
    const { sessionId, use } = await talk(callers);
    const { session } = await client.forkSession({ sessionId, position: 7n });
    const added = (await eventsOf(callers, session!.id)).slice(7);
    expect(added.map(({ type }) => type)).toEqual(["session.forked", "agent.tool_result", "hand.lost"]);
    expect(JSON.parse(added[1]!.payload)).toEqual({
      tool_use_id: use.id,
      content: [{ type: "text", text: "forked before it ended" }],
      is_error: true,
      failure: { part: "client", reason: "SESSION_FORKED" },
    });
    expect(session!.status).toBe(SessionStatus.IDLE);
    expect(await client.wakeSession({ sessionId: session!.id })).toMatchObject({ hasWork: true });
    // It has no lease, and the origin's is not its own.
    const { rows } = await database
      .pool()
      .query("select lease_id, lease_epoch from sessions where session_id = $1", [session!.id]);
    expect(rows).toEqual([{ lease_id: null, lease_epoch: 0 }]);
  });

  test("a fork behind a message that nobody has taken in has work; before everything it is empty but for its own event", async () => {
    const { sessionId } = await talk(callers);
    const atMessage = await client.forkSession({ sessionId, position: 1n });
    expect(await client.wakeSession({ sessionId: atMessage.session!.id })).toMatchObject({ hasWork: true });
    const [message] = await eventsOf(callers, atMessage.session!.id);
    expect(message!.processedAt).toBeUndefined();
  });

  test("budget and vaults are the forker's; metadata, agent and environment the origin's", async () => {
    const [first, second] = await Promise.all([newVault(), newVault()]);
    const made = await client.createSession({
      agentId: world.agentId,
      title: "t",
      metadata: { a: "1" },
      vaultIds: [first],
      budget: { maxTokens: 5n },
    });
    const sessionId = made.session!.id;
    const { session } = await client.forkSession({
      sessionId,
      vaultIds: [second],
      budget: { maxTurns: 3n },
    });
    expect(session).toMatchObject({
      title: "t",
      metadata: { a: "1" },
      vaultIds: [second],
      budget: { maxTurns: 3n, maxTokens: 0n },
    });
    expect(session!.agent).toEqual(made.session!.agent);
    expect(session!.environmentId).toBe(made.session!.environmentId);
  });

  test("a repeat with the same request id returns the first fork, also at once; other content is refused", async () => {
    const { sessionId } = await talk(callers);
    const request = { requestId: newId("request"), sessionId };
    const forks = await Promise.all(Array.from({ length: 5 }, () => client.forkSession(request)));
    await client.emitEvents({ sessionId, events: [say("later")] });
    forks.push(await client.forkSession(request));
    expect(new Set(forks.map(({ session }) => session!.id)).size).toBe(1);
    expect(await failure(client.forkSession({ ...request, title: "x" }))).toMatchObject({
      reason: "REQUEST_ID_REUSED",
    });
    await client.deleteSession({ sessionId, interrupt: true });
    expect((await client.forkSession(request)).session!.id).toBe(forks[0]!.session!.id);
    expect(await failure(client.forkSession({ ...request, title: "x" }))).toMatchObject({
      reason: "NOT_FOUND",
    });
    expect(await leftovers(callers)).toBe(0);
  });

  test("archived sessions can be forked, and the fork goes on; so can forks", async () => {
    const { sessionId } = await talk(callers);
    await client.archiveSession({ sessionId });
    const { session } = await client.forkSession({ sessionId });
    expect(session!.status).toBe(SessionStatus.IDLE);
    await client.emitEvents({ sessionId: session!.id, events: [say("again")] });
    const again = await client.forkSession({ sessionId: session!.id });
    const types = (await eventsOf(callers, again.session!.id)).map(({ type }) => type);
    expect(types.filter((type) => type === "session.forked")).toHaveLength(2);
    expect(types.filter((type) => type === "hand.lost")).toHaveLength(1);
  });

  test("positions behind the head, other workspaces' sessions and sessions that are gone are refused", async () => {
    const { sessionId } = await talk(callers);
    expect(await failure(client.forkSession({ sessionId, position: 11n }))).toMatchObject({
      reason: "RESYNC",
      metadata: { field: "position", head: "10" },
    });
    expect(await failure(stranger.forkSession({ sessionId }))).toMatchObject({ reason: "NOT_FOUND" });
    await client.deleteSession({ sessionId });
    expect(await failure(client.forkSession({ sessionId }))).toMatchObject({ reason: "NOT_FOUND" });
  });

  test("an origin that is deleted meanwhile gives a whole fork or none", async () => {
    for (let round = 0; round < 5; round++) {
      const sessionId = await world.newSession();
      await database.pool().query(
        `insert into events (session_id, position, event_id, type, payload)
           select $1, n, 'sevt_' || n, 'acme.noted', '{}' from generate_series(1, 9000) n`,
        [sessionId],
      );
      await database.pool().query("update sessions set head = 9000 where session_id = $1", [sessionId]);
      const forking = client.forkSession({ sessionId }).catch((error: unknown) => error as TendonError);
      await Promise.all([forking, client.deleteSession({ sessionId })]);
      const fork = await forking;
      if (isTendonError(fork)) expect(fork.reason).toBe("NOT_FOUND");
      else expect(await rowsOf(fork.session!.id)).toHaveLength(9001);
    }
    expect(await leftovers(callers)).toBe(0);
  });

  test("100,000 events fork within 30 s and are seen all at once", async () => {
    const sessionId = await world.newSession();
    await database.pool().query(
      `insert into events (session_id, position, event_id, type, payload)
         select $1, n, 'sevt_' || n, 'acme.noted', '{"n":' || n || '}' from generate_series(1, 100000) n`,
      [sessionId],
    );
    await database.pool().query("update sessions set head = 100000 where session_id = $1", [sessionId]);
    const begun = performance.now();
    const { session } = await client.forkSession({ sessionId }, { deadlineMs: promised(30_000) });
    expect(performance.now() - begun).toBeLessThan(promised(30_000));
    expect(session!.head).toBe(100_001n);
    const { rows } = await database
      .pool()
      .query<{ n: number; top: number }>(
        "select count(*) as n, max(position) as top from events where session_id = $1",
        [session!.id],
      );
    expect(rows).toEqual([{ n: 100_001, top: 100_001 }]);
    expect(await leftovers(callers)).toBe(0);
  });
});
