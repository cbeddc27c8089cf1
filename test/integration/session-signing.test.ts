/** Tamper evidence: servers sign where a session rests, and copies of logs have chains of their own. */
import { createHash } from "node:crypto";
import { describe, expect, test } from "vitest";
import { verifyLog } from "../../cli/verify/verify-log.ts";
import { sha256Hex } from "../../kit/chain/event-hash.ts";
import { newId } from "../../kit/ids.ts";
import type { Checkpoint } from "../../proto/gen/tendon/v1/event_pb.js";
import type { WatchEventsResponse } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { appendToLog } from "../../server/store/postgres/hand-log.ts";
import { inTransaction } from "../../server/store/postgres/transaction.ts";
import { eventually } from "../kit/eventually.ts";
import {
  admin,
  client,
  expectHashed,
  exported,
  first,
  firstsClock,
  hashesOf,
  idle,
  newSession,
  opened,
  plain,
  plainAdmin,
  problemsOf,
  query,
  rewrite,
  rowsOf,
  type Sessions,
  say,
  second,
  secondsClock,
  signedAt,
  signedSession,
  turn,
  useTamperRig,
  verified,
  world,
} from "../kit/tamper-rig.ts";

useTamperRig();

describe("checkpoints", () => {
  /** What a watcher is told until it has seen a checkpoint at this position. */
  async function told(who: Sessions, sessionId: string, until: number, request: object = {}) {
    const heard: WatchEventsResponse["kind"][] = [];
    const stop = new AbortController();
    const options = { signal: stop.signal };
    for await (const { kind } of who.watchEvents({ sessionId, ...request }, options)) {
      heard.push(kind);
      if (kind.case === "checkpoint" && Number(kind.value.position) >= until) break;
    }
    stop.abort();
    return heard;
  }
  const checkpointsOf = (heard: WatchEventsResponse["kind"][]): Checkpoint[] =>
    heard.flatMap((kind) => (kind.case === "checkpoint" ? [kind.value] : []));

  test("each time a session rests one is signed, and told to watchers of both replicas after its event", async () => {
    const elsewhere = second.client({ kind: "client", keyId: "apikey_1", workspaceId: world.workspaceId });
    const sessionId = await newSession();
    const watches = [told(client, sessionId, 8), told(elsewhere, sessionId, 8, { types: ["user.message"] })];
    secondsClock.isHeld = true;
    await turn(sessionId);
    await turn(sessionId);
    await signedAt(sessionId, 8);
    secondsClock.isHeld = false;
    const rows = await rowsOf(sessionId);
    for (const heard of await Promise.all(watches)) {
      const checkpoints = checkpointsOf(heard);
      expect(checkpoints.map(({ position }) => position)).toEqual([4n, 8n]);
      for (const { position, hash, publicKey, signature, signedAt } of checkpoints) {
        expect(hash).toBe(rows[Number(position) - 1]!.hash!.toString("hex"));
        expect(Buffer.from(publicKey).toString("base64url")).toBe(first.signingKey.publicKey.x);
        expect(signature).toHaveLength(64);
        expect(Math.abs(Number(signedAt!.seconds) * 1000 - Date.now())).toBeLessThan(60_000);
      }
      const places = heard.flatMap((kind) => {
        if (kind.case === "event") return [`event ${kind.value.position}`];
        return kind.case === "checkpoint" ? [`checkpoint ${kind.value.position}`] : [];
      });
      expect(places.indexOf("checkpoint 4")).toBeGreaterThan(places.indexOf("event 4"));
    }
  });

  test("whoever comes later gets those at its cursor and after it", async () => {
    const sessionId = await signedSession();
    const positions = async (afterPosition: bigint) =>
      checkpointsOf(await told(client, sessionId, 8, { afterPosition })).map(({ position }) => position);
    expect(await positions(0n)).toEqual([4n, 8n]);
    expect(await positions(4n)).toEqual([4n, 8n]);
    expect(await positions(5n)).toEqual([8n]);
    expect(await positions(-1n)).toEqual([8n]);
  });

  test("watchers of a session without hashes are told none", async () => {
    const { session } = await plainAdmin.createSession({ agentId: plain.agentId, initialEvents: [say("a")] });
    const stop = new AbortController();
    const heard: string[] = [];
    for await (const { kind } of plainAdmin.watchEvents(
      { sessionId: session!.id },
      { signal: stop.signal },
    )) {
      heard.push(String(kind.case));
      if (kind.case === "progress") break;
    }
    stop.abort();
    expect(heard).toEqual(["event", "progress"]);
  });

  test("what a server that died should have signed is signed once, by whichever other finds it", async () => {
    const sessionId = await newSession();
    // As if the process had ended right after the commit: nobody is told.
    for (const clock of [firstsClock, secondsClock]) clock.isHeld = true;
    const append = () =>
      first.events.append({
        sessionId,
        authority: "server",
        events: [{ ...idle(), threadId: "", internal: undefined }],
      });
    await append();
    await append();
    expect(
      await query("select 1 from checkpoints where session_id = $1 and signature is null", [sessionId]),
    ).toHaveLength(2);
    await query(
      "update checkpoints set requested_at = requested_at - interval '1 minute' where session_id = $1",
      [sessionId],
    );
    first.area.signer.sweep();
    second.area.signer.sweep();
    await signedAt(sessionId, 1);
    await signedAt(sessionId, 2);
    const kept = () =>
      query<{ signature: Buffer; public_key: string }>(
        "select signature, public_key from checkpoints where session_id = $1 order by position",
        [sessionId],
      );
    const signed = await kept();
    first.area.signer.due(sessionId);
    second.area.signer.due(sessionId);
    await turn(sessionId);
    await signedAt(sessionId, 6);
    expect((await kept()).slice(0, 2)).toEqual(signed);
    expect((await verified(sessionId)).problems).toEqual([]);
  });

  test("what is added to a session that rests is signed soon after, also to an archived one", async () => {
    const sessionId = await signedSession();
    await client.updateSession({ sessionId, title: "another" });
    await signedAt(sessionId, 9);
    await client.emitEvents({ sessionId, events: [{ type: "acme.noted" }, { type: "acme.noted" }] });
    await signedAt(sessionId, 11);
    await client.archiveSession({ sessionId });
    await signedAt(sessionId, 12);
    const { advance } = await inTransaction(first.pool, (transaction) =>
      appendToLog(transaction, sessionId, { type: "hand.released", payload: '{"hand_id":"hand_1"}' }),
    );
    first.area.sessionLog.announce(advance);
    await signedAt(sessionId, 13);
    expect(await verified(sessionId)).toMatchObject({ problems: [], notes: [], signedUpTo: 13 });
    // Nothing is signed while there is work.
    const working = await newSession();
    await client.emitEvents({ sessionId: working, events: [say("go"), { type: "acme.noted" }] });
    expect(await first.checkpoints.request([working, sessionId])).toEqual([]);
  });

  test("replicas sign with their own keys, and a log that both have signed fits", async () => {
    for (const clock of [firstsClock, secondsClock]) clock.isHeld = true;
    const sessionId = await newSession();
    await turn(sessionId);
    await signedAt(sessionId, 4);
    await turn(sessionId, second.client({ kind: "harness", keyId: "apikey_4", workspaceId: undefined }));
    await signedAt(sessionId, 8);
    const verdict = await verified(sessionId);
    expect(verdict).toMatchObject({ problems: [], checkpoints: 2, signedUpTo: 8 });
    expect(verdict.keys).toEqual([
      { publicKey: first.signingKey.publicKey.x, firstPosition: 4, checkpoints: 1, isServers: true },
      { publicKey: second.signingKey.publicKey.x, firstPosition: 8, checkpoints: 1, isServers: false },
    ]);
  });

  test("they go with their session", async () => {
    const sessionId = await signedSession();
    await client.deleteSession({ sessionId });
    expect(await query("select 1 from checkpoints where session_id = $1", [sessionId])).toEqual([]);
    expect(await rowsOf(sessionId)).toEqual([]);
  });
});

describe("copies", () => {
  async function importAs(who: Sessions, bytes: Buffer) {
    const call = who.importSession();
    await call.send({ kind: { case: "start", value: {} } });
    await call.send({ kind: { case: "chunk", value: bytes } }).catch(() => {});
    return (await call.end()).session!;
  }
  const linesOf = (log: Buffer) => log.toString().trimEnd().split("\n");
  function withEnd(lines: string[]): Buffer {
    const text = lines.map((line) => `${line}\n`).join("");
    const sha256 = createHash("sha256").update(text).digest("hex");
    return Buffer.from(`${text}${JSON.stringify({ end: { events: lines.length - 1, sha256 } })}\n`);
  }

  test("a fork has a chain of its own, which begins with where it was forked", async () => {
    const origin = await signedSession();
    const rows = await rowsOf(origin);
    const { session } = await client.forkSession({ sessionId: origin, position: 6n });
    const sessionId = session!.id;
    const hash = rows[5]!.hash!.toString("hex");
    await expectHashed(sessionId, { kind: "fork", sessionId: origin, position: 6, hash });
    await signedAt(sessionId, 7);
    expect(await verified(sessionId)).toMatchObject({
      problems: [],
      events: 7,
      checkpoints: 1,
      signedUpTo: 7,
    });
    await turn(sessionId);
    await signedAt(sessionId, 11);
    expect((await verified(sessionId)).problems).toEqual([]);
    await query("update sessions set chain_origin = replace(chain_origin, $2, $3) where session_id = $1", [
      sessionId,
      hash,
      sha256Hex("another"),
    ]);
    expect((await problemsOf(sessionId))[0]).toBe("1: does not fit its hash and the one before");
  });

  test("a fork of thousands of events, and one of a log without hashes, are hashed from their first event", async () => {
    const origin = await newSession();
    for (let batch = 0; batch < 18; batch++) {
      const events = Array.from({ length: 250 }, (_, n) => ({
        type: "acme.noted",
        payload: `{"n":${batch * 250 + n}}`,
      }));
      await client.emitEvents({ sessionId: origin, events });
    }
    const { session } = await client.forkSession({ sessionId: origin, position: 4_100n });
    expect(session!.head).toBe(4_101n);
    expect((await verified(session!.id)).problems).toEqual([]);

    const unhashed = (await plainAdmin.createSession({ agentId: plain.agentId, initialEvents: [say("a")] }))
      .session!.id;
    await query("update workspaces set tamper_evident = true where workspace_id = $1", [plain.workspaceId]);
    const fork = (await plainAdmin.forkSession({ sessionId: unhashed })).session!;
    await query("update workspaces set tamper_evident = false where workspace_id = $1", [plain.workspaceId]);
    expect(fork.tamperEvident).toBe(true);
    await expectHashed(fork.id, { kind: "fork", sessionId: unhashed, position: 1, hash: "" });
  });

  test("an import is hashed anew where its workspace says so, is signed, and says what log it was", async () => {
    const origin = await signedSession();
    const log = await exported(origin, admin, true);
    const imported = await importAs(admin, log);
    const hash = (await rowsOf(origin)).at(-1)!.hash!.toString("hex");
    await expectHashed(imported.id, { kind: "import", sessionId: origin, position: 8, hash });
    await eventually(async () => {
      first.area.signer.due(imported.id);
      return (await verified(imported.id)).checkpoints === 1;
    });
    expect(await verified(imported.id)).toMatchObject({ problems: [], signedUpTo: 8 });
    const plainly = await importAs(plainAdmin, log);
    expect(plainly.tamperEvident).toBe(false);
    expect((await rowsOf(plainly.id)).every(({ hash: none }) => none === null)).toBe(true);
    // Large events are written by themselves: hashed in their place all the same.
    const large = await newSession();
    const payload = (n: number) => JSON.stringify({ a: "x".repeat(n % 3 === 0 ? 100_000 : 10) });
    const events = Array.from({ length: 10 }, (_, n) => ({ type: "acme.noted", payload: payload(n) }));
    await client.emitEvents({ sessionId: large, events });
    const again = await importAs(admin, await exported(large, admin, true));
    expect((await verified(again.id)).problems).toEqual([]);
  });

  test("an exported log with hashes that was changed is not imported, and verifying it alone names the position", async () => {
    const sessionId = await signedSession();
    const lines = linesOf(await exported(sessionId, admin, true)).slice(0, -1);
    const changed = (position: number, change: object) =>
      withEnd(
        lines.map((line, at) =>
          at === position ? JSON.stringify({ ...JSON.parse(line), ...change }) : line,
        ),
      );
    const cases: [Buffer, string, string][] = [
      [changed(3, { payload: "{}" }), "4", "3: does not fit its hash and the one before"],
      [changed(3, { hash: undefined }), "4", "3: has no hash"],
      [
        changed(5, { created_at: "2030-01-31T12:00:00.000Z" }),
        "6",
        "5: does not fit its hash and the one before",
      ],
      [
        changed(0, { session: { ...JSON.parse(lines[0]!).session, id: newId("session") } }),
        "2",
        "1: does not fit its hash and the one before",
      ],
      [withEnd(lines.slice(0, 6)), "1", "6: is missing, the session has 8 events"],
    ];
    for (const [log, line, problem] of cases) {
      await expect(importAs(admin, log), problem).rejects.toMatchObject({
        reason: "INVALID_FIELD",
        metadata: { line },
      });
      const { problems } = await verifyLog(await opened(log));
      expect(`${problems[0]?.position}: ${problems[0]?.problem}`).toBe(problem);
    }
    const whole = withEnd(lines);
    expect((await verifyLog(await opened(whole))).problems).toEqual([]);
    const cut = whole.subarray(0, whole.lastIndexOf('{"end"'));
    expect((await verifyLog(await opened(cut))).problems).toEqual([
      { position: 9, problem: "cannot be read: it is cut off: its last line is missing" },
    ]);
  });

  test("a log whose hashes were made to fit again is not imported when its checkpoints say otherwise, nor with signatures that are none", async () => {
    const sessionId = await signedSession();
    const log = await exported(sessionId, admin, true);
    const lines = linesOf(log).slice(0, -1);
    await rewrite(sessionId, 3);
    const forged = linesOf(await exported(sessionId, admin, true)).slice(0, -1);
    const signedHash = JSON.parse(lines[4]!).checkpoint.hash;
    expect(JSON.parse(forged[4]!).checkpoint.hash).toBe(signedHash);
    expect(JSON.parse(forged[4]!).hash).not.toBe(signedHash);
    const reSigned = lines.map((line, at) => {
      const { checkpoint, ...event } = JSON.parse(line);
      if (at !== 8) return line;
      return JSON.stringify({
        ...event,
        checkpoint: { ...checkpoint, signed_at: "2030-01-31T12:00:00.000Z" },
      });
    });
    const cases: [Buffer, string][] = [
      [withEnd(forged), "5"],
      [withEnd(reSigned), "9"],
    ];
    for (const [bytes, line] of cases) {
      expect((await verifyLog(await opened(bytes))).problems).not.toEqual([]);
      await expect(importAs(admin, bytes)).rejects.toMatchObject({
        reason: "INVALID_FIELD",
        metadata: { line, field: `line ${line}.checkpoint` },
      });
    }
    expect((await importAs(admin, log)).head).toBe(8n);
  });

  test("an export shows clients the digest of what only brains see, not the text, and both exports fit", async () => {
    const sessionId = await signedSession();
    const [seen, full] = [await exported(sessionId), await exported(sessionId, admin, true)];
    expect(seen.toString()).not.toContain("thought");
    expect(seen.toString()).toContain(`"internal_sha256":"${sha256Hex('{"secret":"thought"}')}"`);
    expect(full.toString()).not.toContain("internal_sha256");
    for (const log of [seen, full]) {
      const verdict = await verifyLog(await opened(log));
      expect(verdict).toMatchObject({ problems: [], events: 8, checkpoints: 2, signedUpTo: 8 });
      expect(verdict.header.serverKey).toBe(first.signingKey.publicKey.x);
    }
    expect((await verifyLog(await opened(seen), { log: await opened(full) })).problems).toEqual([]);
    const hashes = linesOf(seen)
      .slice(1, -1)
      .map((line) => JSON.parse(line).hash);
    expect(hashes).toEqual(hashesOf(sessionId, await rowsOf(sessionId)));
  });
});
