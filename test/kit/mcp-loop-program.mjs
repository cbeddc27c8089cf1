// A loop's program with an MCP client of its own, which knows nothing of tokens: says what it could reach, and what it was given.
import { createInterface } from "node:readline";
import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";

const write = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
let hello;
for await (const line of createInterface({ input: process.stdin })) {
  const said = JSON.parse(line);
  if (said.type === "hello") hello = said;
  if (said.type !== "step") continue;
  const [{ name, url }] = hello.mcp_servers;
  const client = new Client({ name: "program", version: "1" }, { versionNegotiation: { mode: "auto" } });
  await client.connect(new StreamableHTTPClientTransport(new URL(url)));
  const { contents } = await client.readResource({ uri: "test://static-text" });
  const called = await client.callTool({ name: "test_simple_text" }).catch((error) => error.message);
  await client.close();
  const given = JSON.stringify([process.env, process.argv, hello]);
  write({ type: "message", text: JSON.stringify({ name, url, read: contents[0].text, called, given }) });
  write({ type: "end" });
}
