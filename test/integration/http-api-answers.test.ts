/** Every resource of the HTTP API, answered to both versions of the official client, has the fields that they declare. */
import Anthropic, { toFile } from "@anthropic-ai/sdk";
import { afterAll, beforeAll, expect, it } from "vitest";
import { type Platform, startPlatform } from "../kit/platform.ts";
import { RecordedAnswers } from "../kit/recorded-answers.ts";

const CLIENTS = ["@anthropic-ai/sdk", "anthropic-sdk-0-135"];
const URL = "https://127.0.0.1:1/mcp";

let platform: Platform;
let beta: Anthropic["beta"];
const answers = new RecordedAnswers();

beforeAll(async () => {
  platform = await startPlatform({ programs: ["mcp-proxy"] });
  beta = answers.recording(
    new Anthropic({ baseURL: platform.url, apiKey: platform.adminKey, maxRetries: 0 }),
  );
});

afterAll(() => platform?.stop());

const say = { type: "user.message" as const, content: [{ type: "text" as const, text: "hello" }] };

async function definitions() {
  const manifest = "---\nname: greet\ndescription: Greets.\n---\n";
  const skill = await beta.skills.create({ files: [await toFile(Buffer.from(manifest), "greet/SKILL.md")] });
  const next = [await toFile(Buffer.from(`${manifest}More.`), "greet/SKILL.md")];
  const version = await beta.skills.versions.create(skill.id, { files: next });
  await beta.skills.retrieve(skill.id);
  await beta.skills.list();
  await beta.skills.versions.retrieve("latest", { skill_id: skill.id });
  await beta.skills.versions.list(skill.id);
  const sources = { user_input: "none" as const };
  const member = await beta.agents.create({ name: "member", model: "claude-test" });
  const agent = await beta.agents.create({
    name: "lead",
    model: { id: "claude-test", effort: "high" },
    description: "d",
    system: "s",
    metadata: { a: "b" },
    skills: [{ type: "custom", skill_id: skill.id }],
    mcp_servers: [{ type: "url", name: "s", url: "https://example.com/mcp" }],
    tools: [
      {
        type: "agent_toolset_20260401",
        configs: [
          { name: "web_search", user_location: { type: "approximate", country: "DE" } },
          {
            name: "web_fetch",
            allowed_domains: ["example.com"],
            max_content_tokens: 100,
            url_sources: sources,
          },
        ],
      },
      { type: "mcp_toolset", mcp_server_name: "s", configs: [{ name: "t", enabled: false }] },
      { type: "custom", name: "ask", description: "Asks.", input_schema: { type: "object" } },
    ],
    multiagent: { type: "coordinator", agents: [member.id, { type: "self" }] },
  });
  await beta.agents.retrieve(agent.id);
  await beta.agents.update(agent.id, { description: "e" });
  await beta.agents.list();
  await beta.agents.versions.list(agent.id);
  const workers = await beta.environments.create({ name: "workers", config: { type: "self_hosted" } });
  await beta.environments.delete(workers.id);
  const environment = await beta.environments.create({
    name: "cloud",
    config: { type: "cloud", networking: { type: "limited", allowed_hosts: ["example.com"] } },
  });
  await beta.environments.retrieve(environment.id);
  await beta.environments.update(environment.id, { description: "d" });
  await beta.environments.list();
  return { agent, environment, member, skill, version };
}

async function stores() {
  const { memoryStores } = beta;
  const store = await memoryStores.create({ name: "notes" });
  await memoryStores.retrieve(store.id);
  await memoryStores.update(store.id, { description: "d" });
  await memoryStores.list();
  const of = { memory_store_id: store.id };
  const memory = await memoryStores.memories.create(store.id, { path: "/a/b.md", content: "c" });
  await memoryStores.memories.retrieve(memory.id, of);
  await memoryStores.memories.update(memory.id, { ...of, content: "d" });
  await memoryStores.memories.list(store.id);
  await memoryStores.memories.list(store.id, { depth: 1 });
  const { data: versions } = await memoryStores.memoryVersions.list(store.id);
  await memoryStores.memoryVersions.retrieve(versions[0]!.id, of);
  await memoryStores.memoryVersions.redact(versions[1]!.id, of);
  await memoryStores.memories.delete(memory.id, of);
  return store;
}

async function vaults() {
  const vault = await beta.vaults.create({ display_name: "v" });
  const of = { vault_id: vault.id };
  await beta.vaults.retrieve(vault.id);
  await beta.vaults.update(vault.id, { metadata: { a: "b" } });
  await beta.vaults.list();
  const { credentials } = beta.vaults;
  const refresh = {
    client_id: "c",
    refresh_token: "r",
    token_endpoint: "https://127.0.0.1:1/token",
    token_endpoint_auth: { type: "client_secret_post" as const, client_secret: "s" },
  };
  const oauth = await credentials.create(vault.id, {
    auth: {
      type: "mcp_oauth",
      access_token: "t",
      mcp_server_url: URL,
      expires_at: "2099-01-01T00:00:00Z",
      refresh,
    },
  });
  await credentials.mcpOAuthValidate(oauth.id, of);
  await credentials.create(vault.id, {
    auth: { type: "static_bearer", token: "t", mcp_server_url: "https://example.com/mcp" },
  });
  const networking = { type: "limited" as const, allowed_hosts: ["example.com"] };
  const secret = { secret_name: "A", secret_value: "v", networking };
  const variable = await credentials.create(vault.id, { auth: { type: "environment_variable", ...secret } });
  expect(variable.auth).toMatchObject({ injection_location: { header: true, body: true } });
  await credentials.retrieve(oauth.id, of);
  await credentials.update(oauth.id, { ...of, display_name: "d" });
  await credentials.list(vault.id);
  await credentials.archive(oauth.id, of);
  await credentials.delete(oauth.id, of);
  return vault;
}

it("what is answered has every field that the client's types promise, and of their types", async () => {
  const { agent, environment, member, skill, version } = await definitions();
  const [store, vault] = [await stores(), await vaults()];
  const file = await beta.files.upload({ file: await toFile(Buffer.from("x"), "x.txt") });
  await beta.files.retrieveMetadata(file.id);
  await beta.files.list();
  const given = {
    environment_id: environment.id,
    vault_ids: [vault.id],
    resources: [
      { type: "memory_store" as const, memory_store_id: store.id },
      { type: "file" as const, file_id: file.id },
      { type: "github_repository" as const, url: "https://example.com/one/two" },
    ],
    budget: { type: "limit" as const, max_list_cost: { amount: "100", currency: "USD" as const } },
  };
  const { sessions } = beta;
  const session = await sessions.create({ agent: agent.id, title: "t", ...given });
  const of = { session_id: session.id };
  await sessions.retrieve(session.id);
  await sessions.update(session.id, { title: "u" });
  await sessions.list();
  const added = await sessions.resources.add(session.id, {
    type: "file",
    file_id: file.id,
    mount_path: "/b",
  });
  await sessions.resources.list(session.id);
  const [repository] = session.resources.filter(({ type }) => type === "github_repository");
  const { id: repositoryId } = repository as { id: string };
  await sessions.resources.retrieve(repositoryId, of);
  await sessions.resources.update(repositoryId, { ...of, authorization_token: "t" });
  await sessions.resources.delete(added.id, of);
  const { data: threads } = await sessions.threads.list(session.id);
  await sessions.threads.retrieve(threads[0]!.id, of);
  const deployment = await beta.deployments.create({
    name: "d",
    agent: agent.id,
    initial_events: [say],
    schedule: { type: "cron", expression: "0 9 * * 1", timezone: "UTC" },
    ...given,
  });
  await beta.deployments.retrieve(deployment.id);
  await beta.deployments.update(deployment.id, { description: "e" });
  await beta.deployments.list();
  const run = await beta.deployments.run(deployment.id);
  await beta.deploymentRuns.retrieve(run.id);
  await beta.deployments.pause(deployment.id);
  await beta.deployments.unpause(deployment.id);
  await beta.environments.archive(environment.id);
  await beta.deployments.run(deployment.id);
  await beta.deploymentRuns.list();
  await beta.deployments.archive(deployment.id);
  await sessions.archive(session.id);
  await sessions.delete(session.id);
  await beta.files.delete(file.id);
  await beta.vaults.archive(vault.id);
  await beta.vaults.delete(vault.id);
  await beta.memoryStores.archive(store.id);
  await beta.memoryStores.delete(store.id);
  await beta.agents.archive(member.id);
  await beta.skills.versions.delete(version.id, { skill_id: skill.id });
  const [last] = (await beta.skills.versions.list(skill.id)).data;
  const only = beta.skills.versions.delete(last!.id, { skill_id: skill.id });
  await expect(only).rejects.toMatchObject({ status: 400 });
  await beta.skills.delete(skill.id);
  expect(await answers.problems(CLIENTS)).toEqual([]);
});
