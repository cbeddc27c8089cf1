import { createHash } from "node:crypto";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { newId } from "../../kit/ids.ts";
import { SessionStatus, StopReason } from "../../proto/gen/tendon/v1/session_pb.js";
import { emitLarge } from "../kit/emit-large.ts";
import { eventually } from "../kit/eventually.ts";
import { failure } from "../kit/failure.ts";
import type { TestDatabase } from "../kit/postgres.ts";
import {
  bytesOf,
  eventsOf,
  leftovers,
  type SessionCallers,
  type Sessions,
  say,
  startSessionCallers,
  talk,
} from "../kit/session-callers.ts";
import type { SessionReplica, SessionWorld } from "../kit/session-rig.ts";
import { trickyPayloads } from "../kit/tricky-payloads.ts";

let callers: SessionCallers;
let database: TestDatabase;
let world: SessionWorld;
let other: SessionWorld;
let replica: SessionReplica;
let client: Sessions;
let admin: Sessions;
let stranger: Sessions;

beforeAll(async () => {
  callers = await startSessionCallers();
  ({ database, world, other, replica, client, admin, stranger } = callers);
});

afterAll(() => callers?.stop());

/** Everything that the log's rows hold. */
async function rowsOf(sessionId: string, upTo = 1e9): Promise<unknown[]> {
  const { rows } = await database.pool().query(
    `select position, event_id, type, thread_id, payload, internal, answers, created_at
       from events where session_id = $1 and position <= $2 order by position`,
    [sessionId, upTo],
  );
  return rows;
}

const exported = (sessionId: string, withInternal = true) =>
  bytesOf(admin.exportSession({ sessionId, withInternal }));

async function importAs(who: Sessions, bytes: Buffer, start: object = {}, chunkBytes = 256 * 1024) {
  const call = who.importSession();
  const sending = (async () => {
    await call.send({ kind: { case: "start", value: start } });
    for (let at = 0; at < bytes.length; at += chunkBytes) {
      await call.send({ kind: { case: "chunk", value: bytes.subarray(at, at + chunkBytes) } });
    }
  })();
  // A refused import ends before everything is sent.
  await sending.catch(() => {});
  return (await call.end()).session!;
}

/** The log with its digest made right again. */
function withEnd(lines: string[]): Buffer {
  const body = lines.map((line) => `${line}\n`).join("");
  const sha256 = createHash("sha256").update(body).digest("hex");
  return Buffer.from(`${body}${JSON.stringify({ end: { events: lines.length - 1, sha256 } })}\n`);
}

const linesOf = (bytes: Buffer) => bytes.toString().trimEnd().split("\n");

describe("export and import", () => {
  test.each(Object.entries(trickyPayloads))(
    "%s comes back byte for byte, through fork, export and import",
    async (_, payload) => {
      const sessionId = await world.newSession();
      await client.emitEvents({ sessionId, events: [{ type: "acme.noted", payload }] });
      const fork = (await client.forkSession({ sessionId })).session!;
      const imported = await importAs(client, await bytesOf(client.exportSession({ sessionId })));
      for (const id of [fork.id, imported.id]) {
        expect(await rowsOf(id, 1)).toEqual(await rowsOf(sessionId, 1));
      }
      expect(await rowsOf(imported.id)).toMatchObject([{ payload }]);
    },
  );

  test("an imported log is the same: ids, positions, times, payloads, internal, and the session what they say", async () => {
    const { sessionId } = await talk(callers);
    await harnessReleases(sessionId);
    const log = await exported(sessionId);
    const imported = await importAs(admin, log);
    expect(imported.id).not.toBe(sessionId);
    expect(await rowsOf(imported.id, 10)).toEqual(await rowsOf(sessionId, 10));
    const origin = (await client.getSession({ sessionId })).session!;
    expect(imported).toMatchObject({
      status: SessionStatus.IDLE,
      stopReason: StopReason.END_TURN,
      usage: origin.usage,
      environmentId: origin.environmentId,
      agent: { id: origin.agent!.id, version: 1, spec: origin.agent!.spec },
    });
    expect((await eventsOf(callers, imported.id))[0]!.processedAt).toEqual(
      (await eventsOf(callers, sessionId))[0]!.processedAt,
    );
    const again = linesOf(await exported(imported.id));
    expect(again.slice(1, 11)).toEqual(linesOf(log).slice(1, 11));
    expect(await client.wakeSession({ sessionId: imported.id })).toMatchObject({ hasWork: false });
    await client.emitEvents({ sessionId: imported.id, events: [say("go on")] });
    expect(await client.wakeSession({ sessionId: imported.id })).toMatchObject({ hasWork: true });
  });

  /** The hand of `talk` given back, so that nothing has to be added to an import. */
  async function harnessReleases(sessionId: string) {
    await database.pool().query(
      `with s as (update sessions set head = head + 1 where session_id = $1 returning head)
       insert into events (session_id, position, event_id, type, payload) select $1, head, 'sevt_rel', 'hand.released', '{"hand_id":"hand_1"}' from s`,
      [sessionId],
    );
  }

  test("an import at rest adds nothing; one with an open call and a hand ends both and does nothing by itself", async () => {
    const { sessionId } = await talk(callers);
    await harnessReleases(sessionId);
    expect((await importAs(admin, await exported(sessionId))).head).toBe(11n);
    const lines = linesOf(await exported(sessionId)).slice(0, 8);
    const imported = await importAs(admin, withEnd(lines));
    const added = (await eventsOf(callers, imported.id)).slice(7);
    expect(added.map(({ type }) => type)).toEqual(["agent.tool_result", "hand.lost"]);
    expect(added[0]!.payload).toContain("imported before it ended");
    expect(await client.wakeSession({ sessionId: imported.id })).toMatchObject({ hasWork: false });
    expect(imported.status).toBe(SessionStatus.IDLE);
  });

  test("an archived session is archived again", async () => {
    const sessionId = await world.newSession();
    await client.archiveSession({ sessionId });
    const imported = await importAs(admin, await exported(sessionId));
    expect(imported.archivedAt).toBeDefined();
    expect(imported.status).toBe(SessionStatus.TERMINATED);
  });

  test("what brains see is exported for admins alone, and only when asked for", async () => {
    const { sessionId } = await talk(callers);
    expect((await exported(sessionId)).toString()).toContain('"internal":"{\\"secret\\":\\"thought\\"}"');
    expect((await exported(sessionId, false)).toString()).not.toContain("thought");
    expect((await bytesOf(client.exportSession({ sessionId }))).toString()).not.toContain("thought");
    const refused = bytesOf(client.exportSession({ sessionId, withInternal: true }));
    expect(await failure(refused)).toMatchObject({ reason: "ROLE_NOT_ALLOWED" });
    expect(await failure(bytesOf(stranger.exportSession({ sessionId })))).toMatchObject({
      reason: "NOT_FOUND",
    });
  });

  test("clients import what clients may say; brains' events and internal are for admins", async () => {
    const { sessionId } = await talk(callers);
    const log = await exported(sessionId, false);
    expect(await failure(importAs(client, log))).toMatchObject({
      reason: "EVENT_TYPE_NOT_ALLOWED",
      metadata: { line: "3" },
    });
    const [header, message] = linesOf(log);
    expect((await importAs(client, withEnd([header!, message!]))).head).toBe(1n);
    const sneaky = JSON.stringify({ ...JSON.parse(message!), internal: "{}" });
    expect(await failure(importAs(client, withEnd([header!, sneaky])))).toMatchObject({
      reason: "ROLE_NOT_ALLOWED",
      metadata: { line: "2" },
    });
    expect(await leftovers(callers)).toBe(0);
  });

  test("a repeat with the same request id and bytes returns the first session; other bytes are refused", async () => {
    const { sessionId } = await talk(callers);
    const log = await exported(sessionId);
    const start = { requestId: newId("request") };
    const first = await importAs(admin, log, start);
    expect((await importAs(admin, log, start, 1_000)).id).toBe(first.id);
    const both = await Promise.all([
      importAs(admin, log, { requestId: "r2" }),
      importAs(admin, log, { requestId: "r2" }),
    ]);
    expect(both[0].id).toBe(both[1].id);
    const shorter = withEnd(linesOf(log).slice(0, 4));
    expect(await failure(importAs(admin, shorter, start))).toMatchObject({ reason: "REQUEST_ID_REUSED" });
    const named = { requestId: "r3", environmentId: world.environmentId };
    const third = await importAs(admin, log, named);
    const archive = (at: string) =>
      database
        .pool()
        .query(`update environments set archived_at = ${at} where environment_id = $1`, [
          named.environmentId,
        ]);
    await archive("now()");
    expect((await importAs(admin, log, named)).id).toBe(third.id);
    await archive("null");
    expect(await leftovers(callers)).toBe(0);
  });

  test("logs that are not whole, not in order or not known are refused with the line, and nothing is left", async () => {
    const { sessionId } = await talk(callers);
    const lines = linesOf(await exported(sessionId)).slice(0, -1);
    const changed = (index: number, change: object) =>
      lines.map((line, at) => (at === index ? JSON.stringify({ ...JSON.parse(line), ...change }) : line));
    const cases: [Buffer, string, string][] = [
      [withEnd(lines.filter((_, index) => index !== 3)), "4", "must be 3, is 4"],
      [withEnd([lines[0]!, lines[2]!, lines[1]!]), "2", "must be 1, is 2"],
      [withEnd(changed(0, { tendon_log: 2 })), "1", "only version 1"],
      [withEnd(lines.slice(1)), "1", "is not the first line"],
      [withEnd(changed(4, { created_at: "yesterday" })), "5", "must be a time"],
      [withEnd(changed(4, { payload: "[1" })), "5", "is not JSON"],
      [withEnd(changed(4, { payload: '"\ud800"' })), "5", "surrogate"],
      [withEnd(changed(4, { id: JSON.parse(lines[2]!).id })), "5", "earlier event has the same id"],
      [withEnd(changed(4, { type: "Nothing" })), "5", "is no type"],
      [Buffer.from(lines.map((line) => `${line}\n`).join("")), "12", "is cut off"],
      [Buffer.concat([await exported(sessionId), Buffer.from("{}\n")]), "13", "nothing may follow"],
      [
        Buffer.from((await exported(sessionId)).toString().replace("done", "gone")),
        "12",
        "changed or damaged",
      ],
      [Buffer.from([0x7b, 0xff, 0x0a]), "1", "is not UTF-8"],
      [Buffer.alloc(0), "1", "is missing"],
    ];
    for (const [log, line, words] of cases) {
      const error = await failure(importAs(admin, log));
      expect(error, words).toMatchObject({ reason: "INVALID_FIELD" });
      expect(error.message).toContain(words);
      expect(error.message).toContain(`line ${line}`);
    }
    expect(await leftovers(callers)).toBe(0);
  });

  test("an import whose caller goes away leaves nothing", async () => {
    const { sessionId } = await talk(callers);
    const log = await exported(sessionId);
    const call = admin.importSession();
    await call.send({ kind: { case: "start", value: {} } });
    await call.send({ kind: { case: "chunk", value: log.subarray(0, log.length - 200) } });
    await eventually(async () => {
      const { rows } = await database.pool().query("select 1 from unfinished_logs");
      return rows.length === 1;
    });
    call.cancel();
    await failure(call.end());
    await eventually(async () => (await leftovers(callers)) === 0);
  });

  test("another workspace's environments and agents are not taken over; a named environment must be the importer's", async () => {
    const { sessionId } = await talk(callers);
    const log = await exported(sessionId, false);
    const elsewhere = replica.client({ kind: "admin", keyId: "apikey_4", workspaceId: other.workspaceId });
    const imported = await importAs(elsewhere, log);
    expect(imported).toMatchObject({ workspaceId: other.workspaceId, environmentId: other.environmentId });
    expect(imported.agent!.workspaceId).toBe(other.workspaceId);
    const named = importAs(elsewhere, log, { environmentId: world.environmentId });
    expect(await failure(named)).toMatchObject({ reason: "NOT_FOUND" });
  });

  test("logs with thousands of events, and events of many megabytes, come through in pieces of any size", async () => {
    const sessionId = await world.newSession();
    for (let batch = 0; batch < 10; batch++) {
      const events = Array.from({ length: 250 }, (_, n) => ({
        type: "acme.noted",
        payload: `{"n":${batch * 250 + n}}`,
      }));
      await client.emitEvents({ sessionId, events });
    }
    await emitLarge(client, sessionId, JSON.stringify({ a: '"\\\n'.repeat(2 * 1024 * 1024) }));
    const imported = await importAs(admin, await exported(sessionId), {}, 77_777);
    expect(await rowsOf(imported.id)).toEqual(await rowsOf(sessionId));
  });
});
