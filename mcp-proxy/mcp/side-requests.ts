/** What the proxy asks an MCP server by itself, beside its client's requests. */

import { readAnswer } from "./call-answer.ts";
import { PROBE_WITHIN_MS } from "./liveness.ts";
import type { McpMessage } from "./message.ts";
import type { Exchange, Upstream } from "./upstream.ts";

type Asked = Omit<Exchange, "signal" | "answerWithinMs">;

const LIST_WITHIN_MS = 10_000;
const MAX_PAGES = 20;
const ID = '"tendon-proxy"';

/** Resolves when the server answers anything at all. */
export async function answersProbe(upstream: Upstream, asked: Asked, signal: AbortSignal): Promise<void> {
  const body = Buffer.from(`{"jsonrpc":"2.0","id":${ID},"method":"ping"}`);
  const headers = headersFor(asked, "ping");
  const { response } = await upstream.exchange({
    ...asked,
    headers,
    body,
    signal,
    answerWithinMs: PROBE_WITHIN_MS,
  });
  await response.body?.cancel();
}

/** Whether the tool says of itself that calling it again does no harm. */
export async function mayRepeat(upstream: Upstream, asked: Asked, message: McpMessage): Promise<boolean> {
  let cursor: string | undefined;
  for (let page = 0; page < MAX_PAGES; page++) {
    const meta = message.metaText === undefined ? {} : { _meta: JSON.parse(message.metaText) };
    const params = { ...meta, ...(cursor !== undefined && { cursor }) };
    const body = Buffer.from(
      `{"jsonrpc":"2.0","id":${ID},"method":"tools/list","params":${JSON.stringify(params)}}`,
    );
    const signal = AbortSignal.any([]);
    const headers = headersFor(asked, "tools/list");
    const answer = await upstream.exchange({
      ...asked,
      headers,
      body,
      signal,
      answerWithinMs: LIST_WITHIN_MS,
    });
    const reader = { serverName: asked.server.name, idText: ID, onEvent: async () => {}, onBytes: () => {} };
    const list = JSON.parse((await readAnswer(answer, reader))?.text ?? "{}") as ToolList;
    const tool = list.tools?.find(({ name }) => name === message.toolName);
    if (tool !== undefined)
      return tool.annotations?.readOnlyHint === true || tool.annotations?.idempotentHint === true;
    if (list.nextCursor === undefined) return false;
    cursor = list.nextCursor;
  }
  return false;
}

interface ToolList {
  readonly tools?: readonly {
    readonly name: string;
    readonly annotations?: { readonly readOnlyHint?: boolean; readonly idempotentHint?: boolean };
  }[];
  readonly nextCursor?: string;
}

/** The wire of 2026-07-28 names method and tool in headers, too. */
function headersFor({ headers }: Asked, method: string): Record<string, string> {
  const rest = Object.entries(headers).filter(
    ([name]) => name !== "mcp-name" && !name.startsWith("mcp-param-"),
  );
  const kept = Object.fromEntries(rest);
  return "mcp-method" in kept ? { ...kept, "mcp-method": method } : kept;
}
