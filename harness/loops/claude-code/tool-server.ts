/**
 * The session's tools as an MCP server within this process: the only tools that the SDK has. It runs nothing: a call is
 * answered with the result that the log has for it.
 */
import { isObject, type Json, parseObject, stringOf } from "../../event-payload.ts";
import type { NamedTool } from "./tool-names.ts";
import { SERVER_NAME } from "./tool-names.ts";

/** What an MCP client and this server pass to each other. */
export interface ToolTransport {
  start(): Promise<void>;
  send(message: Json): Promise<void>;
  close(): Promise<void>;
  onmessage?: ((message: Json) => void) | undefined;
}

export interface McpResult {
  readonly content: readonly Json[];
  readonly isError: boolean;
}

/** Under this name a call says the model's id of it. */
const TOOL_USE_ID = "claudecode/toolUseId";
const METHOD_NOT_FOUND = -32601;
const INTERNAL_ERROR = -32603;

export class ToolServer {
  private readonly tools: readonly NamedTool[];
  private readonly resultOf: (toolUseId: string) => Promise<McpResult>;
  private transport: ToolTransport | undefined;

  constructor(tools: readonly NamedTool[], resultOf: (toolUseId: string) => Promise<McpResult>) {
    this.tools = tools;
    this.resultOf = resultOf;
  }

  async connect(transport: ToolTransport): Promise<void> {
    this.transport = transport;
    transport.onmessage = (message) => void this.answer(message);
    await transport.start();
  }

  async close(): Promise<void> {
    await this.transport?.close();
  }

  private async answer({ id, method, params }: Json): Promise<void> {
    if (id === undefined || typeof method !== "string") return;
    const reply: Json = { jsonrpc: "2.0", id };
    try {
      const result = await this.result(method, isObject(params) ? params : {});
      if (result === undefined) reply.error = { code: METHOD_NOT_FOUND, message: `no method ${method}` };
      else reply.result = result;
    } catch {
      reply.error = { code: INTERNAL_ERROR, message: "the call has no result" };
    }
    await this.transport?.send(reply).catch(() => {});
  }

  private async result(method: string, params: Json): Promise<Json | undefined> {
    switch (method) {
      case "initialize":
        return {
          protocolVersion: stringOf(params.protocolVersion),
          capabilities: { tools: {} },
          serverInfo: { name: SERVER_NAME, version: "1" },
        };
      case "ping":
        return {};
      case "tools/list":
        return { tools: this.tools.map(toolOf) };
      case "tools/call": {
        const meta = isObject(params._meta) ? params._meta : {};
        return { ...(await this.resultOf(stringOf(meta[TOOL_USE_ID]))) };
      }
      default:
        return undefined;
    }
  }
}

function toolOf({ name, tool }: NamedTool): Json {
  const schema = parseObject(tool.inputSchema);
  const inputSchema = schema.type === "object" ? schema : { ...schema, type: "object" };
  return { name, description: tool.description, inputSchema };
}
