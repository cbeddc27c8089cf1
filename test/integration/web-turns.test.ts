/** Turns that use tools of the web: the built programs, the official client, a search provider of the test's own. */
import { createHash } from "node:crypto";
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import Anthropic from "@anthropic-ai/sdk";
import { afterAll, beforeAll, describe, expect, it } from "vitest";
import { startDatabasePlatform } from "../kit/database-platform.ts";
import { sessionFaults } from "../kit/declared-shapes.ts";
import { eventually } from "../kit/eventually.ts";
import { type FakeMessagesApi, startFakeMessagesApi, text, toolUse, turn } from "../kit/fake-messages-api.ts";
import type { Platform } from "../kit/platform.ts";
import { testPdf } from "../kit/test-pdf.ts";
import { startWebSide, type WebSide } from "../kit/web-rig.ts";

const TOOLSET = "agent_toolset_20260401" as const;

/** Of the public internet: the proxy of the platform is led to the test's own web. */
const PUBLIC = "93.184.216.34";
const directory = mkdtempSync(join(tmpdir(), "tendon-web-turns-"));

let web: WebSide;
let api: FakeMessagesApi;
let provider: Server;
let platform: Platform;
let client: Anthropic;
const queries: string[] = [];
/** Names of the tools and the system prompt of the newest request. */
let offered = { names: [] as string[], system: "" };

beforeAll(async () => {
  web = await startWebSide(directory);
  provider = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    queries.push((JSON.parse(body) as { query: string }).query);
    const results = [{ url: "https://a.example.com/", title: "Tea", content: "Three minutes." }];
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify({ results }));
  });
  provider.listen(0, "127.0.0.1");
  await once(provider, "listening");
  api = await startFakeMessagesApi({
    script: ({ messages, tools = [], system }) => {
      offered = { names: tools.map(({ name }) => String(name)), system: JSON.stringify(system ?? "") };
      const last = JSON.stringify(messages.at(-1));
      if (last.includes('"title":"unreadable.pdf"')) return UNREADABLE;
      if (last.includes('"type":"document"')) return turn([text("I have read it.")], { usage: READ_USAGE });
      const [, paper] = /read ([a-z]+\.pdf)/.exec(last) ?? [];
      if (paper) return turn([toolUse("web_fetch", { url: `http://${PUBLIC}/${paper}` })]);
      if (last.includes("tool_result")) return turn([text(`It said: ${last}`)]);
      if (last.includes("search it")) return turn([toolUse("web_search", { query: "tea" })]);
      if (last.includes("read it")) return turn([toolUse("web_fetch", { url: `${platform.url}/healthz` })]);
      return turn([text("Hello.")]);
    },
  });
  platform = await startDatabasePlatform({
    programs: ["mcp-proxy", "harness"],
    env: {
      harness: { ANTHROPIC_API_KEY: api.apiKey, ANTHROPIC_BASE_URL: api.url },
      "mcp-proxy": {
        HTTPS_PROXY: web.proxyUrl,
        TENDON_WEB_SEARCH_URL: `http://127.0.0.1:${(provider.address() as AddressInfo).port}/`,
      },
    },
  });
  client = new Anthropic({ baseURL: platform.url, apiKey: platform.adminKey, maxRetries: 0 });
});

afterAll(async () => {
  await platform?.stop();
  await api?.stop();
  await web?.stop();
  provider?.close();
  rmSync(directory, { recursive: true, force: true });
});

/** As a model counts pages, and not the characters of base64. */
const READ_USAGE = { inputTokens: 12_000, cacheReadTokens: 0 };

const UNREADABLE = {
  kind: "http_failure" as const,
  status: 400,
  errorType: "invalid_request_error",
  message:
    "messages.2.content.0.tool_result.content.1.pdf.source.base64.data: The PDF specified was not valid.",
};

function servePdf(name: string, pdf: Buffer): void {
  web.pages.set(
    `${PUBLIC}/${name}`,
    (_, response) => void response.writeHead(200, { "content-type": "application/pdf" }).end(pdf),
  );
}

function digestOf(text: string): string {
  return createHash("sha256").update(text).digest("hex");
}

/** With digests in place of what is long. */
function shortened(value: unknown): unknown {
  const text = JSON.stringify(value, (_, inner) =>
    typeof inner === "string" && inner.length > 10_000 ? digestOf(inner) : inner,
  );
  return JSON.parse(text);
}

/** The messages of the newest request, without the marks of its cache. */
function newestMessages(): unknown[] {
  const body = api.requests.at(-1)!.body.toString().replaceAll(`,"cache_control":{"type":"ephemeral"}`, "");
  return (JSON.parse(body) as { messages: unknown[] }).messages;
}

type Toolset = Anthropic.Beta.AgentCreateParams["tools"];

async function newSession(toolset: object = {}, config: object = { type: "cloud" }) {
  const tools = [{ type: TOOLSET, ...toolset }] as unknown as Toolset;
  const agent = await client.beta.agents.create({ name: "reader", model: "claude-opus-5", tools: tools! });
  const environment = await client.beta.environments.create({
    name: `env ${agent.id}`,
    config: config as never,
  });
  return client.beta.sessions.create({ agent: agent.id, environment_id: environment.id });
}

const say = (words: string) => ({
  events: [{ type: "user.message" as const, content: [{ type: "text" as const, text: words }] }],
});

type Event = Record<string, unknown> & { id: string; type: string };

async function eventsOf(sessionId: string): Promise<Event[]> {
  const events: Event[] = [];
  for await (const event of client.beta.sessions.events.list(sessionId)) events.push(event as never);
  return events;
}

/** The events, once the session has come to rest so often. */
function idle(sessionId: string, times = 1): Promise<Event[]> {
  return eventually(
    async () => {
      const events = await eventsOf(sessionId);
      return events.filter(({ type }) => type === "session.status_idle").length >= times ? events : undefined;
    },
    { withinMs: 60_000 },
  );
}

const only = (events: readonly Event[], type: string) => events.filter((event) => event.type === type);

describe("a session with tools of the web", () => {
  it("searches through the proxy, shows the model what was found, and counts it by list price", async () => {
    const session = await newSession();
    await client.beta.sessions.events.send(session.id, say("search it"));
    const events = await idle(session.id);
    const [use] = only(events, "agent.tool_use");
    expect(use).toMatchObject({ name: "web_search", input: { query: "tea" }, evaluated_permission: "allow" });
    expect(only(events, "agent.tool_result")).toMatchObject([
      {
        tool_use_id: use!.id,
        is_error: false,
        content: [{ type: "search_result", source: "https://a.example.com/", title: "Tea" }],
      },
    ]);
    expect(JSON.stringify(only(events, "agent.message"))).toContain("Three minutes.");
    expect(only(events, "session.usage")).toMatchObject([
      { usage: { server_tool_use: { web_search_requests: 1, web_fetch_requests: 0 } } },
    ]);
    const { usage } = await client.beta.sessions.retrieve(session.id);
    expect(usage.server_tool_use).toEqual({ web_search_requests: 1, web_fetch_requests: 0 });
    expect(Number(usage.list_cost!.amount)).toBeGreaterThanOrEqual(1);
  });

  it("reads nothing that is not public, which its result says with the word of the wire", async () => {
    const session = await newSession();
    await client.beta.sessions.events.send(session.id, say("read it"));
    const events = await idle(session.id);
    const [result] = only(events, "agent.tool_result") as [Event & { content: { text: string }[] }];
    expect(result).toMatchObject({ is_error: true });
    expect(result.content[0]!.text).toMatch(/^url_not_allowed: /);
  });

  it("reads a PDF, which its model is shown as a document, and again byte for byte by another harness", async () => {
    const pdf = testPdf({ pages: 4, paddingBytes: 2 * 1024 * 1024 });
    servePdf("tea.pdf", pdf);
    const session = await newSession();
    await client.beta.sessions.events.send(session.id, say("read tea.pdf"));
    const events = await idle(session.id);
    // Digests, since megabytes are no help to whoever reads of a difference.
    const data = digestOf(pdf.toString("base64"));
    const content = [
      { type: "text", text: `URL: http://${PUBLIC}/tea.pdf\n\nA PDF of 4 pages, ${pdf.length} bytes.` },
      {
        type: "document",
        source: { type: "base64", media_type: "application/pdf", data },
        title: "tea.pdf",
        context: "4 pages",
      },
    ];
    const [result] = only(events, "agent.tool_result");
    expect(shortened(result)).toMatchObject({ is_error: false, content });
    const shown = newestMessages();
    expect(shortened(shown.at(-1))).toMatchObject({
      role: "user",
      content: [{ type: "tool_result", content }],
    });
    await platform.program("harness").end("SIGKILL");
    await platform.start("harness");
    await client.beta.sessions.events.send(session.id, say("hello"));
    await idle(session.id, 2);
    expect(shortened(newestMessages().slice(0, shown.length))).toEqual(shortened(shown));
    expect(api.refusals).toEqual([]);
  });

  it("goes on without a PDF that the model API refuses, which would refuse all that follows (R6)", async () => {
    servePdf("unreadable.pdf", testPdf());
    const session = await newSession();
    await client.beta.sessions.events.send(session.id, say("read unreadable.pdf"));
    const [result] = only(await idle(session.id), "agent.tool_result");
    expect(result).toMatchObject({ is_error: false, content: [{ type: "text" }, { type: "document" }] });
    const told = JSON.stringify(newestMessages().at(-1));
    expect(told).toContain("A PDF of 1 page");
    expect(told).toContain("[A document was left out here: the model API cannot read it.]");
    await client.beta.sessions.events.send(session.id, say("hello"));
    const events = await idle(session.id, 2);
    expect(only(events, "agent.message")).toHaveLength(2);
  });

  it("asks a client first where the policy says so, and what is denied is not sent", async () => {
    const policy = { name: "web_search", permission_policy: { type: "always_ask" } };
    const session = await newSession({ configs: [policy] });
    const before = queries.length;
    await client.beta.sessions.events.send(session.id, say("search it"));
    const [use] = only(await idle(session.id), "agent.tool_use");
    expect(use).toMatchObject({ evaluated_permission: "ask" });
    await client.beta.sessions.events.send(session.id, {
      events: [{ type: "user.tool_confirmation", tool_use_id: use!.id, result: "deny" }],
    });
    expect(only(await idle(session.id, 2), "agent.tool_result")).toMatchObject([{ is_error: true }]);
    expect(queries).toHaveLength(before);
    await client.beta.sessions.events.send(session.id, say("search it"));
    const again = only(await idle(session.id, 3), "agent.tool_use").at(-1)!;
    await client.beta.sessions.events.send(session.id, {
      events: [{ type: "user.tool_confirmation", tool_use_id: again.id, result: "allow" }],
    });
    expect(only(await idle(session.id, 4), "agent.tool_result").at(-1)).toMatchObject({ is_error: false });
    expect(queries).toHaveLength(before + 1);
  });

  it("has them run by the platform also in a self-hosted environment, whose workers see no such call", async () => {
    const session = await newSession({}, { type: "self_hosted" });
    await client.beta.sessions.events.send(session.id, say("search it"));
    expect(only(await idle(session.id), "agent.tool_result")).toMatchObject([{ is_error: false }]);
    const environmentId = (await client.beta.sessions.retrieve(session.id)).environment_id!;
    const made = await client.post<{ key: string }>(`/v1/environments/${environmentId}/keys`, { body: {} });
    const worker = new Anthropic({ baseURL: platform.url, apiKey: made.key, maxRetries: 0 });
    expect((await worker.beta.environments.work.list(environmentId)).data).toEqual([]);
    const shown = await worker.beta.sessions.events.list(session.id);
    expect(shown.data.map(({ type }) => type)).not.toContain("agent.tool_use");
  });

  it("is not offered what the installation lacks, and the model is told why", async () => {
    await platform.program("mcp-proxy").end("SIGTERM");
    await platform.start("mcp-proxy", { TENDON_WEB_FETCH: "off", TENDON_WEB_SEARCH_URL: "" });
    const session = await newSession({ default_config: { enabled: true } });
    await client.beta.sessions.events.send(session.id, say("hello"));
    await idle(session.id);
    expect(offered.names.filter((name) => name.startsWith("web_"))).toEqual([]);
    expect(offered.system).toContain("web_fetch is not there: this installation has turned it off.");
    expect(offered.system).toContain("web_search is not there: this installation has no search provider.");
  });
});

describe("an agent over HTTP", () => {
  const create = (configs: object[], more: object = {}) =>
    client.beta.agents.create({
      name: "reader",
      model: "claude-test",
      tools: [{ type: TOOLSET, configs, ...more }] as unknown as NonNullable<Toolset>,
    });

  it("keeps what its toolset says of the web, and shows it where it was said", async () => {
    const fetch = { name: "web_fetch", allowed_domains: ["Example.com"], max_content_tokens: 500 };
    const place = { type: "approximate", city: "Bern", country: "CH" };
    const search = { name: "web_search", blocked_domains: ["example.org/a/"], user_location: place };
    const agent = await create([fetch, search]);
    const [toolset] = agent.tools as unknown as { configs: Record<string, unknown>[] }[];
    expect(toolset!.configs.map(({ name }) => name)).toEqual([
      "bash",
      "read",
      "write",
      "edit",
      "glob",
      "grep",
      "web_fetch",
      "web_search",
    ]);
    const always = { enabled: true, permission_policy: { type: "always_allow" } };
    expect(toolset!.configs.slice(6)).toEqual([
      { ...fetch, type: "web_fetch", url_sources: null, ...always },
      { ...search, type: "web_search", ...always },
    ]);
    const off = await create([], { default_config: { enabled: false } });
    const [disabled] = off.tools as unknown as { configs: { enabled: boolean }[] }[];
    expect(disabled!.configs.some(({ enabled }) => enabled)).toBe(false);
  });

  it("keeps which sources show the URLs that are read, and shows them in the form of objects", async () => {
    const searching = { type: "only", tools: [{ type: "tool_reference", name: "web_search" }] };
    const told = { user_input: "none", server_tool_results: searching, client_tool_results: null };
    const shown = { user_input: { type: "none" }, server_tool_results: searching, client_tool_results: null };
    const sources = async (url_sources: object) => {
      const { tools } = await create([{ name: "web_fetch", url_sources }]);
      const [toolset] = tools as unknown as { configs: Record<string, unknown>[] }[];
      return toolset!.configs.find(({ name }) => name === "web_fetch")!.url_sources;
    };
    expect(await sources(told)).toEqual(shown);
    expect(await sources(shown)).toEqual(shown);
    const all = { user_input: "all", server_tool_results: { type: "all" }, client_tool_results: "all" };
    const one = { type: "all" };
    expect(await sources(all)).toEqual({
      user_input: one,
      server_tool_results: one,
      client_tool_results: one,
    });
  });

  it.each([
    ["a scheme", { allowed_domains: ["https://example.com"] }, "web_fetch.allowed_domains[0]"],
    ["an address", { blocked_domains: ["example.com", "127.0.0.1"] }, "web_fetch.blocked_domains[1]"],
    ["a wildcard", { allowed_domains: ["*.example.com"] }, "web_fetch.allowed_domains[0]"],
    ["a path", { allowed_domains: ["example.com/a"] }, "web_fetch.allowed_domains[0]"],
    ["no public name", { allowed_domains: ["db.internal"] }, "web_fetch.allowed_domains[0]"],
    ["the same twice", { allowed_domains: ["a.com", "A.com"] }, "web_fetch.allowed_domains[1]"],
    ["both lists", { allowed_domains: ["a.com"], blocked_domains: ["b.com"] }, "web_fetch.blocked_domains"],
    ["an empty list", { allowed_domains: [] }, "tools[0].configs[0].allowed_domains"],
    [
      "no source of URLs",
      {
        url_sources: {
          user_input: "none",
          client_tool_results: "none",
          server_tool_results: { type: "none" },
        },
      },
      "web_fetch.url_sources",
    ],
    [
      "a source that is none",
      { url_sources: { user_input: "only" } },
      "tools[0].configs[0].url_sources.user_input",
    ],
    [
      "a list of no tools",
      { url_sources: { server_tool_results: { type: "only", tools: [] } } },
      "tools[0].configs[0].url_sources.server_tool_results.tools",
    ],
    [
      "a tool that is not the agent's",
      {
        url_sources: {
          client_tool_results: { type: "except", tools: [{ type: "tool_reference", name: "x" }] },
        },
      },
      "web_fetch.url_sources.client_tool_results.tools[0]",
    ],
  ])("is refused lists with %s, and told where", async (_, config, field) => {
    await expect(create([{ name: "web_fetch", ...config }])).rejects.toMatchObject({
      status: 400,
      error: { error: { details: { field } } },
    });
  });
});

it("says all that was said here as the official client declares it", async () => {
  expect(await sessionFaults(client)).toEqual([]);
});
