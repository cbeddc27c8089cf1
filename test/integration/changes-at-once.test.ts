/** Many changes of one thing at the same time, by the official client: all are made, one after the other, and none is lost. */
import Anthropic from "@anthropic-ai/sdk";
import { afterAll, beforeAll, expect, it } from "vitest";
import { createTestDatabase, type TestDatabase } from "../kit/postgres.ts";
import { newSealingKeys, startProxy, type TestProxy } from "../kit/proxy-rig.ts";
import { startServer, type TestServer } from "../kit/server.ts";

const AT_ONCE = 12;

let database: TestDatabase;
let server: TestServer;
let proxy: TestProxy;
let client: Anthropic;
let agent: string;
let environment_id: string;

beforeAll(async () => {
  database = await createTestDatabase();
  server = await startServer({ databaseUrl: database.url });
  const key = await server.localKey("proxy");
  proxy = await startProxy({ url: server.url, key, keys: await newSealingKeys() });
  client = new Anthropic({ baseURL: server.url, apiKey: server.adminKey, maxRetries: 0 });
  agent = (await client.beta.agents.create({ name: "a", model: "claude-test" })).id;
  environment_id = (await client.beta.environments.create({ name: "here", config: { type: "cloud" } })).id;
});
afterAll(async () => {
  await proxy?.stop();
  await server?.stop();
  await database?.drop();
});

const numbers = Array.from({ length: AT_ONCE }, (_, at) => at);
const atOnce = <T>(change: (at: number) => PromiseLike<T>) => Promise.all(numbers.map((at) => change(at)));
const pairs = Object.fromEntries(numbers.map((at) => [`key${at}`, `${at}`]));
const pair = (at: number) => ({ [`key${at}`]: `${at}` });

const newSession = (resources: Anthropic.Beta.SessionCreateParams["resources"] = []) =>
  client.beta.sessions.create({ agent, environment_id, resources });

async function newDeployment(): Promise<string> {
  const made = await client.beta.deployments.create({
    name: "daily",
    agent,
    environment_id,
    initial_events: [{ type: "user.message", content: [{ type: "text", text: "Go." }] }],
  });
  return made.id;
}

it("of a deployment, by several servers, with runs in between", async () => {
  const second = await startServer({ databaseUrl: database.url });
  try {
    const other = new Anthropic({ baseURL: second.url, apiKey: server.adminKey, maxRetries: 0 });
    const id = await newDeployment();
    const [runs] = await Promise.all([
      atOnce(() => client.beta.deployments.run(id)),
      atOnce((at) =>
        (at % 2 === 0 ? client : other).beta.deployments.update(id, { metadata: pair(at), name: `n${at}` }),
      ),
    ]);
    expect(runs.map(({ error }) => error)).toEqual(numbers.map(() => null));
    expect((await client.beta.deployments.retrieve(id)).metadata).toEqual(pairs);
  } finally {
    await second.stop();
  }
});

it("of an agent, whose versions are as many", async () => {
  const { id } = await client.beta.agents.create({ name: "changed", model: "claude-test" });
  await atOnce((at) => client.beta.agents.update(id, { metadata: pair(at) }));
  expect(await client.beta.agents.retrieve(id)).toMatchObject({ version: AT_ONCE + 1, metadata: pairs });
});

it("of an environment, which has what each has said", async () => {
  const { id } = await client.beta.environments.create({ name: "changed", config: { type: "cloud" } });
  const changes = [
    { name: "renamed" },
    { description: "said" },
    { metadata: { a: "1" } },
    { metadata: { b: "2" } },
  ];
  await Promise.all(changes.map((change) => client.beta.environments.update(id, change)));
  const after = await client.beta.environments.retrieve(id);
  expect(after).toMatchObject({ name: "renamed", description: "said", metadata: { a: "1", b: "2" } });
});

it("of a session's tools and title", async () => {
  const { id } = await newSession();
  const custom = (name: string) => ({
    type: "custom" as const,
    name,
    description: "d",
    input_schema: { type: "object" as const },
  });
  await atOnce((at) =>
    client.beta.sessions.update(id, { agent: { tools: [custom(`tool${at}`)] }, metadata: pair(at) }),
  );
  const after = await client.beta.sessions.retrieve(id);
  expect(after.metadata).toEqual(pairs);
  expect(after.agent.tools).toHaveLength(1);
});

it("of the token of a session's repository that had none", async () => {
  const session = await newSession([{ type: "github_repository", url: "https://git.example/o/r" }]);
  const { id } = session.resources[0] as { id: string };
  await atOnce((at) =>
    client.beta.sessions.resources.update(id, { session_id: session.id, authorization_token: `token${at}` }),
  );
  const { rows } = await database
    .pool()
    .query("select 1 from credentials c join vaults v using (vault_id) where v.session_id = $1", [
      session.id,
    ]);
  expect(rows).toHaveLength(1);
});

it("of a vault, a credential's use, a memory store and a webhook endpoint", async () => {
  const vault = await client.beta.vaults.create({ display_name: "v" });
  const auth = { type: "environment_variable" as const, secret_name: "KEY", secret_value: "canary" };
  const networking = { type: "limited" as const, allowed_hosts: ["a.example"] };
  const credential = await client.beta.vaults.credentials.create(vault.id, { auth: { ...auth, networking } });
  const store = await client.beta.memoryStores.create({ name: "notes" });
  await atOnce((at) => client.beta.vaults.update(vault.id, { metadata: pair(at) }));
  await atOnce((at) => client.beta.memoryStores.update(store.id, { metadata: pair(at) }));
  expect((await client.beta.vaults.retrieve(vault.id)).metadata).toEqual(pairs);
  expect((await client.beta.memoryStores.retrieve(store.id)).metadata).toEqual(pairs);
  await atOnce((at) =>
    client.beta.vaults.credentials.update(credential.id, {
      vault_id: vault.id,
      auth: {
        type: "environment_variable",
        networking: { type: "limited", allowed_hosts: [`h${at}.example`] },
      },
    }),
  );
  const endpoint = { url: "https://hooks.example/", enabled_events: ["*"] };
  const { id } = (await client.post("/v1/webhook_endpoints", { body: endpoint })) as { id: string };
  const renamed = await atOnce((at) =>
    client.post(`/v1/webhook_endpoints/${id}`, { body: { name: `n${at}` } }),
  );
  expect(renamed).toHaveLength(AT_ONCE);
});
