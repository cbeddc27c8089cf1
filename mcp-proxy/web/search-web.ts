/**
 * `web_search`, by the provider that the installation has chosen (docs/web.md): one request, one answer, both JSON. Its key is
 * known here alone.
 */
import { boundedText, jsonObject } from "../outbound/bounded-text.ts";
import type { OutboundFetch } from "../outbound/fetch.ts";
import { OutboundRefusal } from "../outbound/refusal.ts";
import type { WebBounds } from "./bounds.ts";
import { WebFailure } from "./failure.ts";
import { cleaned } from "./page-text.ts";

export interface SearchProvider {
  readonly url: string;
  /** Undefined: nothing is shown. */
  readonly key: string | undefined;
}

export interface SearchRequest {
  /** JSON text of the call's input. */
  readonly input: string;
  readonly bounds: WebBounds;
  readonly signal: AbortSignal;
}

export interface SearchResults {
  readonly content: readonly object[];
  readonly status: number;
}

const MAX_QUERY_CHARS = 2_000;
const MAX_RESULTS = 10;
const MAX_ANSWER_BYTES = 2 * 1024 * 1024;
const MAX_TITLE_CHARS = 500;
const MAX_URL_CHARS = 2_048;
/** Ten of them fit into a result. */
const MAX_EXCERPT_CHARS = 6_000;

/** Rejects with a WebFailure, or the signal's reason. */
export async function searchWeb(
  fetch: OutboundFetch,
  provider: SearchProvider,
  { input, bounds, signal }: SearchRequest,
): Promise<SearchResults> {
  const body = JSON.stringify(bodyOf(queryOf(input), bounds));
  const response = await send(fetch, provider, body, signal);
  const { status } = response;
  if (status === 429) {
    await response.body?.cancel();
    throw new WebFailure("too_many_requests", "the search provider takes no more requests for now", "429");
  }
  const text = await boundedText(response, MAX_ANSWER_BYTES, signal);
  // What a provider says when it refuses might repeat the key.
  if (status !== 200) throw unavailable(`answered with status ${status}`, String(status));
  const { results } = jsonObject(text ?? "");
  if (!Array.isArray(results)) throw unavailable("gave an answer that is none", "bad_answer");
  const found = results.flatMap((result) => blockOf(result, bounds, provider.key)).slice(0, MAX_RESULTS);
  if (found.length > 0) return { content: found, status };
  return { content: [{ type: "text", text: "Nothing was found." }], status };
}

function queryOf(input: string): string {
  const { query } = JSON.parse(input) as { query?: unknown };
  if (typeof query !== "string" || query.trim() === "")
    throw new WebFailure("invalid_tool_input", "query is required");
  if (query.length > MAX_QUERY_CHARS)
    throw new WebFailure("invalid_tool_input", `a query has at most ${MAX_QUERY_CHARS} characters`);
  return query.trim();
}

/** What nobody has said is left out. */
function bodyOf(query: string, bounds: WebBounds): object {
  const { allowedDomains, blockedDomains } = bounds.searchedDomains;
  const { city, region, country, timezone } = bounds.location ?? {};
  const place = Object.entries({ city, region, country, timezone }).filter(([, text]) => text);
  return {
    query,
    max_results: MAX_RESULTS,
    ...(allowedDomains.length > 0 && { include_domains: allowedDomains }),
    ...(blockedDomains.length > 0 && { exclude_domains: blockedDomains }),
    ...(place.length > 0 && { user_location: Object.fromEntries(place) }),
  };
}

async function send(
  fetch: OutboundFetch,
  { url, key }: SearchProvider,
  body: string,
  signal: AbortSignal,
): Promise<Response> {
  const headers = {
    accept: "application/json",
    "content-type": "application/json",
    ...(key !== undefined && { authorization: `Bearer ${key}` }),
  };
  try {
    return await fetch(url, { method: "POST", headers, body, signal });
  } catch (error) {
    if (error instanceof OutboundRefusal) throw unavailable("was not reached", error.reason);
    throw error;
  }
}

function unavailable(why: string, outcome: string): WebFailure {
  return new WebFailure("unavailable", `the search provider of this installation ${why}`, outcome);
}

/** Results outside of the agent's lists are left out without a word. */
function blockOf(result: unknown, bounds: WebBounds, key: string | undefined): object[] {
  if (typeof result !== "object" || result === null) return [];
  const { url, title, content } = result as Record<string, unknown>;
  const isWhole = typeof url === "string" && url.length <= MAX_URL_CHARS && URL.canParse(url);
  if (!isWhole || !/^https?:/i.test(url) || !bounds.allowsResult(new URL(url))) return [];
  const textOf = (value: unknown, maxChars: number) => shown(value, maxChars, key);
  const excerpt = textOf(content, MAX_EXCERPT_CHARS);
  return [
    {
      type: "search_result",
      source: textOf(url, MAX_URL_CHARS),
      title: textOf(title, MAX_TITLE_CHARS) || new URL(url).hostname,
      content: [{ type: "text", text: excerpt === "" ? "(no excerpt)" : excerpt }],
      citations: { enabled: false },
    },
  ];
}

function shown(value: unknown, maxChars: number, key: string | undefined): string {
  if (typeof value !== "string") return "";
  const text = key === undefined ? value : value.replaceAll(key, "[redacted]");
  const plain = cleaned(text);
  return plain.length <= maxChars ? plain : `${cleaned(plain.slice(0, maxChars))} […]`;
}
