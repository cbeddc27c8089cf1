/** Files that sessions are given and leave: the built programs, process hands, and the client that applications use. */
import { createHash } from "node:crypto";
import { buffer } from "node:stream/consumers";
import Anthropic, { toFile } from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { ZipFile } from "yazl";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { HandService } from "../../proto/gen/tendon/v1/hand_service_pb.js";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import { eventually } from "../kit/eventually.ts";
import { collectExecution, textOfResult } from "../kit/execution-stream.ts";
import type { Platform } from "../kit/platform.ts";

let platform: Platform;
let client: Anthropic;
let agent: string;
let environment: string;

beforeAll(async () => {
  platform = await startDatabasePlatform();
  client = new Anthropic({ baseURL: platform.url, apiKey: platform.adminKey, maxRetries: 0 });
  const tools = [{ type: "agent_toolset_20260401" as const }];
  agent = (await client.beta.agents.create({ name: "a", model: "demo", tools })).id;
  environment = (await client.beta.environments.create({ name: "e", config: { type: "cloud" } })).id;
});

afterAll(() => platform?.stop());

const upload = async (text: string, name: string) =>
  client.beta.files.upload({ file: await toFile(Buffer.from(text), name) });

type Resource = { type: "file"; file_id: string; mount_path?: string };

function newSession(resources: Resource[] = []) {
  return client.beta.sessions.create({ agent, environment_id: environment, resources });
}

/** One turn of the demo model; all that the session said meanwhile, as text. */
async function turn(sessionId: string, text: string): Promise<string> {
  const stream = await client.beta.sessions.events.stream(sessionId);
  const content = [{ type: "text" as const, text }];
  await client.beta.sessions.events.send(sessionId, { events: [{ type: "user.message", content }] });
  const said: string[] = [];
  for await (const event of stream) {
    if (event.type === "agent.tool_result") said.push(JSON.stringify(event.content));
    if (event.type === "session.status_idle") break;
  }
  return said.join("\n");
}

const outputsOf = async (sessionId: string) => {
  const { data } = await client.beta.files.list({ scope_id: sessionId });
  return data.filter(({ filename }) => !filename.startsWith("given"));
};

/** Of the session's log. */
async function eventsOf(sessionId: string, type: string): Promise<Record<string, unknown>[]> {
  const found: Record<string, unknown>[] = [];
  for await (const event of client.beta.sessions.events.list(sessionId))
    if ((event.type as string) === type) found.push(event as never);
  return found;
}

describe("files that a session is given", () => {
  it("are below /mnt/session/uploads, read-only, for commands and file tools; more come while it lives, and go", async () => {
    const [one, two] = [
      await upload("first text\n", "given1.txt"),
      await upload("second text\n", "given2.txt"),
    ];
    const session = await newSession([
      { type: "file", file_id: one.id },
      { type: "file", file_id: two.id, mount_path: "/deep/er/data.csv" },
    ]);
    const deep = "/mnt/session/uploads/deep/er/data.csv";
    expect(session.resources).toMatchObject([
      { type: "file", id: expect.stringMatching(/^sesrsc_/), mount_path: `/mnt/session/uploads/${one.id}` },
      { type: "file", mount_path: deep },
    ]);
    // Its copies are its own.
    await client.beta.files.delete(one.id);
    const read = await turn(session.id, `run: cat /mnt/session/uploads/${one.id}\nread: ${deep}`);
    expect(read).toContain("first text");
    expect(read).toContain("second text");
    const tries = `run: echo x >>${deep}; rm ${deep}; touch /mnt/session/uploads/new; ls -R /mnt/session/uploads`;
    const tried = await turn(session.id, tries);
    expect(tried.match(/Read-only|[Pp]ermission denied/g)?.length).toBe(3);
    expect(tried).toContain("data.csv");
    const late = await upload("late text\n", "given3.txt");
    const resources = client.beta.sessions.resources;
    const added = await resources.add(session.id, { type: "file", file_id: late.id, mount_path: "/late" });
    expect(await turn(session.id, "run: cat /mnt/session/uploads/late")).toContain("late text");
    expect(await resources.retrieve(added.id, { session_id: session.id })).toEqual(added);
    const listed: string[] = [];
    for await (const resource of resources.list(session.id)) listed.push((resource as { id: string }).id);
    expect(listed).toHaveLength(3);
    expect(await resources.delete(added.id, { session_id: session.id })).toEqual({
      id: added.id,
      type: "session_resource_deleted",
    });
    expect(await turn(session.id, "run: ls -A /mnt/session/uploads")).not.toContain("late");
    await expect(client.beta.files.retrieveMetadata(added.file_id)).rejects.toMatchObject({ status: 404 });
    const copy = (session.resources[0] as { file_id: string }).file_id;
    expect(await (await client.beta.files.download(copy)).text()).toBe("first text\n");
    await client.beta.sessions.delete(session.id);
    await expect(client.beta.files.retrieveMetadata(copy)).rejects.toMatchObject({ status: 404 });
    expect(await (await client.beta.files.download(two.id)).text()).toBe("second text\n");
  });

  it("are refused when they are wrong, and then there is no session", async () => {
    const file = await upload("x", "given.txt");
    const at = (mount_path: string): Resource => ({ type: "file", file_id: file.id, mount_path });
    const count = async () => (await client.beta.sessions.list({ limit: 100 })).data.length;
    const before = await count();
    const wrong: [Resource[], number][] = [
      [[{ type: "file", file_id: "file_none" }], 404],
      [[at("relative")], 400],
      [[at("/a/../b")], 400],
      [[at("/a//b")], 400],
      [[at("/tab\there")], 400],
      [[at(`/${"n".repeat(256)}`)], 400],
      [[at("/same"), at("/same")], 400],
      [[at("/dir"), at("/dir/below")], 400],
      [[at("/a"), at("/mnt/session/uploads/a")], 400],
      [[{ ...at("/a"), wrong: 1 } as never], 400],
    ];
    for (const [resources, status] of wrong)
      await expect(newSession(resources), JSON.stringify(resources)).rejects.toMatchObject({ status });
    expect(await count()).toBe(before);
    const session = await newSession([at("/taken")]);
    const taken = client.beta.sessions.resources.add(session.id, at("/taken"));
    await expect(taken).rejects.toMatchObject({ status: 400 });
  });

  it("are added once for one Idempotency-Key, and another request with it is refused", async () => {
    const { id } = await upload("x", "given.txt");
    const session = await newSession();
    const add = (path: string) =>
      client.beta.sessions.resources.add(
        session.id,
        { type: "file", file_id: id, mount_path: path },
        { headers: { "Idempotency-Key": `add-${session.id}` } },
      );
    const first = await add("/once");
    expect(await add("/once")).toEqual(first);
    await expect(add("/twice")).rejects.toMatchObject({ status: 409 });
    expect((await client.beta.sessions.retrieve(session.id)).resources).toEqual([first]);
  });
});

describe("what a hand leaves in /mnt/session/outputs", () => {
  it("is a file of the session once it rests, byte for byte, and once for each change", async () => {
    const session = await newSession();
    const make = [
      "cd /mnt/session/outputs",
      "mkdir -p charts && printf 'a,b\\n1,2\\n' >charts/table.csv",
      "head -c 20000000 /dev/urandom >large.bin",
      "ln -s /etc/passwd link",
      "sha256sum large.bin",
    ].join("; ");
    const said = await turn(session.id, `run: ${make}`);
    const sha256 = /[0-9a-f]{64}/.exec(said)![0];
    const files = await eventually(async () => {
      const found = await outputsOf(session.id);
      return found.length === 2 ? found : undefined;
    });
    const table = files.find(({ filename }) => filename === "charts/table.csv")!;
    const large = files.find(({ filename }) => filename === "large.bin")!;
    expect(table).toMatchObject({ mime_type: "text/csv", scope: { type: "session", id: session.id } });
    expect(await (await client.beta.files.download(table.id)).text()).toBe("a,b\n1,2\n");
    const hash = createHash("sha256");
    for await (const chunk of (await client.beta.files.download(large.id)).body!) hash.update(chunk);
    expect(hash.digest("hex")).toBe(sha256);
    expect(await eventsOf(session.id, "hand.output_stored")).toMatchObject([
      { path: expect.any(String), file_id: expect.stringMatching(/^file_/) },
      { path: expect.any(String) },
    ]);
    await turn(session.id, "run: echo more >>/mnt/session/outputs/charts/table.csv");
    await eventually(async () => (await outputsOf(session.id)).length === 3);
    // Nothing was changed: nothing is stored again, also by those who look for what was left.
    await turn(session.id, "run: true");
    await turn(session.id, "run: echo last >/mnt/session/outputs/last.txt");
    await eventually(async () =>
      (await outputsOf(session.id)).some(({ filename }) => filename === "last.txt"),
    );
    expect(await outputsOf(session.id)).toHaveLength(4);
    await client.beta.sessions.delete(session.id);
    await expect(client.beta.files.download(table.id)).rejects.toMatchObject({ status: 404 });
  });

  it("is refused with the reason in the log when it cannot be a file", async () => {
    const session = await newSession();
    const hands = platform.client(HandService);
    await turn(
      session.id,
      "run: cd /mnt/session/outputs; truncate -s 600M huge; printf x >\"$(printf 'a\\tb')\"; echo y >ok",
    );
    await eventually(async () => (await outputsOf(session.id)).length === 1);
    const refused = await eventsOf(session.id, "hand.output_refused");
    expect(refused.map(({ detail }) => detail).toSorted()).toEqual([
      expect.stringContaining("has more than 524288000 bytes"),
      expect.stringContaining("control or format characters"),
    ]);
    const { hands: found } = await hands.listHands({ sessionId: session.id });
    const input = JSON.stringify({ file_path: "/mnt/session/outputs/ok" });
    const request = { handId: found[0]!.id, executionId: "read", name: "read", input, reason: "a test" };
    expect(textOfResult((await collectExecution(hands.execute(request))).result!)).toContain("y");
  });
});

it("lists of sessions are read forwards and backwards", async () => {
  const made: string[] = [];
  for (let n = 0; n < 5; n += 1) made.unshift((await newSession()).id);
  const pageAt = async (page?: string) => {
    const { data, next_page, prev_page } = await client.beta.sessions.list({
      limit: 2,
      ...(page && { page }),
    });
    return { ids: data.map(({ id }) => id), next_page, prev_page };
  };
  const first = await pageAt();
  expect(first).toMatchObject({ ids: made.slice(0, 2), prev_page: null });
  const second = await pageAt(first.next_page!);
  expect(second.ids).toEqual(made.slice(2, 4));
  const third = await pageAt(second.next_page!);
  expect(third.ids[0]).toBe(made[4]);
  const back = await pageAt(third.prev_page!);
  expect(back.ids).toEqual(second.ids);
  expect((await pageAt(back.next_page!)).ids).toEqual(third.ids);
  expect(await pageAt(back.prev_page!)).toMatchObject({ ids: first.ids, prev_page: null });
  await expect(client.beta.sessions.list({ page: second.prev_page!, order: "asc" })).rejects.toMatchObject({
    status: 400,
  });
});

describe("skills", () => {
  const manifest = (name: string, description = "Greets people.") =>
    `---\nname: ${name}\ndescription: >-\n  ${description}\n---\n# How\nRun run.sh.\n`;
  const part = (path: string, text: string | Buffer) => toFile(Buffer.from(text), path);
  const stored = async () => (await platform.client(AdminService).getWorkspaceUsage({})).storedBytes;

  it("are made once by uploads that are repeated with their key, versions too", async () => {
    const { skills } = client.beta;
    const before = await stored();
    const files = async (word: string) => [await part("once/SKILL.md", manifest("once", word))];
    const withKey = (key: string) => ({ headers: { "Idempotency-Key": key } });
    const create = async (word: string) => skills.create({ files: await files(word) }, withKey("one"));
    const skill = await create("First.");
    const kept = await stored();
    expect(await create("First.")).toEqual(skill);
    await expect(create("Other.")).rejects.toMatchObject({ status: 409 });
    const add = async () =>
      skills.versions.create(skill.id, { files: await files("Second.") }, withKey("two"));
    const version = await add();
    expect(await add()).toEqual(version);
    expect((await skills.retrieve(skill.id)).latest_version_id).toBe(version.id);
    expect(kept).toBeGreaterThan(before);
    await skills.versions.delete(version.id, { skill_id: skill.id });
    expect(await stored()).toBe(kept);
    await skills.delete(skill.id);
    expect(await stored()).toBe(before);
  });

  it("are uploaded as files or as an archive, kept in versions, and in the hands of agents that have them", async () => {
    const skills = client.beta.skills;
    const before = await stored();
    const script = "#!/bin/sh\necho greetings from $(basename $PWD)\n";
    const skill = await skills.create({
      display_name: "Greeter",
      files: [await part("greet/SKILL.md", manifest("greet")), await part("greet/run.sh", script)],
    });
    expect(skill).toMatchObject({ type: "skill", display_name: "Greeter", source: { type: "custom" } });
    const zip = new ZipFile();
    zip.addBuffer(Buffer.from(manifest("greet", "Greets all.")), "greet/SKILL.md");
    zip.addBuffer(Buffer.from(script), "greet/run.sh", { mode: 0o100755 });
    zip.end();
    const archive = await toFile(await buffer(zip.outputStream), "greet.zip");
    const second = await skills.versions.create(skill.id, { files: [archive] });
    expect(second).toMatchObject({ type: "skill_version", name: "greet", description: "Greets all." });
    expect(await skills.versions.retrieve("latest", { skill_id: skill.id })).toEqual(second);
    const listed: string[] = [];
    for await (const { id } of skills.versions.list(skill.id, { limit: 1 })) listed.push(id);
    expect(listed).toEqual([second.id, skill.latest_version_id]);
    const content = await skills.versions.download(second.id, { skill_id: skill.id });
    const bytes = Buffer.from(await content.arrayBuffer());
    expect(bytes.subarray(0, 4).toString("latin1")).toBe("PK\u0003\u0004");
    const tools = [{ type: "agent_toolset_20260401" as const }];
    const wanted = { type: "custom" as const, skill_id: skill.id };
    const greeter = await client.beta.agents.create({ name: "g", model: "demo", tools, skills: [wanted] });
    expect(greeter.skills).toEqual([{ ...wanted, version: "latest" }]);
    const session = await client.beta.sessions.create({ agent: greeter.id, environment_id: environment });
    expect(session.agent.skills).toEqual([{ ...wanted, version: second.id }]);
    const said = await turn(session.id, "run: cd skills/greet && ./run.sh\nread: skills/greet/SKILL.md");
    expect(said).toContain("greetings from greet");
    expect(said).toContain("Greets all.");
    const none = client.beta.agents.create({ name: "n", model: "demo", skills: [wanted] });
    await expect(none).rejects.toMatchObject({ status: 400 });
    expect(await skills.versions.delete(second.id, { skill_id: skill.id })).toMatchObject({
      type: "skill_version_deleted",
    });
    expect((await skills.retrieve(skill.id)).latest_version_id).toBe(listed[1]);
    expect(await skills.delete(skill.id)).toEqual({ id: skill.id, type: "skill_deleted" });
    await expect(skills.retrieve(skill.id)).rejects.toMatchObject({ status: 404 });
    expect(await stored()).toBe(before);
    await client.beta.sessions.delete(session.id);
  });

  it("that are none are refused with the reason, and nothing of them is stored", async () => {
    const before = await stored();
    const wrong: [string, string][][] = [
      [["a/other.md", "x"]],
      [["SKILL.md", manifest("a")]],
      [
        ["a/SKILL.md", manifest("a")],
        ["b/x", "x"],
      ],
      [["a/SKILL.md", manifest("b")]],
      [["A/SKILL.md", manifest("A")]],
      [["claude-a/SKILL.md", manifest("claude-a")]],
      [["a/SKILL.md", "# no head"]],
      [["a/SKILL.md", "---\nname: [a\n---\n"]],
      [["a/SKILL.md", "---\nname: a\n---\n"]],
      [["a/SKILL.md", manifest("a", "x".repeat(1025))]],
      [
        ["a/SKILL.md", manifest("a")],
        ["a/../../up", "x"],
      ],
      [
        ["a/SKILL.md", manifest("a")],
        ["a/x", "x"],
        ["a/x", "y"],
      ],
      [["a.zip", "no archive"]],
    ];
    for (const files of wrong) {
      const parts = await Promise.all(files.map(([path, text]) => part(path, text)));
      const created = client.beta.skills.create({ files: parts });
      await expect(created, JSON.stringify(files)).rejects.toMatchObject({ status: 400 });
    }
    const large = await part("a/large", Buffer.alloc(31 * 1024 * 1024));
    const tooLarge = client.beta.skills.create({ files: [await part("a/SKILL.md", manifest("a")), large] });
    await expect(tooLarge).rejects.toMatchObject({ status: 413 });
    expect((await client.beta.skills.list()).data).toEqual([]);
    expect(await stored()).toBe(before);
  });
});
