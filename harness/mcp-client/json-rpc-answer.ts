/** Reads the answer to one JSON-RPC request, from JSON or from a stream of server-sent events. */

import { McpProblem } from "./mcp-problem.ts";
import type { ProxyResponse } from "./proxy-request.ts";

type Json = Readonly<Record<string, unknown>>;

/** Of one answer; a stream may hold notifications beside it. */
const MAX_CHARS = 8 * 1024 * 1024;

/** The message that answers `id`. `onRequest` is told of what the server asks meanwhile. */
export async function readAnswer(
  response: ProxyResponse,
  id: number,
  onRequest: (request: Json) => void,
): Promise<Json> {
  const isStream = String(response.headers["content-type"] ?? "").startsWith("text/event-stream");
  try {
    if (!isStream) return messageOf(await wholeText(response), id) ?? noAnswer();
    for await (const data of eventsOf(response)) {
      const answer = messageOf(data, id);
      if (answer !== undefined) return answer;
      const message = parsed(data);
      if (message?.method !== undefined && message.id !== undefined) onRequest(message);
    }
    return noAnswer();
  } finally {
    response.close();
  }
}

export async function wholeText({ chunks }: Pick<ProxyResponse, "chunks">): Promise<string> {
  let text = "";
  for await (const chunk of chunks) {
    text += chunk;
    if (text.length > MAX_CHARS) throw tooLong();
  }
  return text;
}

async function* eventsOf({ chunks }: ProxyResponse): AsyncGenerator<string> {
  let rest = "";
  for await (const chunk of chunks) {
    const blocks = (rest + chunk).split(/\r\n\r\n|\n\n|\r\r/);
    rest = blocks.pop() ?? "";
    if (rest.length > MAX_CHARS) throw tooLong();
    for (const block of blocks) {
      const lines = block.split(/\r\n|\r|\n/).filter((line) => line.startsWith("data:"));
      if (lines.length > 0) yield lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
    }
  }
}

function messageOf(text: string, id: number): Json | undefined {
  const message = parsed(text);
  const isAnswer = message?.id === id && (message.result !== undefined || message.error !== undefined);
  return isAnswer ? message : undefined;
}

function parsed(text: string): Json | undefined {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Json) : undefined;
  } catch {
    return undefined;
  }
}

function noAnswer(): never {
  throw new McpProblem("mcp_connection_failed_error", "the MCP server did not answer the request");
}

function tooLong(): McpProblem {
  return new McpProblem(
    "mcp_connection_failed_error",
    `the MCP server's answer has more than ${MAX_CHARS} characters`,
  );
}
