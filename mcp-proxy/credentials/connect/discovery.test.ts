/** Where metadata is looked for, in which order: as MCP says, and as the client of the official SDK does. */
import { discoverOAuthServerInfo } from "@modelcontextprotocol/sdk/client/auth.js";
import { expect, test } from "vitest";
import { systemClock } from "../../../kit/clock.ts";
import type { OutboundFetch } from "../../outbound/fetch.ts";
import { discover } from "./discovery.ts";
import { FarSide } from "./far-side.ts";

const SERVER = "https://mcp.example.com/notes/mcp";
const ISSUER = "https://login.example.com/tenant1";
const RESOURCE = "https://mcp.example.com/.well-known/oauth-protected-resource";
const resource = (of: string, issuer = ISSUER) => ({ resource: of, authorization_servers: [issuer] });
const metadata = (issuer: string) => ({
  issuer,
  authorization_endpoint: "https://login.example.com/authorize",
  token_endpoint: "https://login.example.com/token",
  response_types_supported: ["code"],
  code_challenge_methods_supported: ["S256"],
  // OpenID asks for more, and the SDK with it.
  jwks_uri: "https://login.example.com/keys",
  subject_types_supported: ["public"],
  id_token_signing_alg_values_supported: ["RS256"],
});

/** A far side that has these documents and nothing else; `asked` are the documents that were asked for. */
function farSide(documents: Readonly<Record<string, object>>, challenge?: string) {
  const asked: string[] = [];
  const fetch: OutboundFetch = async (url, { method = "GET" } = {}) => {
    if (method !== "GET") {
      const headers = challenge === undefined ? {} : { "www-authenticate": challenge };
      return new Response(null, { status: 401, headers });
    }
    asked.push(String(url));
    const found = documents[String(url)];
    return found === undefined ? new Response("<html>", { status: 404 }) : Response.json(found);
  };
  return { asked, fetch };
}

const LOGIN = "https://login.example.com";
const AT_PATH = { [`${RESOURCE}/notes/mcp`]: resource(SERVER) };

test.each<[string, string, Record<string, object>, string?]>([
  [
    "everything is where it is looked for first",
    SERVER,
    { ...AT_PATH, [`${LOGIN}/.well-known/oauth-authorization-server/tenant1`]: metadata(ISSUER) },
  ],
  [
    "the authorization server speaks OpenID, with its path behind",
    SERVER,
    { ...AT_PATH, [`${LOGIN}/.well-known/openid-configuration/tenant1`]: metadata(ISSUER) },
  ],
  [
    "the authorization server speaks OpenID, with its path before",
    SERVER,
    { ...AT_PATH, [`${LOGIN}/tenant1/.well-known/openid-configuration`]: metadata(ISSUER) },
  ],
  [
    "the server's metadata is at its origin",
    SERVER,
    {
      [RESOURCE]: resource("https://mcp.example.com/notes"),
      [`${LOGIN}/.well-known/oauth-authorization-server/tenant1`]: metadata(ISSUER),
    },
  ],
  [
    "neither has a path",
    "https://mcp.example.com/",
    {
      [RESOURCE]: resource("https://mcp.example.com", `${LOGIN}/`),
      [`${LOGIN}/.well-known/openid-configuration`]: metadata(LOGIN),
    },
  ],
  [
    "the server's URL has a query and ends with a slash",
    `${SERVER}/?a=b`,
    {
      [`${RESOURCE}/notes/mcp?a=b`]: resource(SERVER),
      [`${LOGIN}/.well-known/oauth-authorization-server/tenant1`]: metadata(ISSUER),
    },
  ],
  [
    "its challenge names its metadata",
    SERVER,
    {
      "https://mcp.example.com/about": resource(SERVER),
      [`${LOGIN}/.well-known/oauth-authorization-server/tenant1`]: metadata(ISSUER),
    },
    "https://mcp.example.com/about",
  ],
  [
    "it publishes nothing, and is its own authorization server",
    SERVER,
    { "https://mcp.example.com/.well-known/oauth-authorization-server": metadata("https://mcp.example.com") },
  ],
])(
  "the same documents are asked for as by the official SDK when %s",
  async (_, serverUrl, documents, named) => {
    const here = farSide(documents, named && `Bearer resource_metadata="${named}"`);
    const deps = { fetch: here.fetch, clock: systemClock };
    const far = new FarSide(deps, serverUrl);
    const found = await discover(far, here.fetch, { serverUrl, issuer: "" });
    const there = farSide(documents);
    const info = await discoverOAuthServerInfo(serverUrl, {
      fetchFn: (url, init) => there.fetch(String(url), init as object),
      ...(named !== undefined && { resourceMetadataUrl: new URL(named) }),
    });
    expect(here.asked).toEqual(there.asked);
    expect(found.server.issuer).toBe(info.authorizationServerMetadata!.issuer);
    expect(found.resource).toBe(info.resourceMetadata?.resource ?? serverUrl);
  },
);

test("a server behind TLS leads nowhere without it, and one without TLS may", async () => {
  const plain = { [`${RESOURCE}/notes/mcp`]: resource(SERVER, "http://login.example.com") };
  const { fetch } = farSide(plain);
  const deps = { fetch, clock: systemClock };
  const tried = discover(new FarSide(deps, SERVER), fetch, { serverUrl: SERVER, issuer: "" });
  await expect(tried).rejects.toMatchObject({ step: "discovery", problem: "bad_metadata" });
  expect(new FarSide(deps, "http://10.0.0.1/mcp").usableUrl("http://10.0.0.2/token")?.host).toBe("10.0.0.2");
  for (const text of ["javascript:alert(1)", "https://a:b@c.example.com", "https://c.example.com/#x", 1, "x"])
    expect(new FarSide(deps, "http://10.0.0.1/mcp").usableUrl(text)).toBeUndefined();
});

test("a far side that takes its time is left after 10 s, and all of it after 40 s", async () => {
  const waits: number[] = [];
  let nowMs = 0;
  const clock = {
    ...systemClock,
    monotonicMs: () => nowMs,
    after(delayMs: number, run: () => void) {
      waits.push(delayMs);
      nowMs += delayMs;
      run();
      return () => {};
    },
  };
  const fetch: OutboundFetch = (_url, request) => Promise.reject(request?.signal?.reason);
  const far = new FarSide({ fetch, clock }, SERVER);
  for (let n = 0; n < 6; n++)
    await expect(far.ask("discovery", new URL(SERVER), {})).rejects.toMatchObject({ problem: "timeout" });
  expect(waits).toEqual([10_000, 10_000, 10_000, 10_000, 0, 0]);
});
