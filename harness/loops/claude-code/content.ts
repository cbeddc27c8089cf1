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
  const blocks = contentOf(payload).flatMap(modelBlock);
  const content = isError ? blocks.filter(({ type }) => type === "text") : blocks;
  return { type: "tool_result", tool_use_id: toolUseId, content, ...(isError ? { is_error: true } : {}) };
}

export function mcpResult(payload: Json): McpResult {
  const content = contentOf(payload).flatMap(modelBlock).map(mcpBlock);
  return { content, isError: payload.is_error === true };
}

function contentOf({ content }: Json): Json[] {
  return typeof content === "string" ? [textBlock(content)] : objectsOf(content);
}

function modelBlock(block: Json): Json[] {
  switch (block.type) {
    case "text":
      return stringOf(block.text).trim() === "" ? [] : [textBlock(stringOf(block.text))];
    case "image":
    case "document":
      return isObject(block.source) ? [{ type: block.type, source: block.source }] : [];
    case "redacted":
      return [];
    default:
      return [textBlock(`[content of type "${stringOf(block.type)}" left out]`)];
  }
}

function mcpBlock(block: Json): Json {
  const source = isObject(block.source) ? block.source : {};
  if (block.type === "text") return block;
  if (block.type === "image" && source.type === "base64") {
    return { type: "image", data: source.data, mimeType: source.media_type };
  }
  return textBlock(`[${stringOf(block.type)} left out]`);
}

function textBlock(text: string): Json {
  // Half of a surrogate pair is refused by the model API.
  return { type: "text", text: text.replace(/\p{Surrogate}/gu, "\uFFFD") };
}
