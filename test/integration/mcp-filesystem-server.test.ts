/** The reference server for files, which speaks over its standard input and output: through bridge and proxy as directly. */
import { mkdirSync, mkdtempSync, realpathSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { afterAll, beforeAll, expect, test } from "vitest";
import { type McpRig, SERVER, startMcpRig } from "../kit/mcp-rig.ts";
import { type StdioBridge, startStdioBridge } from "../kit/stdio-bridge.ts";

type Transport = Parameters<Client["connect"]>[0];

const PROGRAM = fileURLToPath(
  new URL("../../node_modules/@modelcontextprotocol/server-filesystem/dist/index.js", import.meta.url),
);
const place = realpathSync(mkdtempSync(join(tmpdir(), "mcp-files-")));
const directory = join(place, "allowed");
const args = [PROGRAM, directory];

let rig: McpRig;
let bridge: StdioBridge;
beforeAll(async () => {
  mkdirSync(directory);
  bridge = await startStdioBridge(process.execPath, args);
  rig = await startMcpRig();
});
afterAll(async () => {
  await rig?.stop();
  await bridge?.stop();
  rmSync(place, { recursive: true, force: true });
});

/** What a client sees of work with files, in an empty directory. */
async function workOf(transport: Transport) {
  rmSync(directory, { recursive: true, force: true });
  mkdirSync(directory);
  const client = new Client({ name: "judge", version: "1" });
  await client.connect(transport);
  const call = (name: string, input: Record<string, unknown>) => client.callTool({ name, arguments: input });
  const path = join(directory, "größe.txt");
  const seen = [
    await client.listTools(),
    await call("write_file", { path, content: "one\ntwo\n\u2028grüße\n" }),
    await call("edit_file", { path, edits: [{ oldText: "two", newText: "2" }] }),
    await call("read_text_file", { path }),
    await call("create_directory", { path: join(directory, "below") }),
    await call("move_file", { source: path, destination: join(directory, "below", "b.txt") }),
    await call("directory_tree", { path: directory }),
    await call("search_files", { path: directory, pattern: "**/*.txt" }),
    await call("read_text_file", { path: join(place, "outside.txt") }),
    await call("write_file", { path }),
  ];
  await client.close();
  return seen;
}

test("answers the same through bridge and proxy as over its pipes, also where it refuses", async () => {
  const direct = await workOf(
    new StdioClientTransport({ command: process.execPath, args, stderr: "ignore" }),
  );
  const { id, token } = await rig.newSession({ servers: { [SERVER]: bridge.url } });
  const url = new URL(`${rig.proxy.proxyUrl}/mcp/${id}/${encodeURIComponent(SERVER)}`);
  const requestInit = { headers: { authorization: `Bearer ${token}` } };
  // The library's types know no exact optional properties.
  const through = await workOf(new StreamableHTTPClientTransport(url, { requestInit }) as Transport);
  expect(through).toEqual(direct);
  expect(JSON.stringify(through[3])).toContain("grüße");
  expect(through[8]).toMatchObject({ isError: true });
});
