/** Copies in which somebody stands still, and what hands are given when they are made: the real agent with process hands. */
import { randomBytes } from "node:crypto";
import { afterAll, afterEach, beforeAll, expect, test } from "vitest";
import { AgentRig, reasonOf } from "../kit/agent-rig.ts";
import { eventually } from "../kit/eventually.ts";
import { copyIn, pack, sha256Of } from "../kit/hand-copies.ts";
import type { HandRig } from "../kit/hand-rig.ts";

let on: AgentRig;
let rig: HandRig;

beforeAll(async () => {
  on = await AgentRig.start({ copyStallMs: 1_500 });
  rig = on.hands;
});
afterAll(() => on?.stop());
afterEach(() => on.release());

test("a caller that stands still is left after a bound, and what was there stays (R11)", async () => {
  await on.provision();
  await copyIn(rig.client, { handId: on.handId, path: "f" }, Buffer.from("whole"));
  await copyIn(rig.client, { handId: on.handId, path: "t", tar: true }, pack(["a", "whole"]));
  const archive = pack(["a", "x".repeat(2_000_000)], ["b", "y"]);
  for (const tar of [false, true]) {
    const call = rig.client.copyIn();
    await call.send({ kind: { case: "target", value: { handId: on.handId, path: tar ? "t" : "f", tar } } });
    await call.send({ kind: { case: "chunk", value: archive.subarray(0, 1_000_000) } });
    // Messages without bytes are no progress.
    const refused = () =>
      call.send({ kind: { case: "chunk", value: new Uint8Array() } }).then(
        () => false,
        () => true,
      );
    await eventually(refused, { withinMs: 60_000 });
    expect(await reasonOf(call.end())).toContain("DEADLINE_EXCEEDED");
    await eventually(async () => !(await on.listing()).includes(".tendon-"), { withinMs: 60_000 });
  }
  expect(await on.bash("cat f t/a; ls t")).toBe("wholewholea");
});

test("a reader that stands still is left, and holds up nobody", async () => {
  await on.provision();
  await on.bash("head -c 40000000 /dev/zero > big");
  const reading = rig.client.copyOut({ handId: on.handId, path: "big" })[Symbol.asyncIterator]();
  await reading.next();
  expect(await on.bash("echo goes on")).toBe("goes on");
  const read = async () => {
    for (let next = await reading.next(); !next.done; next = await reading.next());
  };
  await eventually(async () => (await rig.area.openCopies()) === 0, { withinMs: 60_000 });
  expect(await reasonOf(read())).toContain("DEADLINE_EXCEEDED");
});

test("a hand is given variables, files and set up in that order, once for one request", async () => {
  const bytes = randomBytes(3_000_000);
  const blob = { workspaceId: rig.workspaceId, owner: "test", bytes: [bytes], maxBytes: 1e7 };
  const { sha256 } = await rig.store.blobs.write(blob);
  const environmentId = await rig.environment({
    variables: { A: "environment", B: "kept" },
    setup: ["echo first >> order"],
  });
  const request = {
    requestId: "with resources",
    environmentId,
    resources: [
      {
        kind: { case: "setupCommand", value: { command: "echo second $A $B >> order; cp bin/tool order2" } },
      },
      { kind: { case: "variable", value: { name: "A", value: "own" } } },
      {
        kind: {
          case: "inlineFile",
          value: { path: "bin/tool", content: Buffer.from("#!/bin/sh\necho ran"), executable: true },
        },
      },
      { kind: { case: "storedFile", value: { path: "data/big", sha256, executable: false } } },
    ],
  } as const;
  await on.provision(request as never);
  const first = on.handId;
  await rig.store.blobs.release({ workspaceId: rig.workspaceId, owner: "test" });
  await on.provision(request as never);
  expect(on.handId).toBe(first);
  expect(
    await on.bash(
      "cat order; bin/tool; ./order2; sha256sum < data/big; stat -c %a data/big bin/tool; echo $A",
    ),
  ).toBe(`first\nsecond own kept\nran\nran\n${sha256Of(bytes)}  -\n644\n755\nown`);
  expect(await reasonOf(rig.client.provision({ ...request, resources: [] } as never))).toContain(
    "REQUEST_ID_REUSED",
  );
});

test("what cannot be given fails the provision, says why, and leaves nothing", async () => {
  await on.provision();
  let requests = 0;
  const give = (...resources: object[]) =>
    reasonOf(rig.client.provision({ requestId: `bad ${++requests}`, resources } as never));
  const setupCommand = { kind: { case: "setupCommand", value: { command: "echo out of paper; exit 3" } } };
  expect(await give(setupCommand)).toMatch(/PROVISION_FAILED.*ended with 3: out of paper/s);
  const unknown = { kind: { case: "storedFile", value: { path: "x", sha256: "0".repeat(64) } } };
  expect(await give(unknown)).toContain("INVALID_FIELD: resources[0].stored_file.sha256");
  const outside = { kind: { case: "inlineFile", value: { path: "/etc/escape", content: Buffer.from("x") } } };
  expect(await give(outside)).toContain("PROVISION_FAILED");
  const reserved = { kind: { case: "variable", value: { name: "TENDON_X", value: "x" } } };
  expect(await give(reserved)).toContain("PROVISION_FAILED");
  const nul = { kind: { case: "variable", value: { name: "X", value: "a\0b" } } };
  expect(await give(nul)).toContain("INVALID_FIELD");
  const { hands } = await rig.client.listHands({ includeEnded: false });
  expect(hands.map(({ id }) => id)).toEqual([on.handId]);
});

test("a hand that has become too old is released once its session rests, and one parked for as long as its environment says (H5)", async () => {
  await on.provision();
  const environmentId = await rig.environment({ maxAgeMs: 1 });
  const session = await rig.session(environmentId);
  const request = { requestId: "of age", sessionId: session.id, lease: session.lease };
  const { hand } = await rig.harness.provision(request);
  const stateDetail = async (id: string) => (await rig.client.getHand({ handId: id })).hand!.stateDetail;
  // Its brain works.
  expect(await rig.store.hands.aged(10)).toEqual([]);
  await session.rest();
  await eventually(async () => (await stateDetail(hand!.id)).startsWith("it was older than 1 ms"), {
    withinMs: 60_000,
  });
  const short = await rig.environment({ idleTimeoutMs: 100, keepParkedMs: 200 });
  const other = (await rig.client.provision({ requestId: "short", environmentId: short })).hand!;
  await rig.pool.query("update hands set state = 'parked', parked_at = now() where hand_id = $1", [other.id]);
  await eventually(async () => (await stateDetail(other.id)).startsWith("it was parked for 200 ms"), {
    withinMs: 60_000,
  });
});

test("the agent says what its machine has", async () => {
  await on.provision();
  const { handAgents } = await rig.client.listHandAgents({});
  const { resources } = handAgents[0]!;
  expect(resources!.cpuMillis).toBeGreaterThanOrEqual(1_000);
  expect(resources!.memoryFreeBytes).toBeGreaterThan(0n);
  expect(resources!.memoryBytes).toBeGreaterThan(resources!.memoryFreeBytes);
  expect(resources!.diskFreeBytes).toBeGreaterThan(0n);
});
