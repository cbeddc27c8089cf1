/** Results of MCP tools as the log tells them (pure): content blocks that every model API takes. */
import type { FailureOrigin } from "../../kit/errors.ts";
import type { HandEvent } from "../store/hands.ts";

export const MCP_RESULT_EVENT = "agent.mcp_tool_result";

export interface McpResult {
  readonly content: readonly Readonly<Record<string, unknown>>[];
  readonly structuredContent: unknown;
  readonly isError: boolean;
}

/** More text than this is cut in the middle: the first and last parts are what tells most. */
const MAX_TEXT_CHARS = 100_000;
const HEAD_CHARS = 20_000;
/** What model APIs take as an image. */
const IMAGE_TYPES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp"]);
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;

type Block = Readonly<Record<string, unknown>>;

/** Undefined for what is no result of a tool call. Results without `content` (extensions of the protocol) have none. */
export function parseResult(text: string): McpResult | undefined {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (!isRecord(value)) return undefined;
  const { content = [], isError = false, structuredContent } = value;
  if (!Array.isArray(content) || !content.every(isRecord) || typeof isError !== "boolean") return undefined;
  return { content, structuredContent, isError };
}

/** A failure that nobody named is the tool's own. `upstreamMs`: how long the MCP server had the call. */
export function mcpResultEvent(
  toolUseId: string,
  result: McpResult,
  failure: FailureOrigin | undefined,
  upstreamMs?: bigint,
): HandEvent {
  const content = cut(contentBlocks(result));
  const origin = failure ?? { part: "upstream", reason: "TOOL_FAILED" };
  const payload = {
    mcp_tool_use_id: toolUseId,
    content,
    is_error: result.isError,
    ...(result.isError && { failure: origin }),
    ...(upstreamMs !== undefined && { upstream_ms: Number(upstreamMs) }),
  };
  return { type: MCP_RESULT_EVENT, payload: JSON.stringify(payload, wellFormed) };
}

/** The MCP result that stands for an answer which the log has already. */
export function resultOfAnswer(payload: string): string {
  const { content = [], is_error: isError = false } = JSON.parse(payload) as {
    content?: Block[];
    is_error?: boolean;
  };
  const texts = content.filter((block) => block.type === "text");
  return JSON.stringify({ content: texts, isError });
}

function contentBlocks({ content, structuredContent }: McpResult): Block[] {
  const blocks = content.map(contentBlock);
  if (blocks.length > 0 || structuredContent === undefined) return blocks;
  return [textBlock(JSON.stringify(structuredContent))];
}

function contentBlock(block: Block): Block {
  switch (block.type) {
    case "text":
      return textBlock(typeof block.text === "string" ? block.text : "");
    case "image":
      return binaryBlock(block.data, block.mimeType, "an image");
    case "audio":
      return textBlock(`[audio of type ${named(block.mimeType)}, which is not shown]`);
    case "resource_link":
      return textBlock(`[resource ${named(block.name)}: ${named(block.uri)}]`);
    case "resource":
      return resourceBlock(isRecord(block.resource) ? block.resource : {});
    default:
      return textBlock(`[content of type ${named(block.type)}, which is not shown]`);
  }
}

function resourceBlock({ uri, text, blob, mimeType }: Block): Block {
  if (typeof text === "string") return textBlock(`[resource ${named(uri)}]\n${text}`);
  return binaryBlock(blob, mimeType, `resource ${named(uri)}`);
}

function binaryBlock(data: unknown, mimeType: unknown, what: string): Block {
  if (typeof data === "string" && typeof mimeType === "string" && BASE64.test(data)) {
    const source = { type: "base64", media_type: mimeType, data };
    if (IMAGE_TYPES.has(mimeType)) return { type: "image", source };
    if (mimeType === "application/pdf") return { type: "document", source };
  }
  return textBlock(`[${what} of type ${named(mimeType)}, which is not shown]`);
}

/** Model APIs take no empty text. */
function textBlock(text: string): Block {
  return { type: "text", text: text === "" ? "(empty)" : text };
}

/** Of all text together so much stays, and one line says what was left out. */
function cut(blocks: readonly Block[]): Block[] {
  const total = blocks.reduce((sum, block) => sum + textOf(block).length, 0);
  if (total <= MAX_TEXT_CHARS) return [...blocks];
  const dropFrom = HEAD_CHARS;
  const dropTo = total - (MAX_TEXT_CHARS - HEAD_CHARS);
  let at = 0;
  let told = false;
  return blocks.flatMap((block) => {
    const text = textOf(block);
    if (block.type !== "text") return [block];
    const [from, to] = [at, at + text.length];
    at = to;
    const head = text.slice(0, Math.max(0, dropFrom - from));
    const tail = text.slice(Math.max(0, Math.min(text.length, dropTo - from)));
    if (to <= dropFrom || from >= dropTo) return [block];
    const note = told ? "" : `\n[${dropTo - dropFrom} characters were left out here]\n`;
    told = true;
    const kept = head + note + tail;
    return kept === "" ? [] : [{ type: "text", text: kept }];
  });
}

function textOf(block: Block): string {
  return block.type === "text" ? String(block.text) : "";
}

function named(value: unknown): string {
  return typeof value === "string" && value !== "" ? value.slice(0, 300) : "unknown";
}

/** No model API takes half of a surrogate pair. */
function wellFormed(_key: string, value: unknown): unknown {
  return typeof value === "string" ? Buffer.from(value, "utf8").toString("utf8") : value;
}

function isRecord(value: unknown): value is Block {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
