/** The official client's own worker serves self-hosted environments: killed, stopped for a while, replaced. */
import { mkdtemp, readFile, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { eventually } from "../kit/eventually.ts";
import { newerNode } from "../kit/newer-node.ts";
import { startWorkerRig, type WorkerRig } from "../kit/worker-rig.ts";

let rig: WorkerRig;
let marks: string;

beforeAll(async () => {
  // Installed before any test's time begins.
  await newerNode();
  rig = await startWorkerRig();
  marks = await mkdtemp(join(tmpdir(), "tendon-marks-"));
}, 300_000);
afterAll(async () => {
  await rig?.stop();
  await rm(marks, { recursive: true, force: true });
});

const lines = async (name: string) =>
  (await readFile(join(marks, name), "utf8").catch(() => "")).split("\n").slice(0, -1);
const results = async (sessionId: string) =>
  (await rig.events(sessionId)).filter(({ type }) => type.endsWith("tool_result"));

/** As if the workers of the session had not been heard from for the time of a lease. */
async function loseLease(sessionId: string): Promise<void> {
  await rig.database
    .pool()
    .query(
      "update work_items set lease_expires_at = clock_timestamp() where session_id = $1 and state = 'active'",
      [sessionId],
    );
}

describe("the official worker", () => {
  it("runs what a session calls, goes when the session rests, and another one takes up what comes later", async () => {
    const environmentId = await rig.environment();
    const { key } = await rig.key(environmentId);
    const worker = await rig.worker(environmentId, key, 1_000);
    const sessionId = await rig.session(environmentId, "run: echo made by $((40 + 2)) > made\nrun: cat made");
    expect(JSON.stringify(await rig.idle(sessionId, "end_turn"))).toContain("made by 42");
    expect((await results(sessionId)).map(({ type }) => type)).toEqual([
      "user.tool_result",
      "user.tool_result",
    ]);
    expect(await readFile(join(worker.dir, "made"), "utf8")).toBe("made by 42\n");
    const items = async () => {
      const states: string[] = [];
      for await (const { state } of rig.as(key).beta.environments.work.list(environmentId))
        states.push(state);
      return states;
    };
    await eventually(async () => (await items()).join() === "stopped");
    // Long after: a new item, served as the first one was.
    await rig.say(sessionId, "run: cat made");
    await rig.idle(sessionId, "end_turn", 2);
    expect(await items()).toHaveLength(2);
    expect(await results(sessionId)).toHaveLength(3);
    await worker.kill("SIGTERM");
  });

  it("that is killed in the middle of a call is replaced, and no call runs twice (X1)", async () => {
    const environmentId = await rig.environment();
    const { key } = await rig.key(environmentId);
    const first = await rig.worker(environmentId, key);
    const mark = join(marks, "killed");
    const sessionId = await rig.session(
      environmentId,
      `run: echo run >> ${mark}; echo $$ > ${mark}.pid; exec sleep 600`,
    );
    await eventually(async () => (await lines("killed")).length === 1);
    const [pid] = await eventually(async () => {
      const written = await lines("killed.pid");
      return written.length === 1 ? written : undefined;
    });
    await first.kill("SIGKILL");
    const second = await rig.worker(environmentId, key);
    await loseLease(sessionId);
    await rig.idle(sessionId, "end_turn");
    expect(await results(sessionId)).toMatchObject([
      { type: "user.tool_result", is_error: true, outcome: "unknown" },
    ]);
    await rig.say(sessionId, `run: echo second >> ${mark}`);
    await rig.idle(sessionId, "end_turn", 2);
    expect(await lines("killed")).toEqual(["run", "second"]);
    process.kill(Number(pid), "SIGKILL");
    await second.kill("SIGTERM");
  });

  it("that stood still comes back to an item of another one, and runs nothing of it (X1)", async () => {
    const environmentId = await rig.environment();
    const { key } = await rig.key(environmentId);
    const first = await rig.worker(environmentId, key);
    const mark = join(marks, "still");
    const sessionId = await rig.session(environmentId, `run: echo first >> ${mark}`);
    await rig.idle(sessionId, "end_turn");
    first.child.kill("SIGSTOP");
    const second = await rig.worker(environmentId, key);
    // A turn that is over needs no worker: with its lease the first one loses an item that nobody else is given.
    await loseLease(sessionId);
    await eventually(
      async () =>
        (
          await rig.database
            .pool()
            .query("select 1 from work_items where session_id = $1 and state = 'active'", [sessionId])
        ).rowCount === 0,
    );
    await rig.say(sessionId, `run: echo second >> ${mark}`);
    await rig.idle(sessionId, "end_turn", 2);
    first.child.kill("SIGCONT");
    await rig.say(sessionId, `run: echo third >> ${mark}`);
    await rig.idle(sessionId, "end_turn", 3);
    await eventually(() =>
      first.lines.some((line) => /lease|heartbeat|precondition|stopped|stopping/i.test(line)),
    );
    expect(await lines("still")).toEqual(["first", "second", "third"]);
    await second.kill("SIGTERM");
    await first.kill("SIGTERM");
  });
});
