/** `tendon session verify`, with a session that really ran and a database that somebody writes to. */
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { afterAll, beforeAll, expect, test } from "vitest";
import { NEW_CHAIN, originHash } from "../../kit/chain/event-hash.ts";
import { eventually } from "../kit/eventually.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { atOwnPort, Installation } from "../kit/start-process.ts";

const installation = new Installation();
let database: TestDatabase;
beforeAll(async () => {
  database = await createTestDatabase({ migrated: false });
  await installation.start(await atOwnPort(), { env: { TENDON_DATABASE_URL: database.url } }).ready();
});
afterAll(async () => {
  await installation.dispose();
  await database?.drop();
});

interface Verdict {
  session_id: string;
  fits: boolean;
  signed_up_to: number;
  events: number;
  problems: { position: number; problem: string }[];
  keys: { x: string; is_servers: boolean }[];
}

const pathOf = (name: string) => join(installation.dataDir, name);

async function verify(...args: string[]): Promise<Verdict & { code: number | null }> {
  const { code, stdout, stderr } = await installation.tendon(["session", "verify", ...args, "--json"]);
  if (stdout === "") throw new Error(stderr);
  return { ...JSON.parse(stdout), code };
}

/** A session that ran to its rest, signed up to its end. */
async function ran(): Promise<string> {
  const { id } = await installation.json<{ id: string }>(
    "session",
    "create",
    "--message",
    "run: echo $((40+2))",
  );
  const { code, stdout } = await installation.tendon(["session", "watch", id, "--until-idle", "--json"]);
  // What is printed is what is to be kept.
  expect([code, stdout.trimEnd().split("\n").at(-1)]).toEqual([0, expect.stringContaining('{"checkpoint":')]);
  await eventually(async () => {
    const { signed_up_to: upTo, events } = await verify(id);
    return events > 0 && upTo === events;
  });
  return id;
}

async function watched(id: string, file: string): Promise<void> {
  const watch = installation.startTendon(["session", "watch", id, "--json"]);
  await eventually(() => watch.stdout.includes('{"checkpoint":'));
  watch.child.kill("SIGTERM");
  writeFileSync(file, (await watch.ended()).stdout);
}

test("a workspace turns it on; a session from before has no hashes, one from then on fits", async () => {
  const before = await installation.json<{ id: string; tamper_evident: boolean }>("session", "create");
  const never = await installation.tendon(["session", "verify", before.id]);
  expect(never).toMatchObject({ code: 3, stderr: "" });
  expect(never.stdout).toBe(`${before.id} is not tamper-evident: nothing to verify\n`);
  expect(await verify(before.id)).toMatchObject({ code: 3, fits: false, problems: [] });
  const { workspaces } = await installation.json<{ workspaces: { id: string }[] }>("workspace", "list");
  const on = ["workspace", "update", workspaces[0]!.id, "--tamper-evident", "on"];
  expect(await installation.json(...on)).toMatchObject({ tamper_evident: true });
  expect(before.tamper_evident).toBe(false);
  const wanted = await verify(before.id);
  expect(wanted).toMatchObject({ code: 1, problems: [{ position: 1 }] });
  expect(wanted.problems[0]!.problem).toContain("has no hash, while its workspace wants them");
  const id = await ran();
  const { code, stdout } = await installation.tendon(["session", "verify", id]);
  expect(code).toBe(0);
  expect(stdout).toMatch(
    new RegExp(`^${id} fits: \\d+ events so far\nsigned up to position \\d+ \\(1 checkpoints`),
  );
  const { keys } = await verify(id);
  expect(keys).toMatchObject([{ is_servers: true }]);
});

test("a payload that is changed in the database, with all later hashes made to fit, is found and named", async () => {
  const id = await ran();
  const [file, kept, keys] = [pathOf("kept.ndjson"), pathOf("watched.ndjson"), pathOf("keys.json")];
  await installation.tendon(["session", "export", id, "--output", file]);
  await watched(id, kept);
  writeFileSync(keys, JSON.stringify(await verify(id)));
  expect(await verify(id, "--against", file, "--keys", keys, "--checkpoints", kept)).toMatchObject({
    code: 0,
    fits: true,
  });

  const { rows } = await database
    .pool()
    .query<{ position: number }>(
      "update events set payload = '{\"content\":[]}' where session_id = $1 and type = 'agent.tool_result' returning position",
      [id],
    );
  const { position } = rows[0]!;
  await database.pool().query(
    `update events e set hash = h.hash from (
       select position, event_chain($2::bytea, session_id, position, event_id, type, created_at, thread_id, payload, internal)
         over (order by position) as hash from events where session_id = $1
     ) h where e.session_id = $1 and e.position = h.position`,
    [id, Buffer.from(originHash(id, NEW_CHAIN), "hex")],
  );
  await database
    .pool()
    .query(
      "update sessions s set chain_hash = e.hash from events e where s.session_id = $1 and e.session_id = $1 and e.position = s.head",
      [id],
    );
  const alone = await verify(id);
  expect(alone).toMatchObject({ code: 1, fits: false, problems: [{ position: alone.events }] });
  expect(alone.problems[0]!.problem).toContain(`from position 1 to ${alone.events} was changed`);
  expect(await verify(id, "--checkpoints", kept)).toMatchObject({ code: 1 });
  const against = await installation.tendon(["session", "verify", id, "--against", file]);
  expect(against.code).toBe(1);
  expect(against.stdout).toContain(`${id} does not fit, from position ${position} on`);
  expect(against.stdout).toContain(`position ${position}: its payload is not what was kept`);
});

test("an export is verified without a server; a changed one is refused as what to compare with", async () => {
  const id = await ran();
  const file = pathOf("alone.ndjson");
  const { stdout: log } = await installation.tendon(["session", "export", id]);
  writeFileSync(file, log);
  const nowhere = { env: { TENDON_URL: "http://127.0.0.1:9" } };
  const alone = await installation.tendon(["session", "verify", "--file", file], nowhere);
  expect(alone).toMatchObject({ code: 0, stderr: "" });
  expect(alone.stdout).toContain("note: the file vouches for itself");
  const keys = pathOf("alone-keys.json");
  writeFileSync(keys, JSON.stringify(await verify(id)));
  const pinned = await installation.tendon(["session", "verify", "--file", file, "--keys", keys], nowhere);
  expect(pinned.code).toBe(0);
  expect(pinned.stdout).not.toContain("vouches");
  writeFileSync(file, log.replace("echo $((40+2))", "echo $((40+3))"));
  const changed = await installation.tendon(["session", "verify", "--file", file], nowhere);
  expect(changed.code).toBe(1);
  expect(changed.stdout).toContain(`${id} does not fit, from position 1 on`);
  const against = await installation.tendon(["session", "verify", id, "--against", file]);
  expect(against.code).toBe(2);
  expect(against.stderr).toContain(`${file} does not fit itself: position 1`);
  expect((await installation.tendon(["session", "verify", id], nowhere)).code).toBe(4);
  const unknown = `${id.slice(0, -1)}${id.endsWith("0") ? "1" : "0"}`;
  expect((await installation.tendon(["session", "verify", unknown])).code).toBe(4);
  const wrong = [[], [id, "--file", file], [id, "--against", pathOf("none")], [id, "--keys", file]];
  for (const args of wrong) expect((await installation.tendon(["session", "verify", ...args])).code).toBe(2);
});
