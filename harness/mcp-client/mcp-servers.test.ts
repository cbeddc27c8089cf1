import { Readable } from "node:stream";
import { expect, test } from "vitest";
import { FakeClock } from "../../test/kit/fake-clock.ts";
import type { Lease } from "../lease.ts";
import { newSessionState } from "../session-state.ts";
import type { SessionView } from "../session-view.ts";
import { McpServers } from "./mcp-servers.ts";
import type { ProxyRequest, ProxyResponse, SendToProxy } from "./proxy-request.ts";

const PROXY_URL = "http://127.0.0.1:7401";
const TOOLS = [{ name: "note", description: "Notes.", inputSchema: { type: "object" } }];

function answerTo({ body }: ProxyRequest): ProxyResponse {
  const { id, method } = JSON.parse(String(body)) as { id?: string; method: string };
  const result =
    method === "tools/list" ? { tools: TOOLS } : { protocolVersion: "2025-11-25", capabilities: {} };
  const text = id === undefined ? "" : JSON.stringify({ jsonrpc: "2.0", id, result });
  const bytes = Readable.from([text]);
  const headers = { "content-type": "application/json" };
  return { status: id === undefined ? 202 : 200, headers, chunks: bytes, bytes, close: () => {} };
}

function servers(send: SendToProxy, clock: FakeClock, proxyUrl = PROXY_URL): McpServers {
  const held = new AbortController().signal;
  return new McpServers({
    proxyUrl,
    names: ["notes"],
    send,
    lease: { sessionId: "sesn_1", sessionToken: "token", signal: held } as Lease,
    view: { state: newSessionState() } as SessionView,
    clock,
    traceHeaders: () => ({}),
  });
}

/** Moves the clock on until `work` is done. */
async function inTime<T>(clock: FakeClock, work: Promise<T>): Promise<T> {
  let isDone = false;
  const end = () => {
    isDone = true;
  };
  void work.then(end, end);
  while (!isDone) {
    await new Promise(setImmediate);
    await clock.advance(100);
  }
  return work;
}

const refused = () => Promise.reject(Object.assign(new Error("refused"), { code: "ECONNREFUSED" }));

test("tools are asked for again while the proxy starts again", async () => {
  const clock = new FakeClock();
  const backAtMs = clock.monotonicMs() + 10_000;
  const send: SendToProxy = async (request) =>
    clock.monotonicMs() < backAtMs ? refused() : answerTo(request);
  const listed = await inTime(clock, servers(send, clock).list(["notes"], new AbortController().signal));
  expect(listed).toMatchObject([{ name: "notes", tools: [{ name: "note" }] }]);
});

test("a proxy that stays away delays a turn by less than half a minute, and one that nobody knows not at all", async () => {
  const clock = new FakeClock();
  const beganMs = clock.monotonicMs();
  const { signal } = new AbortController();
  const unreachable = [{ name: "notes", problem: { type: "proxy_unreachable" } }];
  expect(await servers(refused, clock, "").list(["notes"], signal)).toMatchObject(unreachable);
  expect(clock.monotonicMs()).toBe(beganMs);
  expect(await inTime(clock, servers(refused, clock).list(["notes"], signal))).toMatchObject(unreachable);
  expect(clock.monotonicMs() - beganMs).toBeLessThan(30_000);
});

test("who waits for a proxy stops when it is told to", async () => {
  const clock = new FakeClock();
  const stop = new AbortController();
  let sent = 0;
  const send: SendToProxy = () => {
    sent += 1;
    if (sent === 3) stop.abort(new Error("interrupted"));
    return refused();
  };
  await expect(inTime(clock, servers(send, clock).list(["notes"], stop.signal))).rejects.toThrow(
    "interrupted",
  );
  expect(sent).toBe(3);
});
