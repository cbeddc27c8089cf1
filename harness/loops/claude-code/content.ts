/** Content of the log's events, as the model API and as MCP want it. Pure. */
import { isObject, type Json, objectsOf, stringOf } from "../../event-payload.ts";
import type { McpResult } from "./tool-server.ts";

/** Blocks of a user's message; never empty. */
export function inputContent(payload: Json): Json[] {
  const blocks = objectsOf(payload.content).flatMap(modelBlock);
  return blocks.length > 0 ? blocks : [textBlock("(empty message)")];
}

/** What the platform tells the model between a user's words. */
export function noteContent(text: string): Json[] {
  return [textBlock(`<system-reminder>\n${text}\n</system-reminder>`)];
}

/** A tool's result for the model API. Where it is an error only text may stand. */
export function resultBlock(toolUseId: string, payload: Json): Json {
  const isError = payload.is_error === true;
  const blocks = resultContent(payload);
  const content = isError ? blocks.filter(({ type }) => type === "text") : blocks;
  return { type: "tool_result", tool_use_id: toolUseId, content, ...(isError ? { is_error: true } : {}) };
}

export function mcpResult(payload: Json): McpResult {
  return { content: resultContent(payload).map(mcpBlock), isError: payload.is_error === true };
}

/** What MCP and the model API both have: a restored transcript says no more than the running program was told. */
function resultContent({ content }: Json): Json[] {
  const blocks = typeof content === "string" ? [textBlock(content)] : objectsOf(content);
  return blocks.flatMap(modelBlock).map((block) => {
    const isImage = block.type === "image" && isObject(block.source) && block.source.type === "base64";
    return block.type === "text" || isImage ? block : textBlock(`[${stringOf(block.type)} left out]`);
  });
}

function modelBlock(block: Json): Json[] {
  switch (block.type) {
    case "text":
      return stringOf(block.text).trim() === "" ? [] : [textBlock(stringOf(block.text))];
    case "image":
    case "document":
      return isObject(block.source) ? [{ type: block.type, source: block.source }] : [];
    case "search_result":
      return [textBlock(searchResultText(block))];
    case "redacted":
      return [];
    default:
      return [textBlock(`[content of type "${stringOf(block.type)}" left out]`)];
  }
}

/** MCP has no such blocks. */
function searchResultText({ title, source, content }: Json): string {
  const texts = objectsOf(content).map(({ text }) => stringOf(text));
  return [stringOf(title), stringOf(source), ...texts].join("\n");
}

function mcpBlock(block: Json): Json {
  const source = isObject(block.source) ? block.source : {};
  return block.type === "text" ? block : { type: "image", data: source.data, mimeType: source.media_type };
}

function textBlock(text: string): Json {
  // Half of a surrogate pair is refused by the model API.
  return { type: "text", text: text.replace(/\p{Surrogate}/gu, "\uFFFD") };
}
