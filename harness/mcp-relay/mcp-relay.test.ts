import { createServer, type IncomingMessage, type ServerResponse } from "node:http";
import type { AddressInfo } from "node:net";
import { afterEach, beforeEach, describe, expect, it } from "vitest";
import { createSendToProxy } from "../mcp-client/proxy-request.ts";
import { type McpRelay, type McpRelayOptions, startMcpRelay } from "./mcp-relay.ts";

type Answer = (request: IncomingMessage, response: ServerResponse, body: string) => void;

const sending = createSendToProxy(undefined);
const proxy = createServer(async (request, response) => {
  let body = "";
  for await (const part of request) body += part;
  seen.push({ method: request.method, url: request.url, headers: request.headers, body });
  answer(request, response, body);
});
let seen: Pick<IncomingMessage & { body: string }, "method" | "url" | "headers" | "body">[] = [];
let answer: Answer;
let token = "";
let relay: McpRelay;

const start = async (more: Partial<McpRelayOptions> = {}) => {
  const url = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
  relay = await startMcpRelay({
    access: { url, sessionId: "sesn_1", token: () => token, send: sending.send },
    ...more,
  });
  return relay.urlOf("far side");
};
const post = (url: string, body: object, headers: Record<string, string> = {}) =>
  fetch(url, { method: "POST", headers, body: JSON.stringify(body) });

beforeEach(async () => {
  seen = [];
  token = "first";
  answer = (_, response) => response.writeHead(200, { "content-type": "application/json" }).end("{}");
  await new Promise<void>((resolve) => proxy.listen(0, "127.0.0.1", resolve));
});
afterEach(async () => {
  await relay.close();
  const closed = new Promise((resolve) => proxy.close(resolve));
  proxy.closeAllConnections();
  await closed;
});

describe("the loopback relay", () => {
  it("asks the proxy with the token of the moment, passes the protocol's headers alone, and gives no token away", async () => {
    const url = await start();
    answer = (_, response) =>
      response.writeHead(200, { "mcp-session-id": "m1", "set-cookie": "a=b", authorization: "x" }).end();
    const given = {
      "mcp-method": "ping",
      "tendon-tool-use-id": "sevt_own",
      cookie: "c",
      authorization: "mine",
    };
    const response = await post(url, { method: "ping" }, given);
    token = "renewed";
    await fetch(url);
    expect(seen.map(({ method, url, headers }) => [method, url, headers.authorization])).toEqual([
      ["POST", "/mcp/sesn_1/far%20side", "Bearer first"],
      ["GET", "/mcp/sesn_1/far%20side", "Bearer renewed"],
    ]);
    expect(seen[0]!.headers).toMatchObject({ "mcp-method": "ping" });
    expect(Object.keys(seen[0]!.headers)).not.toContain("tendon-tool-use-id");
    expect(Object.keys(seen[0]!.headers)).not.toContain("cookie");
    expect(response.headers.get("mcp-session-id")).toBe("m1");
    expect(JSON.stringify([...response.headers])).not.toMatch(/first|set-cookie|authorization/);
  });

  it("lets an answer stream, and tells the proxy when its program is gone", async () => {
    const url = await start();
    const gone = new Promise<void>((resolve) => {
      answer = (_, response) => {
        response.writeHead(200, { "content-type": "text/event-stream" }).write("data: 1\n\n");
        response.once("close", () => resolve());
      };
    });
    const leaving = new AbortController();
    const response = await fetch(url, { signal: leaving.signal });
    const { value } = await response.body!.getReader().read();
    expect(Buffer.from(value!).toString()).toBe("data: 1\n\n");
    leaving.abort();
    await gone;
  });

  it("sends a call under the id of its event, and refuses one that nobody recorded", async () => {
    const url = await start({
      recordedAs: ({ serverName, toolName, meta }) =>
        meta.known === true
          ? Promise.resolve(`sevt_${serverName}_${toolName}`)
          : Promise.reject(new Error("nobody knows this call")),
    });
    const call = (known: boolean) => ({
      id: 7,
      method: "tools/call",
      params: { name: "note", _meta: { known } },
    });
    const refused = await post(url, call(false), { "tendon-tool-use-id": "sevt_forged" });
    expect(await refused.json()).toEqual({
      jsonrpc: "2.0",
      id: 7,
      error: { code: -32_600, message: "nobody knows this call" },
    });
    await post(url, call(true));
    expect(seen.map(({ headers }) => headers["tendon-tool-use-id"])).toEqual(["sevt_far side_note"]);
  });

  it("is there for programs that know its path, on this machine, and until it is closed", async () => {
    const url = await start();
    const { origin } = new URL(url);
    expect((await fetch(`${origin}/${"x".repeat(43)}/far%20side`)).status).toBe(404);
    expect((await fetch(`${url}/more`)).status).toBe(404);
    expect((await post(url, {}, { origin: "https://example.com" })).status).toBe(403);
    expect((await fetch(url, { method: "PUT" })).status).toBe(405);
    expect(seen).toEqual([]);
    answer = () => {};
    const hanging = fetch(url).catch(() => "ended");
    await relay.close();
    expect(await hanging).toBe("ended");
    await expect(fetch(url)).rejects.toThrow();
  });

  it("says so where the proxy cannot be reached", async () => {
    const url = await start({
      access: { url: "http://127.0.0.1:1", sessionId: "s", token: () => token, send: sending.send },
    });
    const response = await post(url, { method: "ping" });
    expect([response.status, await response.json()]).toEqual([
      502,
      { type: "error", error: { type: "proxy_unreachable", message: "the proxy cannot be reached" } },
    ]);
  });
});
