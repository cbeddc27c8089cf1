/** A server that dies while it gives out an item of work: the item is lost to nobody, and nobody has it twice. */
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import Anthropic from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { eventually } from "../kit/eventually.ts";
import { type RunningProgram, startProgram } from "../kit/program.ts";
import { startWorkerRig, type WorkerRig } from "../kit/worker-rig.ts";

let rig: WorkerRig;
let dataDir: string;
const programs: RunningProgram[] = [];

beforeAll(async () => {
  rig = await startWorkerRig();
  dataDir = await mkdtemp(join(tmpdir(), "tendon-dying-"));
});
afterAll(async () => {
  for (const program of programs) await program.end("SIGKILL");
  await rig?.stop();
  await rm(dataDir, { recursive: true, force: true });
});

/** Another replica, which is gone when a worker's request has come to this point. */
async function dyingReplica(point: string): Promise<{ program: RunningProgram; url: string }> {
  const program = startProgram("server", {
    TENDON_DATA_DIR: dataDir,
    TENDON_PORT: "0",
    TENDON_DATABASE_URL: rig.database.url,
    TENDON_DATABASE_POOL: "5",
    TENDON_FAILPOINTS: `${point}=kill`,
  });
  programs.push(program);
  const port = await eventually(() => /"port":(\d+)/.exec(program.log())?.[1]);
  return { program, url: `http://127.0.0.1:${port}` };
}

const at = (url: string, credential: string) =>
  new Anthropic({ baseURL: url, authToken: credential, apiKey: null, maxRetries: 0 });

/** A session whose call waits in the queue of an environment of its own. */
async function waiting() {
  const environmentId = await rig.environment();
  const { key } = await rig.key(environmentId);
  const sessionId = await rig.session(environmentId, "run: echo hello");
  await rig.idle(sessionId, "requires_action");
  const [call] = await rig.calls(sessionId, 1);
  const queue = rig.as(key).beta.environments.work;
  return { environmentId, key, sessionId, callId: call!.id, queue, named: { environment_id: environmentId } };
}

type Waiting = Awaited<ReturnType<typeof waiting>>;
type Work = Anthropic.Beta.Environments.BetaSelfHostedWork;

/** As if the time had passed that whoever was given the item has to accept it, or the one of its lease. */
async function pass(what: "delivered_at" | "lease_expires_at", sessionId: string): Promise<void> {
  const then = what === "delivered_at" ? "clock_timestamp() - interval '1 minute'" : "clock_timestamp()";
  await rig.database
    .pool()
    .query(`update work_items set ${what} = ${then} where session_id = $1`, [sessionId]);
}

/** The holder of an accepted item sees the call once and answers it, and with that the turn ends well. */
async function serve({ sessionId, callId, key, queue, environmentId, named }: Waiting, work: Work) {
  const secret = JSON.parse(Buffer.from(work.secret!, "base64url").toString()) as { sessions_token: string };
  const holder = rig.as(secret.sessions_token);
  const first = { ...named, expected_last_heartbeat: "NO_HEARTBEAT" };
  expect((await holder.beta.environments.work.heartbeat(work.id, first)).state).toBe("active");
  const calls = (await rig.events(sessionId, holder)).filter(({ type }) => type === "agent.tool_use");
  expect(calls.map(({ id }) => id)).toEqual([callId]);
  const content = [{ type: "text" as const, text: "hello" }];
  const answer = { type: "user.tool_result" as const, tool_use_id: callId, content };
  await holder.beta.sessions.events.send(sessionId, { events: [answer] });
  const events = await rig.idle(sessionId, "end_turn");
  expect(events.filter(({ type }) => type === "user.tool_result")).toMatchObject([
    { tool_use_id: callId, content },
  ]);
  await holder.beta.environments.work.stop(work.id, { ...named, force: true });
  const items: string[] = [];
  for await (const { id } of rig.as(key).beta.environments.work.list(environmentId)) items.push(id);
  expect(items).toEqual([work.id]);
  expect(await queue.poll(environmentId, { reclaim_older_than_ms: 0 })).toBeNull();
}

describe("a server that is killed in the middle of a claim", () => {
  it("has given the item to nobody: it is offered again, to one worker (X1)", async () => {
    const item = await waiting();
    const { program, url } = await dyingReplica("server.work_claimed");
    const lost = at(url, item.key).beta.environments.work.poll(item.environmentId);
    await expect(lost).rejects.toThrow(Anthropic.APIConnectionError);
    expect(await program.ended).toBe("SIGKILL");
    // For all that the queue knows a worker has it, so nobody else gets it before the time for that is over.
    expect(await rig.client.beta.environments.work.stats(item.environmentId)).toMatchObject({
      depth: 0,
      pending: 1,
    });
    expect(await item.queue.poll(item.environmentId, { reclaim_older_than_ms: 600_000 })).toBeNull();
    await pass("delivered_at", item.sessionId);
    const polled = await Promise.all([1, 2, 3].map(() => item.queue.poll(item.environmentId)));
    const [work, ...others] = polled.filter((found) => found !== null);
    expect(others).toEqual([]);
    await item.queue.ack(work!.id, item.named);
    await serve(item, work!);
  });

  it("has taken the worker's word: the worker that repeats it has the item, and no other one (X1)", async () => {
    const item = await waiting();
    const work = (await item.queue.poll(item.environmentId))!;
    const { program, url } = await dyingReplica("server.work_accepted");
    const lost = at(url, item.key).beta.environments.work.ack(work.id, item.named);
    await expect(lost).rejects.toThrow(Anthropic.APIConnectionError);
    expect(await program.ended).toBe("SIGKILL");
    expect(await item.queue.poll(item.environmentId, { reclaim_older_than_ms: 0 })).toBeNull();
    expect((await item.queue.ack(work.id, item.named)).state).toBe("starting");
    await serve(item, work);
  });

  it("and whose worker is gone too has not kept the item: it is offered again with its call unanswered (X3)", async () => {
    const item = await waiting();
    const first = (await item.queue.poll(item.environmentId))!;
    const { program, url } = await dyingReplica("server.work_accepted");
    const lost = at(url, item.key).beta.environments.work.ack(first.id, item.named);
    await expect(lost).rejects.toThrow(Anthropic.APIConnectionError);
    expect(await program.ended).toBe("SIGKILL");
    await pass("lease_expires_at", item.sessionId);
    const work = (await eventually(() => item.queue.poll(item.environmentId)))!;
    expect(work.id).toBe(first.id);
    await item.queue.ack(work.id, item.named);
    await serve(item, work);
  });
});
