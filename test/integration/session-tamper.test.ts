/** Tamper evidence: whoever changes a log in the database is found. */
import { describe, expect, test } from "vitest";
import { newSigningKey } from "../kit/session-rig.ts";
import {
  admin,
  client,
  exported,
  first,
  newSession,
  problemsOf,
  query,
  rewrite,
  second,
  secondsClock,
  signAgain,
  signedAt,
  signedSession,
  turn,
  useTamperRig,
  verified,
} from "../kit/tamper-rig.ts";

useTamperRig();

describe("what was changed in the database", () => {
  test("a payload, with nothing else, is found at its position", async () => {
    const sessionId = await signedSession();
    await query("update events set payload = '{\"forged\":true}' where session_id = $1 and position = 3", [
      sessionId,
    ]);
    expect(await problemsOf(sessionId)).toEqual(["3: does not fit its hash and the one before"]);
  });

  test("a payload, with all later hashes made to fit, is found by the checkpoints, and at its position by a kept file", async () => {
    const sessionId = await signedSession();
    const file = await exported(sessionId);
    expect(await problemsOf(sessionId, { file })).toEqual([]);
    await rewrite(sessionId, 3);
    expect(await problemsOf(sessionId)).toEqual([
      "4: is not what was signed: something from position 1 to 4 was changed, and all hashes after it",
      "8: is not what was signed: something from position 1 to 8 was changed, and all hashes after it",
    ]);
    expect((await problemsOf(sessionId, { file }))[0]).toBe("3: its payload is not what was kept");
  });

  test("what lies between two checkpoints is found between them", async () => {
    const sessionId = await signedSession();
    await rewrite(sessionId, 7);
    expect(await problemsOf(sessionId)).toEqual([
      "8: is not what was signed: something from position 5 to 8 was changed, and all hashes after it",
    ]);
  });

  test.each([
    ["what only brains see", "internal = '{}'", "its internal"],
    ["a type", "type = 'acme.other'", "its type"],
    ["a time", "created_at = created_at - interval '1 hour'", "its time"],
    ["a thread", "thread_id = 'sthr_1'", "its thread"],
    ["an id", "event_id = 'sevt_other'", "its id"],
  ])("%s is found like a payload", async (_, change, words) => {
    const sessionId = await signedSession();
    const file = await exported(sessionId);
    const full = await exported(sessionId, admin, true);
    await rewrite(sessionId, 3, change);
    expect((await problemsOf(sessionId))[0]).toMatch(/^4: is not what was signed/);
    for (const kept of [file, full])
      expect((await problemsOf(sessionId, { file: kept }))[0]).toBe(`3: ${words} is not what was kept`);
  });

  test("an event that is gone is missed: in the middle, and at the end by what was kept", async () => {
    const middle = await signedSession();
    await query("delete from events where session_id = $1 and position = 3", [middle]);
    expect(await problemsOf(middle)).toEqual([
      "3: is missing in the database, or the session was deleted just now",
    ]);

    const end = await signedSession();
    const file = await exported(end);
    const [, checkpoint] = await checkpoints(end);
    await query("delete from events where session_id = $1 and position > 6", [end]);
    await query("delete from checkpoints where session_id = $1 and position > 6", [end]);
    await query("update sessions set head = 6 where session_id = $1", [end]);
    await rewrite(end, 6, "payload = payload");
    expect(await problemsOf(end)).toEqual([]);
    expect(await problemsOf(end, { file })).toEqual(["7: is missing, it was kept (agent.message)"]);
    expect(await problemsOf(end, { checkpoints: [checkpoint!] })).toEqual([
      "7: is missing: a kept checkpoint is at 8",
    ]);
  });

  const checkpoints = (sessionId: string) => {
    const list = { sessionId, fromPosition: 0, toPosition: 100, limit: 100 };
    return first.checkpoints.list(list);
  };

  test("hashes that are gone are missed", async () => {
    const sessionId = await signedSession();
    const file = await exported(sessionId);
    await query("update events set hash = null where session_id = $1 and position = 5", [sessionId]);
    expect((await problemsOf(sessionId))[0]).toBe("5: has no hash");
    await query("update sessions set chain_hash = null where session_id = $1", [sessionId]);
    // The database still knows that it was signed.
    expect((await client.getSession({ sessionId })).session!.tamperEvident).toBe(true);
    expect((await problemsOf(sessionId)).at(-1)).toBe(
      "8: the session's own hash is not that of its newest event",
    );
    await query("update events set hash = null where session_id = $1", [sessionId]);
    expect((await problemsOf(sessionId))[0]).toBe("1: has no hash");
    await query("update sessions set checkpoint_position = 0 where session_id = $1", [sessionId]);
    const { header, problems } = await verified(sessionId, { file });
    expect(header.chain).toBeUndefined();
    expect(problems[0]).toEqual({ position: 1, problem: "its hash is not what was kept" });
  });

  test.each([
    "garbage",
    "null",
    "{}",
    '{"kind":"fork","sessionId":"sesn_1","position":-1,"hash":""}',
    '{"kind":"new"}',
  ])("an origin that is none (%s) fits nothing", async (origin) => {
    const sessionId = await signedSession();
    await query("update sessions set chain_origin = $2 where session_id = $1", [sessionId, origin]);
    expect(await problemsOf(sessionId)).toEqual(["1: does not fit its hash and the one before"]);
  });

  test("checkpoints that are gone, changed or moved are missed", async () => {
    const gone = await signedSession();
    await query("delete from checkpoints where session_id = $1 and position = 4", [gone]);
    await query("update events set created_at = created_at - interval '2 minutes' where session_id = $1", [
      gone,
    ]);
    await rewrite(gone, 1, "payload = payload");
    await query("delete from checkpoints where session_id = $1", [gone]);
    expect(await problemsOf(gone)).toEqual([
      "4: the session came to rest, but there is no checkpoint",
      "8: the session came to rest, but there is no checkpoint",
    ]);

    const changed = await signedSession();
    await rewrite(changed, 3);
    await query(
      "update checkpoints c set hash = e.hash from events e where c.session_id = $1 and e.session_id = $1 and e.position = c.position",
      [changed],
    );
    expect(await problemsOf(changed)).toEqual([
      "4: the checkpoint's signature is not that of its key",
      "8: the checkpoint's signature is not that of its key",
    ]);

    const [one, other] = [await signedSession(), await signedSession()];
    await query(
      `update checkpoints c set hash = o.hash, signed_at = o.signed_at, public_key = o.public_key, signature = o.signature
         from checkpoints o where c.session_id = $1 and o.session_id = $2 and o.position = c.position`,
      [one, other],
    );
    expect((await problemsOf(one))[0]).toBe("4: the checkpoint's signature is not that of its key");
  });

  test("signatures with another key count for nothing against pinned keys or a kept checkpoint; without any it is said whose they are not", async () => {
    const sessionId = await signedSession();
    const file = await exported(sessionId);
    const kept = await checkpoints(sessionId);
    const forger = await newSigningKey();
    await rewrite(sessionId, 3);
    await signAgain(sessionId, forger);
    const { problems, keys } = await verified(sessionId);
    expect(problems).toEqual([]);
    expect(keys).toMatchObject([{ publicKey: forger.publicKey.x, isServers: false }]);
    const pinnedKeys = new Set([first.signingKey.publicKey.x]);
    const words = `is signed by ${forger.publicKey.x}, which is none of the pinned keys`;
    expect(await problemsOf(sessionId, { pinnedKeys })).toEqual([`4: ${words}`, `8: ${words}`]);
    expect(await problemsOf(sessionId, { checkpoints: kept.slice(1) })).toEqual([
      "8: is not what was signed: something from position 1 to 8 was changed, and all hashes after it",
    ]);
    expect((await problemsOf(sessionId, { file }))[0]).toBe("3: its payload is not what was kept");
  });

  test("a server does not sign again what it has signed; one that never had says when it signed", async () => {
    const sessionId = await signedSession();
    await rewrite(sessionId, 3);
    // The second one would sweep up what the first one leaves, and sign it before it is changed once more.
    secondsClock.isHeld = true;
    await query("update checkpoints set signature = null where session_id = $1", [sessionId]);
    first.area.signer.due(sessionId);
    const other = await newSession();
    await turn(other);
    await signedAt(other, 4);
    const left = await query("select 1 from checkpoints where session_id = $1 and signature is null", [
      sessionId,
    ]);
    expect(left).toHaveLength(2);
    // The events are old by now; whoever had kept a checkpoint of them is not deceived by the new one.
    await query("update events set created_at = created_at - interval '1 hour' where session_id = $1", [
      sessionId,
    ]);
    await rewrite(sessionId, 3);
    second.area.signer.due(sessionId);
    await signedAt(sessionId, 8);
    const { problems, notes } = await verified(sessionId);
    expect(problems).toEqual([]);
    expect(notes).toHaveLength(2);
    expect(notes[0]).toMatch(/^position 4 was signed 60 minutes late/);
  });

  test("a server that signs again because it has forgotten that it did does so late: with pinned keys that does not fit, without it is said", async () => {
    const sessionId = await signedSession();
    const file = await exported(sessionId);
    await query("update events set created_at = created_at - interval '5 minutes' where session_id = $1", [
      sessionId,
    ]);
    await rewrite(sessionId, 3);
    await query("delete from checkpoints where session_id = $1", [sessionId]);
    // At once: in between a server would ask for the signature of a session that rests.
    const forget = `with s as (update sessions set checkpoint_position = 0 where session_id = $1 returning session_id)
      insert into checkpoints (session_id, position) select session_id, unnest(array[4, 8]) from s`;
    await query(forget, [sessionId]);
    // It has signed nothing of this session, as one that was restarted.
    second.area.signer.due(sessionId);
    await signedAt(sessionId, 8);
    const pinnedKeys = new Set([first, second].map((replica) => replica.signingKey.publicKey.x));
    const late = "was signed 5 minutes late: what was changed until then is not shown by it";
    const loose = await verified(sessionId, { pinnedKeys });
    expect(loose.problems).toEqual([]);
    expect(loose.notes).toEqual([`position 4 ${late}`, `position 8 ${late}`]);
    expect(await problemsOf(sessionId, { pinnedKeys, isStrict: true })).toEqual([`4: ${late}`, `8: ${late}`]);
    expect((await problemsOf(sessionId, { file }))[0]).toBe("1: its time is not what was kept");
  });

  test("a late signature that was kept is no misfit: what was kept vouches for it", async () => {
    const sessionId = await newSession();
    await turn(sessionId);
    await signedAt(sessionId, 4);
    await query("delete from checkpoints where session_id = $1", [sessionId]);
    await query("update events set created_at = created_at - interval '5 minutes' where session_id = $1", [
      sessionId,
    ]);
    await rewrite(sessionId, 3, "payload = payload");
    await query("insert into checkpoints (session_id, position) values ($1, 4)", [sessionId]);
    second.area.signer.due(sessionId);
    await signedAt(sessionId, 4);
    const file = await exported(sessionId);
    const pinnedKeys = new Set([second.signingKey.publicKey.x]);
    expect(await problemsOf(sessionId, { pinnedKeys, isStrict: true })).toHaveLength(1);
    expect(await problemsOf(sessionId, { pinnedKeys, isStrict: true, file })).toEqual([]);
  });

  test("rests that are given another type leave a log that nobody signed: with pinned keys that does not fit, without it is said", async () => {
    const sessionId = await signedSession();
    const age = (change: string) =>
      query(`update events set created_at = created_at ${change} where session_id = $1`, [sessionId]);
    await query(
      "update events set type = 'acme.noted' where session_id = $1 and type = 'session.status_idle'",
      [sessionId],
    );
    await query("delete from checkpoints where session_id = $1", [sessionId]);
    const pinnedKeys = new Set([first.signingKey.publicKey.x]);
    await rewrite(sessionId, 1, "payload = payload");
    expect((await verified(sessionId)).notes).toEqual(["positions 1 to 8 are not signed yet"]);
    for (const change of ["- interval '2 minutes'", "+ interval '1 day'"]) {
      await age(change);
      await rewrite(sessionId, 1, "payload = payload");
      const loose = await verified(sessionId);
      expect(loose.problems).toEqual([]);
      expect(loose.notes).toEqual(["positions 1 to 8 are not signed, though the session rests"]);
      expect(await problemsOf(sessionId, { pinnedKeys, isStrict: true })).toEqual([
        "1: and what follows are not signed, though the session rests",
      ]);
    }
    // What has begun is signed when it ends.
    await query("update sessions set status = 'running' where session_id = $1", [sessionId]);
    expect(await problemsOf(sessionId, { pinnedKeys, isStrict: true })).toHaveLength(1);
    await query("update sessions set work_position = rested_position + 1 where session_id = $1", [sessionId]);
    const running = await verified(sessionId, { pinnedKeys, isStrict: true });
    expect(running.problems).toEqual([]);
    expect(running.notes).toEqual([
      "positions 1 to 8 are not signed: the server says that the session has work",
    ]);
  });
});
