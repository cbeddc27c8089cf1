/** Copies of files and trees: the real agent with process hands, at a real hands area over a real database. */
import { randomBytes } from "node:crypto";
import { afterAll, afterEach, beforeAll, beforeEach, expect, test } from "vitest";
import { AgentRig, reasonOf } from "../kit/agent-rig.ts";
import { eventually } from "../kit/eventually.ts";
import { copyIn, copyOut, pack, sha256Of, unpack } from "../kit/hand-copies.ts";
import type { HandRig } from "../kit/hand-rig.ts";

let on: AgentRig;
let rig: HandRig;

beforeAll(async () => {
  on = await AgentRig.start({ parkEveryMs: 50 });
  rig = on.hands;
});
afterAll(() => on?.stop());
beforeEach(() => on.provision());
afterEach(() => on.release());

test("a file goes in and comes out byte for byte, with its mode, and both ends say the same digest", async () => {
  const bytes = randomBytes(5_000_000);
  const answer = await copyIn(
    rig.client,
    { handId: on.handId, path: "deep/er/data.bin", mode: 0o640 },
    bytes,
  );
  expect(answer).toMatchObject({ sizeBytes: 5_000_000n, sha256: sha256Of(bytes) });
  expect(await on.bash("stat -c '%a %s' deep/er/data.bin; sha256sum < deep/er/data.bin")).toBe(
    `640 5000000\n${sha256Of(bytes)}  -`,
  );
  expect((await copyOut(rig.client, { handId: on.handId, path: "deep/er/data.bin" })).equals(bytes)).toBe(
    true,
  );
  // Its mode stays when the next copy names none; what it holds does not.
  await copyIn(rig.client, { handId: on.handId, path: "deep/er/data.bin" }, Buffer.from("short"));
  expect(await on.bash("stat -c %a deep/er/data.bin; cat deep/er/data.bin")).toBe("640\nshort");
  await copyIn(rig.client, { handId: on.handId, path: "empty" }, Buffer.alloc(0));
  expect((await copyOut(rig.client, { handId: on.handId, path: "empty" })).length).toBe(0);
});

test("a tree goes in and comes out with modes and links; what was there before stays", async () => {
  await on.bash("mkdir -p tree/kept; echo old > tree/kept/old; echo before > tree/a");
  const archive = pack(
    [".", "", { type: "directory", mode: 0o755 }],
    ["a", "after"],
    ["bin", "", { type: "directory", mode: 0o750 }],
    ["bin/run", "#!/bin/sh\necho ran", { mode: 0o755 }],
    ["link", "", { type: "symlink", linkTarget: "bin/run" }],
    ["same", "", { type: "hardlink", linkTarget: "a" }],
    ["outward", "", { type: "symlink", linkTarget: "/etc/passwd" }],
  );
  await copyIn(rig.client, { handId: on.handId, path: "tree", tar: true }, archive, 1_000);
  await copyIn(rig.client, { handId: on.handId, path: "tree", tar: true }, archive); // the same again is the same
  expect(
    await on.bash("tree/link; cat tree/a tree/same tree/kept/old; stat -c %a tree/bin tree/bin/run"),
  ).toBe("ran\nafterafterold\n750\n755");
  const out = await unpack(await copyOut(rig.client, { handId: on.handId, path: "tree", tar: true }));
  expect(out).toEqual([
    ". directory 755",
    "a file 644 after",
    "bin directory 750",
    "bin/run file 755 #!/bin/sh\necho ran",
    "kept directory 755",
    "kept/old file 644 old",
    "link symlink 777 -> bin/run",
    "outward symlink 777 -> /etc/passwd",
    "same file 644 after",
  ]);
  expect(await unpack(await copyOut(rig.client, { handId: on.handId, path: "tree/a", tar: true }))).toEqual([
    "a file 644 after",
  ]);
  expect(await on.listing()).not.toContain(".tendon-copy");
});

test("nothing leads out of the hand's workspace: no name, no link, neither in nor out", async () => {
  const secret = "/etc/passwd";
  for (const path of ["../../escape", "/etc/escape", "/tmp/escape"]) {
    expect(await reasonOf(copyIn(rig.client, { handId: on.handId, path }, Buffer.from("x")))).toContain(
      "INVALID_FIELD",
    );
    const tree = copyIn(rig.client, { handId: on.handId, path, tar: true }, pack(["a", "x"]));
    expect(await reasonOf(tree)).toContain("INVALID_FIELD");
    expect(await reasonOf(copyOut(rig.client, { handId: on.handId, path: secret }))).toContain(
      "INVALID_FIELD",
    );
  }
  const before = await on.listing();
  const archives = {
    absolute: pack(["/etc/escape", "x"]),
    dots: pack(["fine", "x"], ["../escape", "x"]),
    "behind its link": pack(["l", "", { type: "symlink", linkTarget: "/etc" }], ["l/escape", "x"]),
    "hard link outward": pack(["h", "", { type: "hardlink", linkTarget: "/etc/passwd" }]),
    "hard link to what has not come": pack(
      ["h", "", { type: "hardlink", linkTarget: "later" }],
      ["later", "x"],
    ),
  };
  for (const archive of Object.values(archives)) {
    expect(
      await reasonOf(copyIn(rig.client, { handId: on.handId, path: ".", tar: true }, archive)),
    ).toContain("INVALID_FIELD");
  }
  expect(await on.listing()).toBe(before);
  // Links that the hand itself has made: they are not followed outward either.
  await on.bash(`ln -s /etc etc; ln -s ${secret} pw`);
  for (const path of ["etc/passwd", "pw"])
    expect(await reasonOf(copyOut(rig.client, { handId: on.handId, path }))).toContain("INVALID_FIELD");
  expect(
    await reasonOf(copyIn(rig.client, { handId: on.handId, path: "etc/x" }, Buffer.from("x"))),
  ).toContain("INVALID_FIELD");
  const behind = copyIn(rig.client, { handId: on.handId, path: "etc", tar: true }, pack(["x", "x"]));
  expect(await reasonOf(behind)).toContain("INVALID_FIELD");
  // An archive's file takes the place of a link, it does not go through it.
  await on.bash("echo kept > kept; ln -s kept through");
  await copyIn(
    rig.client,
    { handId: on.handId, path: ".", tar: true },
    pack(["through", "new"], ["pw", "mine"]),
  );
  expect(await on.bash("cat kept through pw; test -L pw || echo no link")).toBe("kept\nnewmineno link");
});

test("a tree that does not fit what is there changes nothing", async () => {
  await on.bash("mkdir -p t/dir; echo old > t/file");
  const before = await on.bash("find t -type f -exec cat {} +; find t | sort");
  for (const archive of [
    pack(["file", "new"], ["dir", "now a file"]),
    pack(["file", "new"], ["file2", "x"], ["file", "", { type: "directory" }]),
    pack(["new", "x"], ["file/below", "x"]),
  ]) {
    expect(
      await reasonOf(copyIn(rig.client, { handId: on.handId, path: "t", tar: true }, archive)),
    ).toContain("INVALID_FIELD");
  }
  const file = copyIn(rig.client, { handId: on.handId, path: "t/file", tar: true }, pack(["a", "x"]));
  expect(await reasonOf(file)).toContain("no directory");
  expect(await on.bash("find t -type f -exec cat {} +; find t | sort")).toBe(before);
  expect(await on.listing()).not.toContain(".tendon-copy");
});

test("a copy that breaks off leaves what was there (R11)", async () => {
  await copyIn(rig.client, { handId: on.handId, path: "f" }, Buffer.from("whole"));
  await copyIn(rig.client, { handId: on.handId, path: "t", tar: true }, pack(["a", "whole"]));
  const archive = pack(["a", "x".repeat(2_000_000)], ["b", "y"]);
  for (const tar of [false, true]) {
    const call = rig.client.copyIn();
    await call.send({ kind: { case: "target", value: { handId: on.handId, path: tar ? "t" : "f", tar } } });
    await call.send({ kind: { case: "chunk", value: archive.subarray(0, 1_000_000) } });
    await eventually(async () => (await on.listing()).includes(".tendon-"), { withinMs: 60_000 });
    call.cancel();
    expect(await reasonOf(call.end())).toContain("CANCELLED");
    await eventually(async () => !(await on.listing()).includes(".tendon-"), { withinMs: 60_000 });
    expect(await on.bash("cat f t/a; ls t")).toBe("wholewholea");
  }
  // A stream that ends without its end was cut, and so was one that says that there was more, or something else.
  for (const end of [
    undefined,
    { sizeBytes: 5n },
    { sizeBytes: 3n, sha256: sha256Of(Buffer.from("other")) },
  ]) {
    const call = rig.client.copyIn();
    await call.send({ kind: { case: "target", value: { handId: on.handId, path: "f" } } });
    await call.send({ kind: { case: "chunk", value: Buffer.from("new") } });
    if (end !== undefined) await call.send({ kind: { case: "end", value: end } });
    expect(await reasonOf(call.end())).toContain(end === undefined ? "CANCELLED" : "INVALID_FIELD: end");
  }
  // An archive that ends before its end is no archive.
  const cut = copyIn(rig.client, { handId: on.handId, path: "t", tar: true }, archive.subarray(0, 1_500_000));
  expect(await reasonOf(cut)).toContain("cut off");
  expect(await on.bash("cat f t/a; ls t")).toBe("wholewholea");
});

test("what is not there, is no file, or is a directory, is said by its name", async () => {
  await on.bash("mkfifo pipe; mkdir d");
  expect(await reasonOf(copyOut(rig.client, { handId: on.handId, path: "nothing" }))).toContain("NOT_FOUND");
  expect(await reasonOf(copyOut(rig.client, { handId: on.handId, path: "pipe" }))).toContain("INVALID_FIELD");
  expect(await reasonOf(copyOut(rig.client, { handId: on.handId, path: "d" }))).toContain("INVALID_FIELD");
  expect(await reasonOf(copyIn(rig.client, { handId: on.handId, path: "d" }, Buffer.from("x")))).toContain(
    "INVALID_FIELD",
  );
  expect(await reasonOf(copyIn(rig.client, { handId: on.handId, path: "a\0b" }, Buffer.from("x")))).toContain(
    "INVALID_FIELD",
  );
  expect(await reasonOf(copyIn(rig.client, { handId: "hand_none", path: "a" }, Buffer.from("x")))).toContain(
    "NOT_FOUND",
  );
  expect(
    await reasonOf(
      copyIn(rig.client, { handId: on.handId, path: "a", tar: true }, Buffer.from("no archive")),
    ),
  ).toContain("INVALID_FIELD");
  expect(
    await reasonOf(copyIn(rig.client, { handId: on.handId, path: "a", tar: true, mode: 1 }, Buffer.alloc(0))),
  ).toContain("INVALID_FIELD");
  const call = rig.client.copyIn();
  await call.send({ kind: { case: "chunk", value: Buffer.from("x") } });
  expect(await reasonOf(call.end())).toContain("target");
  // A pipe in a tree is left out, the rest comes.
  expect(await unpack(await copyOut(rig.client, { handId: on.handId, path: ".", tar: true }))).toEqual([
    ". directory 700",
    "d directory 755",
  ]);
});

test("a parked hand is resumed for a copy, and a hand with a copy is not parked (H5)", async () => {
  const environmentId = await rig.environment({ idleTimeoutMs: 300 });
  const { hand } = await rig.client.provision({ requestId: "to be parked", environmentId });
  const target = { handId: hand!.id, path: "slow" };
  const state = async () => {
    const { rows } = await rig.pool.query<{ state: string; unused: number }>(
      "select state, extract(epoch from clock_timestamp() - last_used_at)::float8 as unused from hands where hand_id = $1",
      [hand!.id],
    );
    return rows[0]!;
  };
  const call = rig.client.copyIn();
  await call.send({ kind: { case: "target", value: target } });
  await call.send({ kind: { case: "chunk", value: Buffer.from("a") } });
  // Before it has begun the hand may be parked, and is resumed for it.
  await eventually(() => rig.area.openCopies() === 1);
  // Unused for more than three times its idle timeout, but for the copy.
  const unused = await eventually(async () => {
    const now = await state();
    return now.unused > 1 ? now : undefined;
  });
  expect(unused.state).toBe("ready");
  await call.send({ kind: { case: "end", value: { sizeBytes: 1n } } });
  await call.end();
  await eventually(async () => (await state()).state === "parked");
  expect((await copyOut(rig.client, target)).toString()).toBe("a");
  await rig.client.releaseHand({ handId: hand!.id });
});

test("a session's hand takes copies of its brain, by its lease, and of an admin who says why (hand.operated)", async () => {
  const session = await rig.session();
  const { hand } = await rig.harness.provision({
    requestId: "of a session",
    sessionId: session.id,
    lease: session.lease,
  });
  const target = { handId: hand!.id, path: "f" };
  await copyIn(rig.harness, { ...target, lease: session.lease }, Buffer.from("brain"));
  expect(await reasonOf(copyIn(rig.client, target, Buffer.from("x")))).toContain("ROLE_NOT_ALLOWED");
  expect(await reasonOf(copyIn(rig.admin, target, Buffer.from("x")))).toContain("reason");
  expect(await reasonOf(copyIn(rig.harness, target, Buffer.from("x")))).toContain("lease");
  const stale = { ...session.lease };
  await session.takeOver();
  expect(await reasonOf(copyIn(rig.harness, { ...target, lease: stale }, Buffer.from("x")))).toContain(
    "LEASE_FENCED",
  );
  const elsewhere = { kind: "client", keyId: "apikey_x", workspaceId: "wrkspc_other" } as const;
  expect(await reasonOf(copyOut(rig.hands(elsewhere), { handId: hand!.id, path: "f" }))).toContain(
    "NOT_FOUND",
  );
  const out = await copyOut(rig.admin, { handId: hand!.id, path: "f", reason: "asked by its user" });
  expect(out.toString()).toBe("brain");
  const operated = await session.events("hand.operated");
  expect(operated.map(({ payload }) => payload)).toMatchObject([
    {
      hand_id: hand!.id,
      actor: "admin apikey_a",
      reason: "asked by its user",
      name: "copy_out",
      input_text: '{"path":"f","tar":false}',
    },
  ]);
  await rig.admin.releaseHand({ handId: hand!.id });
  expect(await reasonOf(copyOut(rig.admin, { handId: hand!.id, path: "f", reason: "again" }))).toContain(
    "HAND_RELEASED",
  );
});
