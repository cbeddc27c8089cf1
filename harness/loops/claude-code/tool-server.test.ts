import { describe, expect, it } from "vitest";
import type { Json } from "../../event-payload.ts";
import type { CatalogueTool, ToolCatalogue } from "../../tool-catalogue.ts";
import { catalogueName, namedTools } from "./tool-names.ts";
import { ToolServer, type ToolTransport } from "./tool-server.ts";

const tool = (modelName: string, inputSchema = `{"type":"object","properties":{"a":{"type":"string"}}}`) =>
  ({ modelName, description: `Runs ${modelName}.`, inputSchema }) as CatalogueTool;
const catalogue = (...offered: CatalogueTool[]) => ({ offered }) as unknown as ToolCatalogue;

async function ask(server: ToolServer, ...messages: Json[]) {
  const sent: Json[] = [];
  const transport: ToolTransport = {
    start: async () => {},
    send: async (message) => void sent.push(message),
    close: async () => {},
  };
  await server.connect(transport);
  for (const message of messages) transport.onmessage?.(message);
  await new Promise((resolve) => setImmediate(resolve));
  return sent;
}

describe("the session's tools", () => {
  it("are offered as an MCP server, and answered with the results that the log has", async () => {
    const resultOf = async (id: string) => ({
      content: [{ type: "text", text: `result of ${id}` }],
      isError: false,
    });
    const server = new ToolServer(namedTools(catalogue(tool("bash"), tool("odd", "{}"))), resultOf);
    const params = { name: "bash", arguments: {}, _meta: { "claudecode/toolUseId": "toolu_7" } };
    const sent = await ask(
      server,
      { jsonrpc: "2.0", id: 1, method: "initialize", params: { protocolVersion: "2025-06-18" } },
      { jsonrpc: "2.0", method: "notifications/initialized" },
      { jsonrpc: "2.0", id: 2, method: "tools/list" },
      { jsonrpc: "2.0", id: 3, method: "tools/call", params },
      { jsonrpc: "2.0", id: 4, method: "resources/list" },
    );
    const byId = new Map(sent.map((message) => [message.id, message]));
    expect(byId.size).toBe(4);
    expect(byId.get(1)?.result).toMatchObject({ protocolVersion: "2025-06-18", capabilities: { tools: {} } });
    expect(byId.get(2)?.result).toHaveProperty("tools", [
      { name: "bash", description: "Runs bash.", inputSchema: JSON.parse(tool("bash").inputSchema) },
      { name: "odd", description: "Runs odd.", inputSchema: { type: "object" } },
    ]);
    expect(byId.get(3)?.result).toEqual({
      content: [{ type: "text", text: "result of toolu_7" }],
      isError: false,
    });
    expect(byId.get(4)?.error).toMatchObject({ code: -32601 });
  });

  it("have names that fit with the server's, and lead back to the catalogue's", () => {
    const long = "x".repeat(128);
    const named = namedTools(catalogue(tool("bash"), tool(long)));
    expect(named[1]!.name).toHaveLength(100);
    expect(catalogueName(`mcp__tendon__${named[1]!.name}`, named)).toBe(long);
    expect(catalogueName("mcp__tendon__bash", named)).toBe("bash");
    expect(catalogueName("Bash", named)).toBe("Bash");
  });
});
