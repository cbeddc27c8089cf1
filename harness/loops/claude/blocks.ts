/** Content blocks as the model API takes them, from what clients and hands have put into the log. Pure. */
import { isObject, type Json, objectsOf, stringOf } from "../../event-payload.ts";

/** JSON in which no string holds half of a surrogate pair: the API refuses those. */
export function jsonText(value: unknown): string {
  const text = JSON.stringify(value) ?? "null";
  return /\\ud[89a-f]/i.test(text) ? JSON.stringify(wellFormed(value)) : text;
}

function wellFormed(value: unknown): unknown {
  if (typeof value === "string") return value.replace(/\p{Surrogate}/gu, "\uFFFD");
  if (Array.isArray(value)) return value.map(wellFormed);
  if (!isObject(value)) return value;
  return Object.fromEntries(
    Object.entries(value).map(([name, inner]) => [wellFormed(name), wellFormed(inner)]),
  );
}

export function isBlank(text: unknown): boolean {
  return typeof text !== "string" || text.trim() === "";
}

export function textBlock(text: string): string {
  return jsonText({ type: "text", text });
}

/** Blocks of a user's or a system's message; never empty. */
export function inputBlocks(payload: Json): string[] {
  const blocks = objectsOf(payload.content).flatMap(contentBlock);
  return blocks.length > 0 ? blocks : [textBlock("(empty message)")];
}

/** Blocks of a tool's result. Where it is an error only text may stand. */
export function resultBlocks(content: unknown, isError: boolean): string[] {
  if (typeof content === "string") return isBlank(content) ? [] : [textBlock(content)];
  const blocks = objectsOf(content);
  if (!isError) return blocks.flatMap(contentBlock);
  return blocks.flatMap((block) =>
    block.type === "text"
      ? contentBlock(block)
      : [textBlock(`[${stringOf(block.type) || "content"} left out]`)],
  );
}

function contentBlock(block: Json): string[] {
  switch (block.type) {
    case "text":
      return isBlank(block.text) ? [] : [textBlock(stringOf(block.text))];
    case "image":
      return [sourceBlock(block, [])];
    case "document":
      return [sourceBlock(block, ["title", "context"])];
    case "search_result":
      return [searchResult(block)];
    case "redacted":
      return [];
    default:
      return [textBlock(`[content of type "${stringOf(block.type)}" left out]`)];
  }
}

/** Sources that only the platform could open are named instead. */
function sourceBlock(block: Json, fields: readonly string[]): string {
  const { type, source } = block;
  const kind = isObject(source) ? source.type : undefined;
  if (!isObject(source) || !["base64", "url", "text"].includes(stringOf(kind))) {
    return textBlock(`[${stringOf(type)} left out: its source is of type "${stringOf(kind)}"]`);
  }
  const { media_type, data, url } = source;
  const kept = kind === "url" ? { type: kind, url } : { type: kind, media_type, data };
  const more = fields.filter((name) => !isBlank(block[name])).map((name) => [name, block[name]]);
  return jsonText({ type, source: kept, ...Object.fromEntries(more) });
}

function searchResult({ source, title, content, citations }: Json): string {
  const texts = objectsOf(content).filter(({ type, text }) => type === "text" && !isBlank(text));
  const inner = texts.map(({ text }) => ({ type: "text", text }));
  if (isBlank(source) || isBlank(title) || inner.length === 0) return textBlock("[search result left out]");
  const enabled = isObject(citations) && citations.enabled === true;
  return jsonText({
    type: "search_result",
    source,
    title,
    content: inner,
    ...(enabled && { citations: { enabled } }),
  });
}
