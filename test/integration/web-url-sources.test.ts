/** Agents that read only the URLs which their conversation has shown, by the sources that count for them. */
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import type { MessageInitShape } from "@bufbuild/protobuf";
import { afterAll, beforeAll, expect, test } from "vitest";
import { UrlSourceRule, type UrlSourcesSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import {
  startWebRig,
  startWebSide,
  textOf,
  type WebRig,
  type WebSession,
  type WebSide,
} from "../kit/web-rig.ts";

const directory = mkdtempSync(join(tmpdir(), "tendon-web-urls-"));
const AT = "http://pages.example.com";
const NOT_SHOWN = /^url_not_in_prior_context: /;
let web: WebSide;
let rig: WebRig;
let provider: Server;

beforeAll(async () => {
  web = await startWebSide(directory);
  for (const path of ["/a", "/b", "/c", "/list"])
    web.pages.set(`pages.example.com${path}`, (_, response) => {
      response.writeHead(200, { "content-type": "text/html" });
      response.end(path === "/list" ? `<a href="/b">b</a>` : `<p>This is ${path}</p>`);
    });
  provider = createServer((request, response) => {
    request.resume();
    const results = [{ url: `${AT}/a`, title: "A", content: `More at ${AT}/b.` }];
    response.writeHead(200, { "content-type": "application/json" }).end(JSON.stringify({ results }));
  });
  provider.listen(0, "127.0.0.1");
  await once(provider, "listening");
  const searchUrl = `http://127.0.0.1:${(provider.address() as AddressInfo).port}/`;
  rig = await startWebRig(web, { searchUrl, searchKey: "none" });
});
afterAll(async () => {
  await rig?.stop();
  await web?.stop();
  provider?.close();
  rmSync(directory, { recursive: true, force: true });
});

const lookup = (name: string) => ({
  kind: {
    case: "custom" as const,
    value: { name, description: "Looks it up.", inputSchema: `{"type":"object"}` },
  },
});

type Sources = MessageInitShape<typeof UrlSourcesSchema>;

const sessionWith = (urlSources: Sources) =>
  rig.newSession({ fetch: { urlSources } }, [lookup("lookup"), lookup("other")]);

const says = (session: WebSession, ...texts: string[]) =>
  rig.vault.home.sessions.emitEvents({
    sessionId: session.id,
    events: texts.map((text) => ({
      type: "user.message",
      payload: JSON.stringify({ content: [{ type: "text", text }] }),
    })),
  });

/** A custom tool is called and answers. */
async function answers(session: WebSession, name: string, text: string, isError = false): Promise<void> {
  const id = await session.brainSays("agent.custom_tool_use", { name, input: {} });
  const payload = { custom_tool_use_id: id, content: [{ type: "text", text }], is_error: isError };
  await rig.vault.home.sessions.emitEvents({
    sessionId: session.id,
    events: [{ type: "user.custom_tool_result", payload: JSON.stringify(payload) }],
  });
}

const read = (session: WebSession, path: string) => session.call("web_fetch", { url: `${AT}${path}` });

async function isRead(session: WebSession, path: string): Promise<boolean> {
  const result = await read(session, path);
  if (result.is_error) expect(textOf(result)).toMatch(NOT_SHOWN);
  return !result.is_error;
}

test("what a user has written is read, however it is written; what a model makes up is not, and is not asked for", async () => {
  const session = await sessionWith({});
  const before = web.connected.length;
  const refused = await read(session, "/a");
  expect(refused).toMatchObject({
    is_error: true,
    failure: { part: "proxy", reason: "URL_NOT_IN_PRIOR_CONTEXT" },
  });
  // What it was refused does not count as shown, either.
  expect(await isRead(session, "/a")).toBe(false);
  expect(web.connected).toHaveLength(before);
  await says(session, `See (HTTP://Pages.Example.com/a), and "${AT}/b#part". Not ${AT}/cc`);
  expect(await isRead(session, "/a")).toBe(true);
  expect(await isRead(session, "/b")).toBe(true);
  expect(await isRead(session, "/c")).toBe(false);
  expect(await isRead(session, "/a?leaks=this")).toBe(false);
});

test("results of searches and pages show further URLs, each as far as its source counts", async () => {
  const both = await sessionWith({});
  await both.call("web_search", { query: "x" });
  expect(await isRead(both, "/a")).toBe(true);
  expect(await isRead(both, "/b")).toBe(true);
  const linked = await sessionWith({});
  await says(linked, `${AT}/list`);
  expect(await isRead(linked, "/b")).toBe(false);
  expect(await isRead(linked, "/list")).toBe(true);
  expect(await isRead(linked, "/b")).toBe(true);
  const searching = { rule: UrlSourceRule.ONLY, names: ["web_search"] };
  const only = await sessionWith({ serverToolResults: searching });
  await says(only, `${AT}/list`);
  await isRead(only, "/list");
  expect(await isRead(only, "/b")).toBe(false);
  await only.call("web_search", { query: "x" });
  expect(await isRead(only, "/b")).toBe(true);
  const except = await sessionWith({ serverToolResults: { ...searching, rule: UrlSourceRule.EXCEPT } });
  await except.call("web_search", { query: "x" });
  expect(await isRead(except, "/a")).toBe(false);
});

test("results of custom tools count by the tool's name, and not where they are errors", async () => {
  const only = { rule: UrlSourceRule.ONLY, names: ["lookup"] };
  const session = await sessionWith({ clientToolResults: only, userInput: UrlSourceRule.NONE });
  await says(session, `${AT}/a`);
  await answers(session, "other", `${AT}/b`);
  await answers(session, "lookup", `cannot open ${AT}/c`, true);
  for (const path of ["/a", "/b", "/c"]) expect(await isRead(session, path)).toBe(false);
  await answers(session, "lookup", JSON.stringify({ found: [`${AT}/c`] }));
  expect(await isRead(session, "/c")).toBe(true);
});

test("a thread may read what was shown above it, as far as each agent lets it count", async () => {
  const above = await sessionWith({ serverToolResults: { rule: UrlSourceRule.NONE } });
  const thread = await sessionWith({});
  await rig.vault.database
    .pool()
    .query("update sessions set parent_session_id = $2, root_session_id = $2 where session_id = $1", [
      thread.id,
      above.id,
    ]);
  await says(above, `${AT}/a`);
  expect(await isRead(thread, "/a")).toBe(true);
  await thread.call("web_search", { query: "x" });
  expect(await isRead(thread, "/b")).toBe(false);
});

test("a talk with many words about the host is looked through to its beginning", async () => {
  const session = await sessionWith({});
  await says(session, `${AT}/a`);
  await says(session, ...Array.from({ length: 45 }, (_, n) => `and pages.example.com again, ${n}`));
  expect(await isRead(session, "/a")).toBe(true);
});

test("an agent whose sources leave nothing, or name what it does not have, is refused with the place", async () => {
  const none = { rule: UrlSourceRule.NONE };
  const refusedAt = async (sources: Sources, field: string) =>
    expect(sessionWith(sources)).rejects.toMatchObject({
      reason: "INVALID_FIELD",
      metadata: { field: `spec.tools[0].web_toolset.fetch.url_sources${field}` },
    });
  await refusedAt({ clientToolResults: none, serverToolResults: none, userInput: UrlSourceRule.NONE }, "");
  const only = (...names: string[]) => ({ rule: UrlSourceRule.ONLY, names });
  await refusedAt({ clientToolResults: only("web_search") }, ".client_tool_results.names[0]");
  await refusedAt({ serverToolResults: only("web_search", "lookup") }, ".server_tool_results.names[1]");
  await refusedAt({ clientToolResults: only("lookup", "lookup") }, ".client_tool_results.names[1]");
  await refusedAt({ clientToolResults: only() }, ".client_tool_results.names");
  await refusedAt({ serverToolResults: { ...none, names: ["web_fetch"] } }, ".server_tool_results.names");
});
