/** Copies while programs are killed: what was there stays, nothing is left over, and the same copy again is whole. */
import { randomBytes } from "node:crypto";
import { afterEach, expect, test } from "vitest";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import { eventually } from "../kit/eventually.ts";
import { copyIn, copyOut, pack, unpack } from "../kit/hand-copies.ts";
import type { Platform } from "../kit/platform.ts";

let platform: Platform | undefined;
afterEach(async () => {
  await platform?.stop();
  platform = undefined;
});

test("a tree that is being copied when agent or server is killed changes nothing, and its rest is removed (R11)", async () => {
  platform = await startDatabasePlatform({ programs: ["hand-agent"] });
  const running = platform;
  const hands = () => running.client(HandService);
  const { hand } = await hands().provision({ requestId: "copies" }, { deadlineMs: 60_000 });
  const handId = hand!.id;
  const target = { handId, path: "t", tar: true };
  const whole = pack(["a", "first"], ["b", "first"]);
  const next = pack(["a", randomBytes(2_000_000)], ["b", "second"]);
  const listed = async () => unpack(await copyOut(hands(), { handId, path: ".", tar: true }));
  const isStaged = async () => (await listed()).some((entry) => entry.startsWith(".tendon-copy"));
  await copyIn(hands(), target, whole);
  for (const victim of ["hand-agent", "server"] as const) {
    const call = hands().copyIn();
    await call.send({ kind: { case: "target", value: target } });
    await call.send({ kind: { case: "chunk", value: next.subarray(0, 1_000_000) } });
    await eventually(isStaged, { withinMs: 60_000 });
    await running.program(victim).end("SIGKILL");
    const failed = call.end().then(
      () => "no error",
      (error: { reason: string }) => error.reason,
    );
    expect(["UNAVAILABLE", "CANCELLED"]).toContain(await failed);
    await running.start(victim);
    const after = await eventually(() => copyOut(hands(), { ...target }), { withinMs: 60_000 });
    expect((await unpack(after)).filter((entry) => entry.includes("file"))).toEqual([
      "a file 644 first",
      "b file 644 first",
    ]);
  }
  await copyIn(hands(), target, next);
  expect((await unpack(await copyOut(hands(), target))).at(-1)).toBe("b file 644 second");
  expect(await isStaged()).toBe(false);
}, 240_000);
