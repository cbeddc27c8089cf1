/** `web_fetch` and `web_search`, as a proxy runs them for a brain. */
import { once } from "node:events";
import { mkdtempSync, rmSync } from "node:fs";
import type { RequestListener } from "node:http";
import { createServer, type Server } from "node:http";
import type { AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { brotliCompressSync, constants, gzipSync } from "node:zlib";
import { afterAll, beforeAll, beforeEach, describe, expect, test } from "vitest";
import { eventually } from "../kit/eventually.ts";
import {
  startWebRig,
  startWebSide,
  textOf,
  type WebRig,
  type WebSession,
  type WebSide,
} from "../kit/web-rig.ts";

const directory = mkdtempSync(join(tmpdir(), "tendon-web-"));
const KEY = "canary-search-key-1";
let web: WebSide;
let rig: WebRig;
let session: WebSession;
/** The search provider: what it was asked, and what it answers. */
let provider: Server;
const asked: { headers: Record<string, unknown>; body: Record<string, unknown> }[] = [];
let answer: { status: number; body: string };

beforeAll(async () => {
  web = await startWebSide(directory);
  provider = createServer(async (request, response) => {
    let body = "";
    for await (const chunk of request) body += chunk;
    asked.push({ headers: request.headers, body: JSON.parse(body) });
    response.writeHead(answer.status, { "content-type": "application/json" }).end(answer.body);
  });
  provider.listen(0, "127.0.0.1");
  await once(provider, "listening");
  const searchUrl = `http://127.0.0.1:${(provider.address() as AddressInfo).port}/search`;
  rig = await startWebRig(web, { searchUrl, searchKey: KEY });
  session = await rig.newSession();
});
afterAll(async () => {
  await rig?.stop();
  await web?.stop();
  provider?.close();
  rmSync(directory, { recursive: true, force: true });
});
beforeEach(() => {
  for (const list of [web.seen, web.connected, asked]) list.splice(0);
  web.pages.clear();
  answer = { status: 200, body: JSON.stringify({ results: [] }) };
});

const html =
  (body: string): RequestListener =>
  (_, response) =>
    void response.writeHead(200, { "content-type": "text/html; charset=utf-8" }).end(body);
const page = (host: string, path: string, listener: RequestListener) =>
  web.pages.set(`${host}${path}`, listener);
const HOST = "pages.example.com";
const read = (url: string, of = session) => of.call("web_fetch", { url });

describe("web_fetch", () => {
  test("gives a page of the public internet as text, with its links and without its programs, recorded once (X3)", async () => {
    page(
      HOST,
      "/a",
      html(`<html><head><title>Tea &amp; time</title><style>b{}</style></head><body><h1>How long</h1>
        <p>Three <b>minutes</b>, see <a href="/more">the rest</a>.</p><script>canary()</script></body></html>`),
    );
    const toolUseId = await session.uses("web_fetch", { url: `http://${HOST}/a#part` });
    expect(await session.post(toolUseId)).toBe(200);
    const result = (await session.result(toolUseId))!;
    expect(result).toMatchObject({
      tool_use_id: toolUseId,
      is_error: false,
      upstream_ms: expect.any(Number),
    });
    expect(textOf(result)).toBe(
      `URL: http://${HOST}/a#part\nTitle: Tea & time\n\n# How long\n\nThree minutes, see the rest [http://${HOST}/more].`,
    );
    expect(await session.post(toolUseId)).toBe(200);
    expect(web.seen).toEqual([`${HOST}/a`]);
    const [entry] = await rig.vault.audit({ sessionId: session.id, subject: toolUseId });
    expect(entry).toMatchObject({ action: "web.call", workspaceId: rig.vault.home.workspaceId });
    expect(JSON.parse(entry!.detail)).toEqual({ hosts: [`${HOST}:80`], result: "200" });
  });

  test("sends nothing of the session along", async () => {
    const sent: string[] = [];
    page(HOST, "/", (request, response) => {
      sent.push(...Object.keys(request.headers));
      response.writeHead(200, { "content-type": "text/plain", "set-cookie": "a=b" }).end("hello");
    });
    await read(`http://${HOST}/`);
    expect(textOf(await read(`http://${HOST}/`))).toBe(`URL: http://${HOST}/\n\nhello`);
    expect([...new Set(sent)].sort()).toEqual([
      "accept",
      "accept-encoding",
      "connection",
      "host",
      "user-agent",
    ]);
  });

  const NOT_PUBLIC = [
    "http://127.0.0.1/",
    "http://2130706433/",
    "http://0x7f.1/",
    "http://0177.0.0.1/",
    "http://localhost/",
    "http://[::1]/",
    "http://[::ffff:127.0.0.1]/",
    "http://[::ffff:7f00:1]/",
    "http://[64:ff9b::7f00:1]/",
    "http://[fd00::1]/",
    "http://[fe80::1]/",
    "http://[2002:7f00:1::]/",
    "http://169.254.169.254/latest/meta-data",
    "http://100.100.100.200/",
    "http://10.1.2.3/",
    "http://172.16.0.1/",
    "http://192.168.1.1/",
    "http://100.64.0.1/",
    "http://192.0.2.1/",
    "http://0.0.0.0/",
    "http://inside.example.com/",
    "http://loop.example.com/",
    "http://mapped.example.com/",
    "http://metadata.example.com/",
    "http://carrier.example.com/",
    "https://unique.example.com/",
    "http://user:canary@pages.example.com/",
    "http://pages.example.com:25/",
    "file:///etc/passwd",
    "ftp://pages.example.com/",
    "data:text/plain,x",
    "http://denied.example.org/",
  ];

  test("refuses whatever is not of the public internet, however it is spelled, without a connection", async () => {
    const sessions = await Promise.all([0, 1, 2].map(() => rig.newSession()));
    const results = await Promise.all(NOT_PUBLIC.map((url, at) => read(url, sessions[at % 3])));
    for (const [at, result] of results.entries()) {
      const told = { is_error: true, failure: { part: "proxy", reason: "URL_NOT_ALLOWED" } };
      expect([NOT_PUBLIC[at], result]).toEqual([NOT_PUBLIC[at], expect.objectContaining(told)]);
      expect(textOf(result)).toMatch(/^url_not_allowed: /);
      expect(textOf(result)).not.toContain("canary");
    }
    expect(web.connected).toEqual([]);
  });

  test("judges every hop of a redirect anew, and asks no more than five of them", async () => {
    const to =
      (location: string): RequestListener =>
      (_, response) =>
        void response.writeHead(302, { location }).end();
    page(HOST, "/moved", to("http://other.example.org/here"));
    page("other.example.org", "/here", html("<p>here</p>"));
    page(HOST, "/in", to("http://inside.example.com/secret"));
    page(HOST, "/meta", to("http://169.254.169.254/latest"));
    page(HOST, "/file", to("file:///etc/passwd"));
    page(HOST, "/user", to(`http://a:b@${HOST}/`));
    page(HOST, "/loop", to("/loop"));
    expect(textOf(await read(`http://${HOST}/moved`))).toBe(
      `URL: http://other.example.org/here\nRedirected from: http://${HOST}/moved\n\nhere`,
    );
    for (const path of ["in", "meta", "file", "user"])
      expect(textOf(await read(`http://${HOST}/${path}`))).toMatch(/^url_not_allowed: /);
    expect(textOf(await read(`http://${HOST}/loop`))).toMatch(/^url_not_accessible: .*again and again/);
    expect(web.seen.filter((place) => place.endsWith("/loop"))).toHaveLength(6);
    expect(web.seen.filter((place) => /inside|169/.test(place))).toEqual([]);
    const bounded = await rig.newSession({ fetch: { allowedDomains: [HOST] } });
    expect(textOf(await read(`http://${HOST}/moved`, bounded))).toMatch(
      /^url_not_allowed: other.example.org/,
    );
  });

  test("reads what its agent's lists allow, and what is below", async () => {
    for (const host of [HOST, `docs.${HOST}`, "other.example.org"]) page(host, "/", html("<p>x</p>"));
    const kept = async (toolset: object) => {
      const of = await rig.newSession({ fetch: toolset });
      const hosts = [HOST, `docs.${HOST}`, "other.example.org"];
      const results = await Promise.all(hosts.map((host) => read(`http://${host}/`, of)));
      return hosts.filter((_, at) => !results[at]!.is_error);
    };
    expect(await kept({ allowedDomains: [HOST] })).toEqual([HOST, `docs.${HOST}`]);
    expect(await kept({ allowedDomains: [`docs.${HOST}`] })).toEqual([`docs.${HOST}`]);
    expect(await kept({ blockedDomains: [HOST] })).toEqual(["other.example.org"]);
  });

  test("cuts what is huge, also when it was sent small, and says so", async () => {
    const huge = Buffer.alloc(12 * 1024 * 1024, "a ");
    const send =
      (encoding: string, body: Buffer): RequestListener =>
      (_, response) =>
        void response
          .writeHead(200, { "content-type": "text/plain", "content-encoding": encoding })
          .end(body);
    page(HOST, "/plain", send("identity", huge));
    page(HOST, "/gzip", send("gzip", gzipSync(huge)));
    page(
      HOST,
      "/br",
      send("br", brotliCompressSync(huge, { params: { [constants.BROTLI_PARAM_QUALITY]: 1 } })),
    );
    for (const path of ["plain", "gzip", "br"]) {
      const text = textOf(await read(`http://${HOST}/${path}`));
      expect(text.length).toBeLessThan(100_000);
      expect(text).toMatch(
        /\[The page was cut: 95000 of \d+ characters of its text are shown; the page itself was read in part\.\]$/,
      );
    }
    page(HOST, "/broken", send("gzip", Buffer.from("no gzip")));
    expect(textOf(await read(`http://${HOST}/broken`))).toMatch(/^url_not_accessible: /);
    page(HOST, "/packed", send("zstd", Buffer.from("x")));
    expect(textOf(await read(`http://${HOST}/packed`))).toMatch(/^unsupported_content_type: /);
    page(HOST, "/long", html(`<p>${"word ".repeat(1_000)}</p>`));
    const short = await rig.newSession({ fetch: { maxContentTokens: 50 } });
    expect(textOf(await read(`http://${HOST}/long`, short))).toMatch(
      /\[The page was cut: 200 of 4999 characters/,
    );
  });

  test("says plainly what it does not read, and what a page that is not there says", async () => {
    page(
      HOST,
      "/a.png",
      (_, response) =>
        void response.writeHead(200, { "content-type": "image/png", "content-length": "4" }).end("none"),
    );
    page(HOST, "/blob", (_, response) => void response.writeHead(200).end(Buffer.from([1, 0, 2])));
    expect(textOf(await read(`http://${HOST}/a.png`))).toBe(
      `unsupported_content_type: http://${HOST}/a.png is no text and no PDF but image/png, 4 bytes; images and other binary files are not read`,
    );
    expect(textOf(await read(`http://${HOST}/blob`))).toMatch(/is no text and no PDF but binary/);
    expect(textOf(await read(`http://${HOST}/none`))).toBe(
      `url_not_accessible: http://${HOST}/none answered with status 404:\nthere is no such page`,
    );
    expect(textOf(await session.call("web_fetch", {}))).toBe("invalid_tool_input: url is required");
    expect(textOf(await read("pages.example.com"))).toMatch(/^invalid_tool_input: /);
    expect(textOf(await read("http://nowhere.example.net/"))).toMatch(/^url_not_accessible: /);
  });

  test("is ended by its brain while a page keeps it waiting, and by nobody older", async () => {
    page(HOST, "/slow", (_, response) => {
      response.writeHead(200, { "content-type": "text/html" });
      response.write("<p>at first");
    });
    const of = await rig.newSession();
    const toolUseId = await of.uses("web_fetch", { url: `http://${HOST}/slow` });
    const token = await of.taken();
    const running = of.post(toolUseId, token);
    await eventually(() => web.seen.length > 0);
    const end = (as: string) =>
      fetch(`${rig.proxy.proxyUrl}/web/${of.id}/${toolUseId}`, {
        method: "DELETE",
        headers: { authorization: `Bearer ${as}` },
      });
    expect((await end(of.token)).status).toBe(404);
    expect((await end(token)).status).toBe(202);
    expect(await running).toBe(200);
    expect(await of.result(toolUseId)).toMatchObject({
      is_error: true,
      failure: { part: "client", reason: "CANCELLED" },
    });
  });
});

describe("web_search", () => {
  const result = (url: string, more: object = {}) => ({
    url,
    title: "A title",
    content: "An excerpt.",
    ...more,
  });
  const answers = (...results: object[]) => {
    answer = { status: 200, body: JSON.stringify({ results }) };
  };

  test("asks the provider with its key, which goes nowhere else, and gives what it found", async () => {
    answers(
      result("https://pages.example.com/a"),
      result("https://b.example.com/", { content: `echo ${KEY}`, title: "" }),
    );
    const place = { city: "Bern", country: "CH", timezone: "Europe/Zurich" };
    const of = await rig.newSession({ search: { userLocation: place } });
    const found = await of.call("web_search", { query: " how long to steep tea " });
    expect(asked).toMatchObject([
      {
        headers: { authorization: `Bearer ${KEY}` },
        body: { query: "how long to steep tea", max_results: 10, user_location: place },
      },
    ]);
    const block = (source: string, title: string, text: string) => ({
      type: "search_result",
      ...{ source, title },
      content: [{ type: "text", text }],
      citations: { enabled: false },
    });
    expect(found.content).toEqual([
      block("https://pages.example.com/a", "A title", "An excerpt."),
      block("https://b.example.com/", "b.example.com", "echo [redacted]"),
    ]);
    expect(found).toMatchObject({ is_error: false, server_tool_use: { web_search_requests: 1 } });
  });

  test("counts each search that was answered, at ten dollars a thousand, in session and budget", async () => {
    const of = await rig.newSession();
    for (let made = 0; made < 3; made++) await of.call("web_search", { query: "x" });
    answer = { status: 500, body: KEY };
    const failed = await of.call("web_search", { query: "x" });
    expect(failed).toMatchObject({ is_error: true });
    expect(textOf(failed)).toBe(
      "unavailable: the search provider of this installation answered with status 500",
    );
    const { session: standing } = await rig.vault.home.sessions.getSession({ sessionId: of.id });
    expect(standing!.usage).toMatchObject({ webSearchRequests: 3n, listCostNanoUsd: 30_000_000n });
  });

  test("leaves out what its agent's lists do not allow, without a word, and tells the provider of them", async () => {
    answers(
      result("https://pages.example.com/docs/a"),
      result("https://pages.example.com/docsish"),
      result("https://other.example.org/"),
      result("javascript:alert(1)"),
      result("no url"),
    );
    const of = await rig.newSession({ search: { allowedDomains: ["pages.example.com/docs"] } });
    const found = await of.call("web_search", { query: "x" });
    expect(found.content.map(({ source }) => source)).toEqual(["https://pages.example.com/docs/a"]);
    expect(asked[0]!.body).toMatchObject({ include_domains: ["pages.example.com/docs"] });
    const blocking = await rig.newSession({ search: { blockedDomains: ["pages.example.com"] } });
    const rest = await blocking.call("web_search", { query: "x" });
    expect(rest.content.map(({ source }) => source)).toEqual(["https://other.example.org/"]);
  });

  test.each([
    ["no JSON", "<html>"],
    ["no results", '{"results":null}'],
    ["more than anybody reads", `{"results":[{"content":"${"x".repeat(3 * 1024 * 1024)}"}]}`],
  ])("that is answered with %s fails, and repeats nothing of it", async (_, body) => {
    answer = { status: 200, body };
    expect(textOf(await session.call("web_search", { query: "x" }))).toBe(
      "unavailable: the search provider of this installation gave an answer that is none",
    );
  });
});

describe("calls of web tools", () => {
  test("are those that the log has: of the session, its newest brain, its agent's tools, and not refused", async () => {
    page(HOST, "/", html("<p>x</p>"));
    const input = { url: `http://${HOST}/` };
    const other = await rig.newSession({ tools: { web_search: { disabled: true } } });
    const statusOf = async (name: string, more: object, of = session) =>
      of.post(await of.uses(name, input, more));
    expect(await statusOf("web_fetch", { runs_in: undefined })).toBe(400);
    expect(await statusOf("bash", {})).toBe(400);
    expect(await statusOf("web_fetch", { evaluated_permission: "deny" })).toBe(400);
    expect(await statusOf("web_search", {}, other)).toBe(400);
    expect(await session.post("sevt_nothing")).toBe(404);
    const toolUseId = await session.uses("web_fetch", input);
    expect(await session.post(toolUseId, other.token)).toBe(403);
    expect(await session.post(toolUseId, "none")).toBe(401);
    const fenced = await rig.newSession();
    const late = await fenced.uses("web_fetch", input);
    await fenced.taken();
    expect(await fenced.post(late)).toBe(409);
    expect(web.seen).toEqual([]);
  });

  test("are sent again where a proxy died with them, for they only read, and get one result (X3)", async () => {
    page(HOST, "/", html("<p>again</p>"));
    const toolUseId = await session.uses("web_fetch", { url: `http://${HOST}/` });
    await session.begin(toolUseId);
    expect(await Promise.all([session.post(toolUseId), session.post(toolUseId)])).toEqual([200, 200]);
    expect(web.seen).toHaveLength(1);
    expect(textOf((await session.result(toolUseId))!)).toContain("again");
  });

  test("of a thread are bounded by the agents above it, too", async () => {
    for (const host of [HOST, `docs.${HOST}`]) page(host, "/", html("<p>x</p>"));
    const above = await rig.newSession({ fetch: { blockedDomains: [`docs.${HOST}`] } });
    const thread = await rig.newSession({ fetch: { allowedDomains: [HOST] } });
    await rig.vault.database
      .pool()
      .query("update sessions set parent_session_id = $2, root_session_id = $2 where session_id = $1", [
        thread.id,
        above.id,
      ]);
    expect((await read(`http://${HOST}/`, thread)).is_error).toBe(false);
    expect(textOf(await read(`http://docs.${HOST}/`, thread))).toMatch(/^url_not_allowed: /);
    expect(textOf(await read("http://other.example.org/", thread))).toMatch(/^url_not_allowed: /);
  });
});
