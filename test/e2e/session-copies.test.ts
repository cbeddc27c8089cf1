/** `tendon session fork`, `export` and `import`, with sessions that really ran. */
import { existsSync, readFileSync, statSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { atOwnPort, Installation } from "../kit/start-process.ts";

const installation = new Installation();
beforeAll(async () => {
  await installation.start(await atOwnPort()).ready();
});
afterAll(() => installation.dispose());

type Slice = { events: { id: string; position: string; type: string; payload: string }[]; head: string };
type Made = { id: string; head: string; status: string; forked_from_session_id: string };

const eventsOf = async (id: string) =>
  (await installation.json<Slice>("session", "events", id, "--limit", "1000")).events;

async function ran(): Promise<{ id: string; events: Slice["events"] }> {
  const { id } = await installation.json<Made>("session", "create", "--message", "run: echo first-$((1+1))");
  await installation.tendon(["session", "watch", id, "--until-idle"]);
  return { id, events: await eventsOf(id) };
}

test("a fork in the middle of a call is told that the call ended, and goes on with a brain of its own", async () => {
  const { id, events } = await ran();
  const use = events.find(({ type }) => type === "agent.tool_use")!;
  const fork = await installation.json<Made>("session", "fork", id, "--at", use.position, "--title", "again");
  expect(fork).toMatchObject({
    forked_from_session_id: id,
    forked_from_position: use.position,
    title: "again",
  });
  expect((await installation.tendon(["session", "watch", fork.id, "--until-idle"])).code).toBe(0);
  const forked = await eventsOf(fork.id);
  const shared = Number(use.position);
  expect(forked.slice(0, shared)).toEqual(events.slice(0, shared));
  expect(forked.slice(shared).map(({ type }) => type)).toEqual(
    expect.arrayContaining(["session.forked", "agent.tool_result", "agent.message", "session.status_idle"]),
  );
  const sent = await installation.tendon(["session", "send", fork.id, "run: echo own-$((2+2))", "--follow"]);
  expect(sent).toMatchObject({ code: 0 });
  expect(sent.stdout).toContain("own-4");
  expect(await eventsOf(id)).toEqual(events);
});

test("a log goes to a file and comes back from it, or through a pipe, and the session goes on from there", async () => {
  const { id, events } = await ran();
  const file = join(installation.dataDir, "log.ndjson");
  const written = await installation.tendon(["session", "export", id, "--internal", "--output", file]);
  expect(written).toMatchObject({ code: 0, stdout: "" });
  expect(existsSync(`${file}.partial`)).toBe(false);
  expect(statSync(file).mode & 0o077).toBe(0);
  const piped = await installation.tendon(["session", "export", id, "--internal"]);
  expect(piped.stdout.split("\n").slice(1, -2)).toEqual(readFileSync(file, "utf8").split("\n").slice(1, -2));
  const fromFile = await installation.json<Made>("session", "import", file, "--request-id", "one");
  expect((await eventsOf(fromFile.id)).slice(0, events.length)).toEqual(events);
  const fromPipe = await installation.tendon(["session", "import", "-", "--json"], { input: piped.stdout });
  expect((await eventsOf(JSON.parse(fromPipe.stdout).id)).slice(0, events.length)).toEqual(events);
  expect((await installation.json<Made>("session", "import", file, "--request-id", "one")).id).toBe(
    fromFile.id,
  );
  const sent = await installation.tendon([
    "session",
    "send",
    fromFile.id,
    "run: echo more-$((3+3))",
    "--follow",
  ]);
  expect(sent).toMatchObject({ code: 0 });
  expect(sent.stdout).toContain("more-6");
});

test("a log that was changed, or is not there, is refused in words; a file that cannot be written leaves nothing", async () => {
  const { id } = await installation.json<Made>("session", "create", "--message", "hello");
  const log = (await installation.tendon(["session", "export", id])).stdout;
  const file = join(installation.dataDir, "changed.ndjson");
  writeFileSync(file, log.replace("hello", "hallo"));
  const changed = await installation.tendon(["session", "import", file]);
  expect(changed.code).toBe(1);
  expect(changed.stderr).toMatch(/line \d+.*changed or damaged/);
  const missing = await installation.tendon(["session", "import", join(installation.dataDir, "none.ndjson")]);
  expect(missing).toMatchObject({ code: 2, stderr: expect.stringContaining("none.ndjson") });
  const nowhere = join(installation.dataDir, "no-folder", "log.ndjson");
  const unwritten = await installation.tendon(["session", "export", id, "--output", nowhere]);
  expect(unwritten).toMatchObject({ code: 2, stderr: expect.stringContaining("no-folder") });
  const unknown = await installation.tendon(["session", "export", "sesn_none", "--output", file]);
  expect(unknown.code).toBe(1);
  expect(readFileSync(file, "utf8")).toContain("hallo");
});

test("a workspace's retention is set and shown", async () => {
  const { id } = await installation.json<Made>("workspace", "create", "kept-short");
  const changed = await installation.json("workspace", "update", id, "--retention-days", "30");
  expect(changed).toMatchObject({ limits: { retention_days: 30 } });
});
