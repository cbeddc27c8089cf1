/** The wire without sessions (2026-07-28) through the proxy, with the official SDK on both sides, and with the harness's client. */
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { afterAll, beforeAll, describe, expect, test } from "vitest";
import { McpServerClient } from "../../harness/mcp-client/mcp-server-client.ts";
import { createSendToProxy } from "../../harness/mcp-client/proxy-request.ts";
import { startMcpRelay } from "../../harness/mcp-relay/mcp-relay.ts";
import { startCountingMcpServer } from "../kit/counting-mcp-server.ts";
import { type ReferenceServer, startReferenceServer } from "../kit/mcp-reference/reference-server.ts";
import { type McpRig, type McpSessionOfTest, SERVER, startMcpRig } from "../kit/mcp-rig.ts";
import { bearer } from "../kit/vault-rig.ts";

const SECRET = "canary-modern-wire-1";
const NEVER = new AbortController().signal;
const sending = createSendToProxy(undefined);

let rig: McpRig;
let far: ReferenceServer;
beforeAll(async () => {
  far = await startReferenceServer("newer");
  rig = await startMcpRig();
});
afterAll(async () => {
  sending.close();
  await rig?.stop();
  await far?.stop();
});

const accessOf = ({ id, token }: McpSessionOfTest) => ({
  url: rig.proxy.proxyUrl,
  sessionId: id,
  token: () => token,
  traceHeaders: () => ({}),
  send: sending.send,
});
const newSession = async () => {
  const vaultId = await rig.vault.home.newVault();
  await rig.vault.home.addCredential(vaultId, bearer(far.url), SECRET);
  return rig.newSession({ servers: { [SERVER]: far.url }, vaultIds: [vaultId] });
};

/** What the official client sees. `calling` is told of a tool before its call, which may take several requests. */
async function everythingOf(url: string, calling: (tool: string) => Promise<unknown>) {
  const capabilities = { elicitation: {}, sampling: {}, roots: {} };
  const client = new Client(
    { name: "judge", version: "1" },
    { capabilities, versionNegotiation: { mode: "auto" } },
  );
  client.setRequestHandler("elicitation/create", () => ({
    action: "accept",
    content: { name: "Ada", color: "red" },
  }));
  const changed = new Promise((resolve) =>
    client.setNotificationHandler("notifications/tools/list_changed", () => resolve("changed")),
  );
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  const call = async (name: string, input: Record<string, unknown> = {}) => {
    await calling(name);
    return client.callTool({ name, arguments: input });
  };
  const tools = (await client.listTools()).tools;
  const subscription = await client.listen({ toolsListChanged: true });
  const seen = {
    version: client.getNegotiatedProtocolVersion(),
    tools,
    text: await call("test_simple_text"),
    mixed: await call("test_multiple_content_types"),
    failed: await call("test_error_handling"),
    inHeaders: await call("test_custom_header", { region: "größe" }),
    rounds: await call("test_input_required_result_multi_round"),
    prompt: await client.getPrompt({ name: "test_input_required_result_prompt" }).catch(String),
    resource: await client.readResource({ uri: "test://template/7/data" }),
    changes: [await call("test_trigger_tool_change"), await changed],
  };
  await subscription.close();
  await client.close();
  return seen;
}

describe("the wire of 2026-07-28", () => {
  test("shows the official client the same through relay and proxy as directly, and each call is in the log once", async () => {
    const direct = await everythingOf(far.url, async () => {});
    const before = new Map(far.runs);
    const session = await newSession();
    let toolUseId = "";
    const relay = await startMcpRelay({ access: accessOf(session), recordedAs: async () => toolUseId });
    const used: string[] = [];
    const through = await everythingOf(relay.urlOf(SERVER), async (tool) => {
      toolUseId = await session.uses(tool);
      used.push(toolUseId);
    });
    await relay.close();
    expect(through).toEqual(direct);
    expect(through.version).toBe("2026-07-28");
    expect((await session.results()).map(({ mcp_tool_use_id: id }) => id)).toEqual(used);
    for (const [tool, times] of before) expect([tool, far.runs.get(tool)]).toEqual([tool, times * 2]);
  });

  test("is spoken by harnesses with servers that know no other, and by the next holder of a session at once", async () => {
    const session = await newSession();
    const first = new McpServerClient(accessOf(session), SERVER);
    const tools = await first.listTools(NEVER);
    expect(first.opened).toEqual({ wire: "2026-07-28", mcpSessionId: "" });
    const next = new McpServerClient(accessOf(session), SERVER, first.opened);
    const { inputSchema } = tools.find(({ name }) => name === "test_custom_header")!;
    const call = {
      toolUseId: await session.uses("test_custom_header"),
      name: "test_custom_header",
      inputText: '{"region":"größe"}',
      inputSchema,
    };
    const before = far.runs.get(call.name) ?? 0;
    await Promise.all([next.callTool(call, NEVER), next.callTool(call, NEVER), first.callTool(call, NEVER)]);
    expect(far.runs.get(call.name)).toBe(before + 1);
    expect(await session.results()).toMatchObject([{ content: [{ text: "größe" }], is_error: false }]);
    expect(far.headers()["mcp-session-id"]).toBeUndefined();
  });

  test("shows no secret, whatever a server says, and no call waits for input that no turn can give", async () => {
    const session = await newSession();
    const client = new McpServerClient(accessOf(session), SERVER);
    const call = async (name: string) => {
      const toolUseId = await session.uses(name);
      await client.callTool({ toolUseId, name, inputText: "{}", inputSchema: "{}" }, NEVER);
    };
    await call("whoami");
    expect(far.headers().authorization).toBe(`Bearer ${SECRET}`);
    expect(await session.results()).toMatchObject([{ content: [{ text: "Bearer [redacted]" }] }]);
    // A server may not ask a client for what it does not offer, and says that it must.
    await call("test_missing_capability");
    expect((await session.results())[1]).toMatchObject({ is_error: true });
  });
});

test("servers that know the wire with sessions are spoken to on that one, and are asked for no other", async () => {
  const older = await startCountingMcpServer();
  const session = await rig.newSession({ servers: { [SERVER]: older.url } });
  const client = new McpServerClient(accessOf(session), SERVER);
  expect((await client.listTools(NEVER)).length).toBe(3);
  expect(client.opened.wire).toBe("2025-11-25");
  expect(older.seen).toEqual(["initialize", "notifications/initialized", "tools/list"]);
  // One that refuses both is told by its first word.
  older.answers = (_, response, { id }) => {
    const error = { code: -32_600, message: "not today" };
    response.writeHead(400, { "content-type": "application/json" });
    response.end(JSON.stringify({ jsonrpc: "2.0", id, error }));
    return true;
  };
  const other = new McpServerClient(accessOf(session), SERVER);
  await expect(other.listTools(NEVER)).rejects.toMatchObject({ type: "http_400" });
  expect(older.seen.slice(3)).toEqual(["initialize", "server/discover"]);
  await older.stop();
});
