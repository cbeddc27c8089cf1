/** What is asked for again because its answer was lost: by the official client by itself, and with a key. */
import Anthropic, { toFile } from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { TOOLSET } from "../kit/http-rig.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { startServer, type TestServer } from "../kit/server.ts";
import { startTcpRelay } from "../kit/tcp-relay.ts";

let database: TestDatabase;
let server: TestServer;
let beta: Anthropic["beta"];

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
  ({ beta } = new Anthropic({ baseURL: server.url, apiKey: server.adminKey, maxRetries: 0 }));
});
afterAll(async () => {
  await server?.stop();
  await database?.drop();
});

const manifest = "---\nname: greet\ndescription: Greets.\n---\nSay hello.\n";
const skillFiles = async () => [await toFile(Buffer.from(manifest), "greet/SKILL.md")];
const say = (text: string) => ({ type: "user.message" as const, content: [{ type: "text" as const, text }] });
const all = async <T>(pages: AsyncIterable<T>) => {
  const items: T[] = [];
  for await (const item of pages) items.push(item);
  return items;
};

/** By a client that hears nothing of the answer to its first request: the connection breaks as the answer begins. */
async function withFirstAnswerLost<T>(run: (retrying: Anthropic["beta"]) => Promise<T>): Promise<T> {
  let lost = 0;
  const relay = await startTcpRelay(server.port, (bytes) => {
    if (lost > 0 || bytes.toString("latin1", 0, 9) !== "HTTP/1.1 ") return;
    lost += 1;
    relay.cut();
  });
  try {
    const baseURL = `http://127.0.0.1:${relay.port}`;
    const made = await run(new Anthropic({ baseURL, apiKey: server.adminKey, maxRetries: 2 }).beta);
    expect(lost).toBe(1);
    return made;
  } finally {
    await relay.close();
  }
}

describe("what the official client sends again by itself, because the answer was lost", () => {
  it("is made once: files, skills, their versions, and what is as large as it may be", async () => {
    const skill = await beta.skills.create({ files: await skillFiles() });
    const agent = await beta.agents.create({ name: "told", model: "m" });
    const environment = await beta.environments.create({ name: "told" });
    const session = await beta.sessions.create({ agent: agent.id, environment_id: environment.id });
    const long = "long ".repeat(10_000);
    const [file, made, version, { data: sent }] = await Promise.all([
      withFirstAnswerLost(async ({ files }) =>
        files.upload({ file: await toFile(Buffer.from("once"), "once.txt"), expires_in_seconds: 3600 }),
      ),
      withFirstAnswerLost(async ({ skills }) =>
        skills.create({ files: await skillFiles(), display_name: "once" }),
      ),
      withFirstAnswerLost(async ({ skills }) =>
        skills.versions.create(skill.id, { files: await skillFiles() }),
      ),
      withFirstAnswerLost(({ sessions }) => sessions.events.send(session.id, { events: [say(long)] })),
    ]);
    expect((await all(beta.files.list())).map(({ id }) => id)).toEqual([file.id]);
    expect((await all(beta.skills.list())).map(({ id }) => id)).toEqual([made.id, skill.id]);
    const versions = (await all(beta.skills.versions.list(skill.id))).map(({ id }) => id);
    expect(versions).toEqual([version.id, skill.latest_version_id]);
    const said = await all(beta.sessions.events.list(session.id, { types: ["user.message"] }));
    expect(said.map(({ id }) => id)).toEqual(sent?.map(({ id }) => id));
  });
});

describe("a creation that is repeated with its Idempotency-Key", () => {
  it("is answered also when what it named is gone; another one that names it is refused", async () => {
    const { id: agent } = await beta.agents.create({ name: "gone", model: "m" });
    const { id: environment_id } = await beta.environments.create({ name: "gone" });
    const { id: skill_id } = await beta.skills.create({ files: await skillFiles() });
    const { id: file_id } = await beta.files.upload({ file: await toFile(Buffer.from("x"), "x.txt") });
    const { id: store } = await beta.memoryStores.create({ name: "gone" });
    const { id: session } = await beta.sessions.create({ agent, environment_id });
    const made = { agent, environment_id, initial_events: [say("work")] };
    const { id: deployment } = await beta.deployments.create({ name: "run", ...made });
    const tools = [TOOLSET];
    const skills = [{ type: "custom" as const, skill_id }];
    const ask: Record<string, (options: Anthropic.RequestOptions) => Promise<{ id: string }>> = {
      agent: (options) => beta.agents.create({ name: "skilled", model: "m", skills, tools }, options),
      session: (options) => beta.sessions.create({ agent, environment_id }, options),
      deployment: (options) => beta.deployments.create({ name: "gone", ...made }, options),
      run: (options) => beta.deployments.run(deployment, {}, options),
      resource: (options) => beta.sessions.resources.add(session, { type: "file", file_id }, options),
      memory: (options) => beta.memoryStores.memories.create(store, { path: "/a", content: "a" }, options),
    };
    /** Ids of what was made, or the status of the refusal. */
    const askAll = async (key: string) => {
      const answers: Record<string, string | number> = {};
      for (const [what, request] of Object.entries(ask)) {
        const headers = { "Idempotency-Key": `${what}-${key}` };
        const answer = await request({ headers }).catch(({ status }: { status: number }) => status);
        answers[what] = typeof answer === "number" ? answer : answer.id;
      }
      return answers;
    };
    const first = await askAll("first");
    for (const id of Object.values(first)) expect(id).toEqual(expect.any(String));
    await beta.skills.delete(skill_id);
    await beta.files.delete(file_id);
    const room = (limits: string) => database.pool().query("update workspaces set limits = $1", [limits]);
    const upload = (key: string, text = "all that there is room for") =>
      toFile(Buffer.from(text), "y.txt").then((file) =>
        beta.files.upload({ file }, { headers: { "Idempotency-Key": key } }),
      );
    const stored = await upload("stored");
    await room('{"blobBytes":"1"}');
    expect(await upload("stored")).toEqual(stored);
    await expect(upload("more", "more")).rejects.toMatchObject({ status: 400 });
    await room("{}");
    await beta.memoryStores.archive(store);
    await beta.deployments.archive(deployment);
    await beta.agents.archive(agent);
    expect(await askAll("first")).toEqual(first);
    await beta.sessions.archive(session);
    expect(await askAll("first")).toEqual(first);
    expect(await askAll("other")).toEqual({
      agent: 404,
      session: 400,
      deployment: 400,
      run: 400,
      resource: 404,
      memory: 400,
    });
  });
});
