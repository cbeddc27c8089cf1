/**
 * Parts of sessions that clients of the HTTP API bring or change: repositories with their tokens, tools and MCP servers, skills
 * of the agents that an agent calls. The built programs, process hands, a real git host with authentication.
 */
import { writeFile } from "node:fs/promises";
import { join } from "node:path";
import Anthropic, { toFile } from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { AdminService } from "../../proto/gen/tendon/v1/admin_service_pb.js";
import { VaultService } from "../../proto/gen/tendon/v1/vault_service_pb.js";
import { formsOf, newCanary, searchFor } from "../kit/canary-search.ts";
import { type CountingMcpServer, startCountingMcpServer } from "../kit/counting-mcp-server.ts";
import { sessionFaults } from "../kit/declared-shapes.ts";
import { eventually } from "../kit/eventually.ts";
import {
  type FakeMessagesApi,
  type MessagesRequest,
  startFakeMessagesApi,
  text,
  toolUse,
  turn,
} from "../kit/fake-messages-api.ts";
import { type GitServer, startGitServer } from "../kit/git-server.ts";
import { type Platform, startPlatform } from "../kit/platform.ts";
import { whyNoPrivateNetwork } from "../kit/private-network.ts";
import { readProc } from "../kit/start-process.ts";

const TOOLSET = { type: "agent_toolset_20260401" as const };

let api: FakeMessagesApi;
let host: GitServer;
let mcp: CountingMcpServer;
let platform: Platform;
let client: Anthropic;
let environment: string;
/** The model answers "hold" once this is called. */
let letGo = () => {};
const held = new Promise<void>((resolve) => {
  letGo = resolve;
});
/** Whatever the client was told. */
const answers: string[] = [];

beforeAll(async () => {
  [api, host, mcp] = await Promise.all([
    startFakeMessagesApi({ script: answerTo }),
    startGitServer(),
    startCountingMcpServer(),
  ]);
  await host.addRepository("private/one.git");
  platform = await startPlatform({
    programs: ["mcp-proxy", "harness", "hand-agent"],
    env: {
      "mcp-proxy": { TENDON_PROXY_UPSTREAM_CA_FILE: host.caFile, TENDON_LOG_LEVEL: "debug" },
      harness: { ANTHROPIC_API_KEY: api.apiKey, ANTHROPIC_BASE_URL: api.url },
    },
  });
  client = new Anthropic({ baseURL: platform.url, apiKey: platform.adminKey, maxRetries: 0, fetch: heard });
  const networking = { type: "limited" as const };
  environment = (await client.beta.environments.create({ name: "e", config: { type: "cloud", networking } }))
    .id;
});

afterAll(async () => {
  await platform?.stop();
  await Promise.all([api?.stop(), host?.stop(), mcp?.stop()]);
});

/** As the client's own, but what is not a stream is kept. */
async function heard(url: string | URL | Request, init?: RequestInit): Promise<Response> {
  const response = await fetch(url, init);
  if (!/json/.test(response.headers.get("content-type") ?? "")) return response;
  const body = await response.text();
  answers.push(body);
  return new Response(body, response);
}

/** What the newest message asks for, in words of its own. */
async function answerTo({ messages }: MessagesRequest) {
  const last = messages.at(-1)!;
  const said = typeof last.content === "string" ? last.content : JSON.stringify(last.content);
  if (said.includes("tool_result")) {
    return said.includes("works on it") ? turn([toolUse("thread_wait", {})]) : turn([text("Done.")]);
  }
  if (said.includes("hold")) await held;
  const [, agent = "", message = ""] = /delegate to (\w+): ([^"\\]*)/.exec(said) ?? [];
  if (agent !== "") return turn([toolUse("thread_create", { agent, message })]);
  const command = /bash: ((?:[^"\\]|\\.)*)/.exec(said)?.[1];
  if (command === undefined) return turn([text("Hello.")]);
  return turn([toolUse("bash", { command: JSON.parse(`"${command}"`) as string })]);
}

type Event = Record<string, unknown> & { readonly type: string };

/** A turn; all that the session's stream told meanwhile, to its end. */
async function ask(sessionId: string, words: string): Promise<Event[]> {
  const stream = await client.beta.sessions.events.stream(sessionId);
  const content = [{ type: "text" as const, text: words }];
  await client.beta.sessions.events.send(sessionId, { events: [{ type: "user.message", content }] });
  const seen: Event[] = [];
  for await (const event of stream) {
    seen.push(event as never);
    if (event.type === "session.status_idle") break;
  }
  return seen;
}

/** What a command printed. */
async function bash(sessionId: string, command: string): Promise<string> {
  const results = (await ask(sessionId, `bash: ${command}`)).filter(
    ({ type }) => type === "agent.tool_result",
  );
  return results.map(({ content }) => (content as { text: string }[])[0]?.text ?? "").join("");
}

async function historyOf(sessionId: string): Promise<Event[]> {
  const all: Event[] = [];
  for await (const event of client.beta.sessions.events.list(sessionId)) all.push(event as never);
  return all;
}

async function newAgent(name: string, more: object = {}): Promise<string> {
  return (await client.beta.agents.create({ name, model: "claude-test", tools: [TOOLSET], ...more })).id;
}

const refused = { status: 400, error: expect.objectContaining({ type: "error" }) };

describe.skipIf(whyNoPrivateNetwork() !== undefined)("a repository of a session, over HTTP", () => {
  const url = () => `https://127.0.0.1:${host.port}/private/one`;
  const COMMIT = "git -c user.name=a -c user.email=a@example.com commit -qam";

  it("is cloned and pushed to with the token that came with it, and with its successor; no token is anywhere (R22)", async () => {
    const [first, second] = [newCanary("first", ""), newCanary("second", "")];
    host.login = `x-access-token:${first.secret}`;
    const session = await client.beta.sessions.create({
      agent: await newAgent("coder"),
      environment_id: environment,
      resources: [
        {
          type: "github_repository",
          url: url(),
          authorization_token: first.secret,
          checkout: { type: "branch", name: "main" },
        },
      ],
    });
    const resource = session.resources[0] as { id: string; updated_at: string };
    expect(resource).toEqual({
      type: "github_repository",
      id: expect.stringMatching(/^sesrsc_/),
      url: url(),
      mount_path: "/workspace/one",
      checkout: { type: "branch", name: "main" },
      created_at: expect.stringMatching(/^2/),
      updated_at: expect.stringMatching(/^2/),
    });
    expect(session.vault_ids).toEqual([]);
    const change = (words: string) =>
      `echo ${words} >>file; git add file; ${COMMIT} ${words}; git push -q 2>&1; echo $?`;
    expect(await bash(session.id, `cd one && ${change("early")}`)).toBe("0");
    host.login = `x-access-token:${second.secret}`;
    expect(await bash(session.id, "git fetch 2>&1; echo $?")).toMatch(
      /refuses the session's credential[\s\S]*128$/,
    );
    const resources = client.beta.sessions.resources;
    const rotated = await resources.update(resource.id, {
      session_id: session.id,
      authorization_token: second.secret,
    });
    expect(rotated).toMatchObject({ id: resource.id, type: "github_repository" });
    expect((rotated as { updated_at: string }).updated_at > resource.updated_at).toBe(true);
    expect(await bash(session.id, `git pull -q 2>&1; ${change("late")}`)).toBe("0");
    expect(await host.git("private/one.git", "log", "--format=%s", "main")).toBe("late\nearly\nfirst");
    const read =
      "cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline .git/config .git/FETCH_HEAD; env; git config --list";
    expect(await bash(session.id, read)).toContain("GIT_CONFIG_COUNT");
    expect((await resources.list(session.id)).data).toEqual([rotated]);
    expect(await resources.retrieve(resource.id, { session_id: session.id })).toEqual(rotated);
    await expect(resources.delete(resource.id, { session_id: session.id })).rejects.toMatchObject(refused);

    const used = host.seen.map(({ authorization }) => authorization).filter((value) => value !== undefined);
    const basicOf = (token: string) => `Basic ${Buffer.from(`x-access-token:${token}`).toString("base64")}`;
    expect(new Set(used)).toEqual(new Set([first, second].map(({ secret }) => basicOf(secret))));
    await historyOf(session.id);
    const programs = (["server", "mcp-proxy", "harness", "hand-agent"] as const).map((name) => {
      const { pid } = platform.program(name);
      return `${readProc(pid, "environ")}\n${readProc(pid, "cmdline")}`;
    });
    const asked = api.requests.map(({ body }) => body.toString());
    const told = [...answers, platform.logs(), ...asked, ...programs].join("\n");
    const control = newCanary("control", "");
    await writeFile(join(platform.dataDir, "control"), control.secret);
    await writeFile(join(platform.dataDir, "told"), told);
    const hits = await searchFor([first, second, control], [platform.dataDir]);
    expect(hits).toEqual([{ file: join(platform.dataDir, "control"), name: "control", form: "plain" }]);
    expect(told).toContain("GIT_CONFIG_COUNT");
    expect(formsOf(first.secret).length).toBeGreaterThan(5);
  });

  it("of a deployment is cloned by its sessions with the deployment's token, and with its successor where they are", async () => {
    const [first, second] = [newCanary("first", ""), newCanary("second", "")];
    const resources = ({ secret: authorization_token }: { secret: string }) => [
      { type: "github_repository" as const, url: url(), authorization_token },
    ];
    host.login = `x-access-token:${first.secret}`;
    const deployment = await client.beta.deployments.create({
      name: "pusher",
      agent: await newAgent("pusher"),
      environment_id: environment,
      initial_events: [{ type: "user.message", content: [{ type: "text", text: "hello" }] }],
      resources: resources(first),
    });
    expect(deployment.resources).toEqual([
      { type: "github_repository", url: url(), checkout: null, mount_path: null },
    ]);
    const run = async () => {
      const id = (await client.beta.deployments.run(deployment.id)).session_id!;
      await eventually(async () => (await historyOf(id)).some(({ type }) => type === "session.status_idle"));
      return id;
    };
    const change = (words: string) =>
      `cd one 2>/dev/null; git pull -q; echo ${words} >>file; git add file; ${COMMIT} ${words}; git push -q 2>&1; echo $?`;
    const one = await run();
    expect(await bash(one, change("from-one"))).toBe("0");
    host.login = `x-access-token:${second.secret}`;
    expect(await bash(one, "git fetch 2>&1; echo $?")).toMatch(/refuses the session's credential[\s\S]*128$/);
    await client.beta.deployments.update(deployment.id, { resources: resources(second) });
    expect(await bash(one, change("again"))).toBe("0");
    expect(await bash(await run(), change("from-two"))).toBe("0");
    expect(await host.git("private/one.git", "log", "-3", "--format=%s", "main")).toBe(
      "from-two\nagain\nfrom-one",
    );
    await writeFile(join(platform.dataDir, "told"), [...answers, platform.logs()].join("\n"));
    expect(await searchFor([first, second], [platform.dataDir])).toEqual([]);
  });

  it("has its token in a vault that nobody sees, changes or gives to another session, and that ends with it", async () => {
    const admin = platform.client(AdminService);
    const vaults = platform.client(VaultService);
    const agent = await newAgent("owner");
    const session = await client.beta.sessions.create({
      agent,
      environment_id: environment,
      resources: [{ type: "github_repository", url: url(), authorization_token: "one-token" }],
    });
    const audit = async () =>
      (await admin.listAuditEntries({ sessionId: session.id, pageSize: 100 })).entries;
    const made = new Map((await audit()).map(({ action, subject }) => [action, subject]));
    const [vaultId = "", credentialId = ""] = [made.get("vault.create"), made.get("credential.create")];
    expect([vaultId, credentialId]).toEqual([
      expect.stringMatching(/^vlt_/),
      expect.stringMatching(/^vcrd_/),
    ]);
    const gone = { reason: "NOT_FOUND" };
    await expect(vaults.getVault({ vaultId })).rejects.toMatchObject(gone);
    await expect(vaults.listCredentials({ vaultId })).rejects.toMatchObject(gone);
    await expect(vaults.archiveVault({ vaultId })).rejects.toMatchObject(gone);
    await expect(vaults.getCredential({ credentialId })).rejects.toMatchObject(gone);
    await expect(vaults.updateCredential({ credentialId, displayName: "x" })).rejects.toMatchObject(gone);
    await expect(vaults.deleteCredential({ credentialId })).rejects.toMatchObject(gone);
    expect((await client.beta.vaults.list()).data.map(({ id }) => id)).not.toContain(vaultId);
    const other = client.beta.sessions.create({ agent, environment_id: environment, vault_ids: [vaultId] });
    await expect(other).rejects.toMatchObject({ status: 404 });
    await client.beta.sessions.archive(session.id);
    expect((await audit()).map(({ action }) => action)).toContain("vault.archive");
    const late = client.beta.sessions.resources.update((session.resources[0] as { id: string }).id, {
      session_id: session.id,
      authorization_token: "late",
    });
    await expect(late).rejects.toMatchObject({ status: 400 });
    expect(await client.beta.sessions.delete(session.id)).toMatchObject({ type: "session_deleted" });
  });

  it("is refused where it is wrong, with the field in the caller's words, and then there is no session", async () => {
    const agent = await newAgent("wrong");
    const before = (await client.beta.sessions.list({ agent_id: agent })).data.length;
    const cases: [object, string][] = [
      [{ url: "git@github.com:o/r.git" }, "resources[0].url"],
      [{ url: "http://example.com/o/r" }, "resources[0].url"],
      [{ url: url(), authorization_token: "two words" }, "resources[0].authorization_token"],
      [{ url: url(), mount_path: "/etc/one" }, "resources[0].mount_path"],
      [{ url: url(), checkout: { type: "commit", sha: "abc" } }, "resources[0].checkout.sha"],
      [{ url: url(), checkout: { type: "branch", name: "a..b" } }, "resources[0].checkout.name"],
      [{ url: url(), checkout: { type: "branch" } }, "resources[0].checkout.name"],
      [{ url: url(), token: "x" }, "resources[0].token"],
    ];
    for (const [wrong, field] of cases) {
      const resources = [{ type: "github_repository", ...wrong }] as never;
      const made = client.beta.sessions.create({ agent, environment_id: environment, resources });
      await expect(made).rejects.toMatchObject({ status: 400, error: { error: { details: { field } } } });
    }
    expect((await client.beta.sessions.list({ agent_id: agent })).data).toHaveLength(before);
    const session = await client.beta.sessions.create({ agent, environment_id: environment });
    const added = client.beta.sessions.resources.add(session.id, {
      type: "github_repository",
      url: url(),
    } as never);
    await expect(added).rejects.toMatchObject({ status: 400 });
  });
});

const custom = (name: string) => ({
  type: "custom" as const,
  name,
  description: `Does ${name}.`,
  input_schema: { type: "object" as const },
});

describe("tools and MCP servers of a session", () => {
  const offered = () =>
    (api.requests.at(-1)?.json?.tools as { name: string }[] | undefined)?.map(({ name }) => name);

  it("are changed while it is idle, told by session.updated with what changed alone, and offered from the next turn on", async () => {
    const agent = await newAgent("changed", { tools: [custom("first")] });
    const session = await client.beta.sessions.create({ agent, environment_id: environment });
    await ask(session.id, "hello");
    expect(offered()).toEqual(["first"]);
    const server = { type: "url" as const, name: "far", url: mcp.url };
    const tools = [custom("second"), { type: "mcp_toolset" as const, mcp_server_name: "far" }];
    const stream = await client.beta.sessions.events.stream(session.id);
    const updated = await client.beta.sessions.update(session.id, {
      title: "renamed",
      agent: { tools, mcp_servers: [server] },
    });
    expect(updated).toMatchObject({
      title: "renamed",
      agent: { id: agent, version: 1, mcp_servers: [server] },
    });
    let event: Event | undefined;
    for await (const seen of stream) {
      event = seen as never;
      break;
    }
    expect(event).toEqual({
      type: "session.updated",
      id: expect.stringMatching(/^sevt_/),
      processed_at: expect.stringMatching(/^2/),
      title: "renamed",
      agent: updated.agent,
    });
    // The same again, which changes nothing.
    await client.beta.sessions.update(session.id, { agent: { tools, mcp_servers: [server] } });
    await ask(session.id, "hello again");
    expect(offered()).toEqual(["second", "mcp__far__note", "mcp__far__look", "mcp__far__set"]);
    await client.beta.sessions.update(session.id, { agent: { tools: [], mcp_servers: [] } });
    await ask(session.id, "and again");
    expect(offered() ?? []).toEqual([]);
    const kinds = (await historyOf(session.id)).filter(({ type }) => type === "session.updated");
    expect(kinds.map(({ title, agent: now }) => [title, (now as { tools: unknown[] }).tools.length])).toEqual(
      [
        ["renamed", 2],
        [undefined, 0],
      ],
    );
    expect((await client.beta.agents.retrieve(agent)).tools).toHaveLength(1);
  });

  it("are refused where they do not go together, where hands have no such slot, and while the session runs", async () => {
    const agent = await newAgent("kept", { tools: [custom("first")] });
    const session = await client.beta.sessions.create({ agent, environment_id: environment });
    const server = { type: "url" as const, name: "far", url: mcp.url };
    const toolset = { type: "mcp_toolset" as const, mcp_server_name: "far" };
    const cases: [object, string][] = [
      [{ mcp_servers: [server] }, "agent.mcp_servers[0].name"],
      [{ tools: [toolset] }, "agent.tools[0].mcp_server_name"],
      [{ tools: [{ ...TOOLSET, slot: "other" }] }, "agent.tools[0].slot"],
      [{ tools: [custom("bash")] }, "agent.tools[0].name"],
      [{ model: "other" }, "agent.model"],
    ];
    for (const [wrong, field] of cases) {
      const change = client.beta.sessions.update(session.id, { agent: wrong as never });
      await expect(change).rejects.toMatchObject({ status: 400, error: { error: { details: { field } } } });
    }
    const asked = ask(session.id, "hold");
    await eventually(async () => (await client.beta.sessions.retrieve(session.id)).status === "running");
    const late = client.beta.sessions.update(session.id, { agent: { tools: [] } });
    await expect(late).rejects.toMatchObject({
      status: 400,
      error: { error: { details: { reason: "SESSION_RUNNING" } } },
    });
    expect((await client.beta.sessions.update(session.id, { title: "any time" })).title).toBe("any time");
    letGo();
    await asked;
    expect((await client.beta.sessions.retrieve(session.id)).agent.tools).toHaveLength(1);
  });

  it("are not all that is told: a budget is told in the caller's words too, and null takes it away", async () => {
    const budget = { type: "limit" as const, max_list_cost: { amount: "500", currency: "USD" as const } };
    const session = await client.beta.sessions.create({
      agent: await newAgent("thrifty"),
      environment_id: environment,
      budget,
    });
    const more = { ...budget, max_list_cost: { ...budget.max_list_cost, amount: "900" } };
    await client.beta.sessions.update(session.id, { budget: more });
    expect((await client.beta.sessions.update(session.id, { budget: null })).budget).toBeNull();
    const told = (await historyOf(session.id)).filter(({ type }) => type === "session.updated");
    expect(told.map((event) => event.budget)).toEqual([more, null]);
  });
});

describe.skipIf(whyNoPrivateNetwork() !== undefined)("skills of an agent that is called", () => {
  async function skill(description: string, output: string): Promise<string> {
    const manifest = `---\nname: greet\ndescription: ${description}\n---\nRun run.sh.\n`;
    const files = [
      await toFile(Buffer.from(manifest), "greet/SKILL.md"),
      await toFile(Buffer.from(`#!/bin/sh\necho ${output}\n`), "greet/run.sh"),
    ];
    return (await client.beta.skills.create({ display_name: description, files })).id;
  }
  const has = (id: string) => ({ skills: [{ type: "custom" as const, skill_id: id }] });

  it("are in the hands that its threads share, and its model is told of them alone, by the place where they are", async () => {
    const helper = await newAgent("helper", has(await skill("For helpers.", "the helper greets")));
    const lead = await newAgent("lead", {
      ...has(await skill("For leads.", "the lead greets")),
      tools: [TOOLSET],
      multiagent: { type: "coordinator", agents: [{ type: "agent", id: helper }] },
    });
    const session = await client.beta.sessions.create({ agent: lead, environment_id: environment });
    expect(await bash(session.id, "sh skills/greet/run.sh")).toBe("the lead greets");
    await ask(session.id, "delegate to helper: bash: sh skills/greet-2/run.sh");
    const [, thread] = (await client.beta.sessions.threads.list(session.id)).data;
    const events = client.beta.sessions.threads.events.list(thread!.id, { session_id: session.id });
    expect(JSON.stringify((await events).data)).toContain("the helper greets");
    const systems = api.requests.map(({ json }) => JSON.stringify(json?.system ?? ""));
    const told = systems.filter((system) => system.includes("skills/greet-2/SKILL.md (greet): For helpers."));
    expect(told.length).toBeGreaterThan(0);
    for (const system of told) expect(system).not.toContain("For leads.");
  });
});

it("says all that was said here as the official client declares it", async () => {
  expect(await sessionFaults(client)).toEqual([]);
});
