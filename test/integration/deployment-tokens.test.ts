/** What deployments name of repositories' tokens and of files: how it is kept, who sees it, and when it ends. */
import Anthropic, { toFile } from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { DeploymentService } from "../../proto/gen/tendon/v1/deployment_service_pb.js";
import { SessionService } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { VaultService } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { createCredentialStore } from "../../server/store/postgres/credentials.ts";
import { createDeploymentStore } from "../../server/store/postgres/deployments.ts";
import { eventually } from "../kit/eventually.ts";
import { failure } from "../kit/failure.ts";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { newSealingKeys, startProxy, type TestProxy } from "../kit/proxy-rig.ts";
import { startServer, type TestServer } from "../kit/server.ts";
import { SetClock } from "../kit/set-clock.ts";

const clock = new SetClock("2026-10-23T06:30:00Z");
const URL_ONE = "https://git.example/o/one";
const URL_TWO = "https://git.example/o/two";

let database: TestDatabase;
let server: TestServer;
let proxy: TestProxy;
let client: Anthropic;
let agent: string;
let environment_id: string;
/** Whatever the client was told. */
const answers: string[] = [];

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url, clock });
  client = new Anthropic({ baseURL: server.url, apiKey: server.adminKey, maxRetries: 0, fetch: heard });
  agent = (await client.beta.agents.create({ name: "a", model: "claude-test" })).id;
  environment_id = (await client.beta.environments.create({ name: "here", config: { type: "cloud" } })).id;
});
afterAll(async () => {
  await proxy?.stop();
  await server?.stop();
  await database?.drop();
});

async function heard(url: string | URL | Request, init?: RequestInit): Promise<Response> {
  const response = await fetch(url, init);
  const body = await response.text();
  answers.push(body);
  return new Response(body, response);
}

const message = { type: "user.message" as const, content: [{ type: "text" as const, text: "Go." }] };
const repository = (url: string, authorization_token?: string) => ({
  type: "github_repository" as const,
  url,
  ...(authorization_token !== undefined && { authorization_token }),
});

type Params = Anthropic.Beta.DeploymentCreateParams;

const newDeployment = (change: Partial<Params> = {}) =>
  client.beta.deployments.create({
    name: "daily",
    agent,
    environment_id,
    initial_events: [message],
    ...change,
  });

/** Of the credential that git would be given for it, for a session. */
async function opened(sessionId: string, url: string) {
  const opening = { sessionId, destinations: [`git ${url}`], audit: { actor: "test", detail: {} } };
  const found = await createCredentialStore(database.pool()).open(opening);
  return found && { id: found.credential.id, vaultId: found.credential.vaultId };
}

async function textOfDatabase(): Promise<string> {
  const pool = database.pool();
  const { rows: tables } = await pool.query<{ name: string }>(
    "select tablename as name from pg_tables where schemaname = 'public'",
  );
  const texts = await Promise.all(
    tables.map(async ({ name }) => {
      const { rows } = await pool.query<{ text: string }>(`select t::text as text from "${name}" t`);
      return rows.map(({ text }) => text).join("\n");
    }),
  );
  return texts.join("\n");
}

describe("a token of a deployment's repository", () => {
  it("needs a proxy that can be sealed to, and then is in no answer, no row and no audit entry (R22)", async () => {
    const resources = [repository(URL_ONE, "first-canary")];
    const before = newDeployment({ resources });
    await expect(before).rejects.toMatchObject({
      status: 400,
      error: { error: { details: { reason: "NOT_CONFIGURED" } } },
    });
    const key = await server.localKey("proxy");
    proxy = await startProxy({ url: server.url, key, keys: await newSealingKeys(), webhooksTo: "anywhere" });
    const made = await newDeployment({ resources });
    expect(made.resources).toEqual([
      { type: "github_repository", url: URL_ONE, checkout: null, mount_path: null },
    ]);
    const deployments = server.client(DeploymentService);
    const git = { url: URL_TWO, authorizationToken: "second-canary", userName: "bot" };
    const { deployment } = await deployments.updateDeployment({
      deploymentId: made.id,
      spec: { resources: [{ kind: { case: "gitRepository", value: git } }] },
      updateMask: { paths: ["resources"] },
    });
    expect(deployment!.spec!.resources[0]!.kind.value).toMatchObject({
      url: URL_TWO,
      authorizationToken: "",
      userName: "",
    });
    await client.beta.deployments.list({});
    await client.beta.deployments.run(made.id);
    const { entries } = await server.client(AdminService).listAuditEntries({ pageSize: 100 });
    const kept = `${answers.join("\n")}\n${await textOfDatabase()}\n${entries.map(({ detail }) => detail)}`;
    expect(kept).toContain(made.id);
    for (const text of ["first-canary", "second-canary"])
      for (const form of [text, Buffer.from(text).toString("base64").replace(/=+$/, "")])
        expect([form, kept.includes(form)]).toEqual([form, false]);
  });

  it("is used by all of its sessions, from its newest word on, and by no other and no fork", async () => {
    const made = await newDeployment({ resources: [repository(URL_ONE, "one")] });
    const first = (await client.beta.deployments.run(made.id)).session_id!;
    const second = (await client.beta.deployments.run(made.id)).session_id!;
    const before = await opened(first, URL_ONE);
    expect(before).toBeDefined();
    expect(await opened(second, URL_ONE)).toEqual(before);
    expect((await client.beta.sessions.retrieve(first)).vault_ids).toEqual([]);
    const plain = await client.beta.sessions.create({ agent, environment_id });
    expect(await opened(plain.id, URL_ONE)).toBeUndefined();
    const fork = await server.client(SessionService).forkSession({ sessionId: first });
    expect(await opened(fork.session!.id, URL_ONE)).toBeUndefined();
    await client.beta.deployments.update(made.id, { name: "renamed" });
    expect(await opened(first, URL_ONE)).toEqual(before);
    await client.beta.deployments.update(made.id, { resources: [repository(URL_ONE, "newer")] });
    const after = await opened(first, URL_ONE);
    expect(after).toMatchObject({ vaultId: before!.vaultId });
    expect(after!.id).not.toBe(before!.id);
    // Its own goes before its deployment's.
    const [resource] = (await client.beta.sessions.retrieve(second)).resources as { id: string }[];
    await client.beta.sessions.resources.update(resource!.id, {
      session_id: second,
      authorization_token: "its-own",
    });
    expect((await opened(second, URL_ONE))!.vaultId).not.toBe(before!.vaultId);
    // Resources are replaced with their tokens.
    const updated = await client.beta.deployments.update(made.id, { resources: [repository(URL_ONE)] });
    expect(updated.updated_at > made.updated_at).toBe(true);
    expect(await opened(first, URL_ONE)).toBeUndefined();
    expect(await client.beta.deployments.update(made.id, { resources: [repository(URL_ONE)] })).toEqual(
      updated,
    );
  });

  it("is in a vault that nobody sees and that webhooks do not tell of", async () => {
    const hook = { url: "https://hooks.example/", enabled_events: ["*"] };
    const { id } = (await client.post("/v1/webhook_endpoints", { body: hook })) as { id: string };
    const made = await newDeployment({ resources: [repository(URL_ONE, "one")] });
    const session = await client.beta.sessions.create({
      agent,
      environment_id,
      resources: [repository(URL_TWO, "two")],
    });
    const run = (await client.beta.deployments.run(made.id)).session_id!;
    const { vaultId, id: credentialId } = (await opened(run, URL_ONE))!;
    const vaults = server.client(VaultService);
    for (const call of [
      () => vaults.getVault({ vaultId }),
      () => vaults.archiveVault({ vaultId }),
      () => vaults.listCredentials({ vaultId }),
      () => vaults.getCredential({ credentialId }),
      () => vaults.deleteCredential({ credentialId }),
    ])
      expect((await failure(call())).reason).toBe("NOT_FOUND");
    await expect(newDeployment({ vault_ids: [vaultId] })).rejects.toMatchObject({ status: 404 });
    await client.beta.sessions.archive(session.id);
    await client.beta.sessions.delete(session.id);
    const { rows } = await database
      .pool()
      .query<{ type: string }>("select distinct type from webhook_events where type like 'vault%'");
    expect(rows).toEqual([]);
    await client.delete(`/v1/webhook_endpoints/${id}`);
  });

  it("ends when the deployment is archived and the last of its sessions has ended", async () => {
    const made = await newDeployment({ resources: [repository(URL_ONE, "one")] });
    const unused = await newDeployment({ resources: [repository(URL_ONE, "one")] });
    const session = (await client.beta.deployments.run(made.id)).session_id!;
    const sealed = async (deploymentId: string) => {
      const { rows } = await database
        .pool()
        .query("select 1 from credentials c join vaults v using (vault_id) where v.deployment_id = $1", [
          deploymentId,
        ]);
      return rows.length;
    };
    for (const { id } of [made, unused]) await client.beta.deployments.archive(id);
    expect([await sealed(made.id), await sealed(unused.id)]).toEqual([1, 0]);
    const store = createDeploymentStore(database.pool());
    expect(await store.eraseTokens(100)).toBe(0);
    expect(await opened(session, URL_ONE)).toBeDefined();
    await client.beta.sessions.archive(session);
    // The server looks for them too, now and then.
    await store.eraseTokens(100);
    await eventually(async () => (await sealed(made.id)) === 0);
    const { entries } = await server.client(AdminService).listAuditEntries({ pageSize: 100 });
    expect(entries.map(({ actor }) => actor)).toContain(`deployment ${made.id}`);
  });

  it("is refused with its field where it cannot be sent, and a repeat of the request makes nothing new", async () => {
    for (const [wrong, field] of [
      [repository(URL_ONE, "two words"), "resources[0].authorization_token"],
      [repository("http://git.example/o/r", "t"), "resources[0].url"],
      [{ ...repository(URL_ONE), tendon: { user_name: "bot" } }, "resources[0].user_name"],
    ] as const)
      await expect(newDeployment({ resources: [wrong as never] })).rejects.toMatchObject({
        status: 400,
        error: { error: { details: { field } } },
      });
    const once = { headers: { "Idempotency-Key": "the-same" } };
    const body = { name: "n", agent, environment_id, initial_events: [message] };
    const create = (token: string) =>
      client.beta.deployments.create({ ...body, resources: [repository(URL_ONE, token)] }, once);
    const made = await create("one");
    expect((await create("one")).id).toBe(made.id);
  });
});

describe("a rubric that is a file", () => {
  const outcome = (file_id: string) => ({
    type: "user.define_outcome" as const,
    description: "a report",
    rubric: { type: "file" as const, file_id },
  });
  const upload = async (bytes: Buffer) =>
    (await client.beta.files.upload({ file: await toFile(bytes, "rubric.txt") })).id;

  it("is read when the deployment is made or changed: what is no text, too long or not there is refused", async () => {
    const [good, binary, long] = await Promise.all([
      upload(Buffer.from("It is short.")),
      upload(Buffer.from([0xff, 0xfe, 0x00])),
      upload(Buffer.alloc(1_000_000, "x")),
    ]);
    const made = await newDeployment({ initial_events: [outcome(good)] });
    for (const [file, status] of [
      [binary, 400],
      [long, 400],
      ["file_nobody", 404],
    ] as const)
      for (const call of [
        () => newDeployment({ initial_events: [outcome(file)] }),
        () => client.beta.deployments.update(made.id, { initial_events: [message, outcome(file)] }),
      ]) {
        const details = { field: expect.stringMatching(/^initial_events\[[01]\]\.rubric\.file_id$/) };
        await expect(call()).rejects.toMatchObject({ status, error: { error: { details } } });
      }
    expect((await client.beta.deployments.retrieve(made.id)).initial_events).toHaveLength(1);
  });

  it("and is gone by the time of a run fails that run with the reason, and pauses the schedule", async () => {
    const rubric = await upload(Buffer.from("It is short."));
    const schedule = { type: "cron" as const, expression: "0 9 * * 1-5", timezone: "Europe/Berlin" };
    const { id } = await newDeployment({ initial_events: [outcome(rubric)], schedule });
    const run = await client.beta.deployments.run(id);
    expect(run.error).toBeNull();
    await client.beta.files.delete(rubric);
    const failed = await client.beta.deployments.run(id);
    expect(failed).toMatchObject({
      session_id: null,
      error: { type: "file_not_found_error", message: expect.stringContaining(rubric) },
    });
    clock.atMs = Date.parse("2026-10-23T07:09:01Z");
    const paused = await eventually(async () => {
      const found = await client.beta.deployments.retrieve(id);
      return found.status === "paused" ? found : undefined;
    });
    expect(paused.paused_reason).toEqual({ type: "error", error: { type: "file_not_found_error" } });
  });
});
