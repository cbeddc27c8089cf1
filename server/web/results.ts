/** Results of web tools as the log tells them (pure). */
import type { FailureOrigin } from "../../kit/errors.ts";
import type { HandEvent } from "../store/hands.ts";

type Block = Readonly<Record<string, unknown>>;

/** By list price: ten US dollars for a thousand. */
const SEARCH_NANO_USD = 10_000_000;
/** When that was last compared with its source. */
const PRICES_OF = "2026-11-30";
const MAX_BLOCKS = 100;
const BASE64 = /^[A-Za-z0-9+/]+={0,2}$/;

/** Undefined for what no model could be shown. */
export function parseContent(text: string): Block[] | undefined {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    return undefined;
  }
  const isList = Array.isArray(value) && value.length > 0 && value.length <= MAX_BLOCKS;
  return isList && (value as unknown[]).every(isBlock) ? (value as Block[]) : undefined;
}

function isBlock(value: unknown): value is Block {
  if (typeof value !== "object" || value === null) return false;
  const { type, text, source, title, content } = value as Block;
  if (type === "text") return typeof text === "string" && text.trim() !== "";
  if (type === "document") return isPdfSource(source) && typeof title === "string" && title.trim() !== "";
  const isResult = type === "search_result" && typeof source === "string" && typeof title === "string";
  return isResult && Array.isArray(content) && content.every(isBlock);
}

function isPdfSource(source: unknown): boolean {
  if (typeof source !== "object" || source === null) return false;
  const { type, media_type: mediaType, data } = source as Block;
  const isPdf = type === "base64" && mediaType === "application/pdf";
  return isPdf && typeof data === "string" && data.length % 4 === 0 && BASE64.test(data);
}

export interface WebOutcome {
  /** A failure that nobody named is the web's own. */
  readonly failure: FailureOrigin | undefined;
  readonly searches: number;
  readonly upstreamMs: bigint | undefined;
}

export function webResultEvent(
  toolUseId: string,
  { content, isError }: { readonly content: readonly Block[]; readonly isError: boolean },
  { failure = { part: "upstream", reason: "TOOL_FAILED" }, searches, upstreamMs }: WebOutcome,
): HandEvent {
  const cost = { nano_usd: searches * SEARCH_NANO_USD, prices_of: PRICES_OF };
  const payload = {
    tool_use_id: toolUseId,
    content,
    is_error: isError,
    ...(isError && { failure }),
    ...(searches > 0 && { server_tool_use: { web_search_requests: searches }, list_cost: cost }),
    ...(upstreamMs !== undefined && { upstream_ms: Number(upstreamMs) }),
  };
  return { type: "agent.tool_result", payload: JSON.stringify(payload) };
}
