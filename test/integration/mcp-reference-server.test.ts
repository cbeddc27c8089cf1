/** The reference MCP server through the proxy, against the same asked directly: same answers, and everything else that MCP sends passes. */
import { type ChildProcess, spawn } from "node:child_process";
import { fileURLToPath } from "node:url";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { CreateMessageRequestSchema, ElicitRequestSchema } from "@modelcontextprotocol/sdk/types.js";
import { afterAll, beforeAll, expect, test } from "vitest";
import { eventually } from "../kit/eventually.ts";
import { freePort } from "../kit/free-port.ts";
import { type McpRig, SERVER, startMcpRig } from "../kit/mcp-rig.ts";

const EVERYTHING = fileURLToPath(
  new URL("../../node_modules/@modelcontextprotocol/server-everything/dist/index.js", import.meta.url),
);

let rig: McpRig;
let server: ChildProcess;
let url = "";

beforeAll(async () => {
  const port = await freePort();
  url = `http://127.0.0.1:${port}/mcp`;
  server = spawn(process.execPath, [EVERYTHING, "streamableHttp"], {
    env: { PATH: process.env.PATH, PORT: String(port) },
    stdio: "ignore",
  });
  rig = await startMcpRig();
  await eventually(() => fetch(url).catch(() => undefined), { withinMs: 60_000 });
});
afterAll(async () => {
  await rig?.stop();
  const ended = new Promise((resolve) => server.once("exit", resolve));
  server.kill("SIGKILL");
  await ended;
});

async function connect(target: string, token = "") {
  const capabilities = { sampling: {}, elicitation: {}, roots: {} };
  const client = new Client({ name: "judge", version: "1" }, { capabilities });
  client.setRequestHandler(CreateMessageRequestSchema, async () => ({
    role: "assistant" as const,
    model: "m",
    content: { type: "text" as const, text: "sampled" },
  }));
  client.setRequestHandler(ElicitRequestSchema, async () => ({ action: "decline" as const }));
  const requestInit = { headers: { authorization: `Bearer ${token}` } };
  const transport = new StreamableHTTPClientTransport(new URL(target), { requestInit });
  // The library's types know no exact optional properties.
  await client.connect(transport as Parameters<Client["connect"]>[0]);
  return { client, transport };
}

/** What a client can see of a server, with the numbers of progress that came. */
async function everythingOf(target: string, token?: string) {
  const { client, transport } = await connect(target, token);
  const progress: number[] = [];
  const { tools } = await client.listTools();
  const names = tools.map(({ name }) => name).sort();
  const find = (part: string) => names.find((name) => name.includes(part))!;
  const long = { name: find("long-running"), arguments: { duration: 0.3, steps: 3 } };
  const resources = await client.listResources();
  const seen = {
    names,
    echo: await client.callTool({ name: "echo", arguments: { message: "grüße\u2028" } }),
    long: await client.callTool(long, undefined, { onprogress: ({ progress: step }) => progress.push(step) }),
    sampled: await client.callTool({ name: find("sampling"), arguments: { prompt: "p", maxTokens: 5 } }),
    elicited: await client.callTool({ name: find("elicitation"), arguments: {} }),
    prompts: await client.listPrompts(),
    resources: resources.resources.map(({ uri }) => uri).sort(),
    templates: await client.listResourceTemplates(),
    bad: await client.callTool({ name: "echo", arguments: {} }).catch((error: Error) => error.message),
    progress,
  };
  await transport.terminateSession();
  await client.close();
  return seen;
}

test("answers the same through the proxy, with progress, sampling and elicitation in between", async () => {
  const session = await rig.newSession({ servers: { [SERVER]: url } });
  const direct = await everythingOf(url);
  const through = await everythingOf(
    `${rig.proxy.proxyUrl}/mcp/${session.id}/${encodeURIComponent(SERVER)}`,
    session.token,
  );
  expect(through).toEqual(direct);
  expect(through.progress.length).toBe(3);
  expect(JSON.stringify(through.sampled)).toContain("sampled");
  expect(JSON.stringify(through.elicited)).toMatch(/declin/i);
});

test("a call that its client gives up leaves its MCP session as it was", async () => {
  const session = await rig.newSession({ servers: { [SERVER]: url } });
  const target = `${rig.proxy.proxyUrl}/mcp/${session.id}/${encodeURIComponent(SERVER)}`;
  const { client } = await connect(target, session.token);
  const { tools } = await client.listTools();
  const name = tools.find((tool) => tool.name.includes("long-running"))!.name;
  const gone = new AbortController();
  const running = client.callTool({ name, arguments: { duration: 30, steps: 30 } }, undefined, {
    signal: gone.signal,
  });
  gone.abort("enough");
  await expect(running).rejects.toThrow(/enough/);
  expect(await client.callTool({ name: "echo", arguments: { message: "still" } })).toMatchObject({
    content: [{ text: "Echo: still" }],
  });
  await client.close();
});
