/** What the API refuses in tools, blocks and settings, each looked at by itself. Order among messages: history rules. */

import {
  blockObject,
  isObject,
  type Json,
  type MessagesRequest,
  onlyFields,
  refuse,
  stringField,
} from "./fake-messages-request.ts";
import { isGenuine } from "./fake-messages-turn.ts";

const TOOL_NAME = /^[a-zA-Z0-9_-]{1,128}$/;
const PROPERTY_NAME = /^[a-zA-Z0-9_.-]{1,64}$/;
const MAX_BREAKPOINTS = 4;

/** Fields of each block type that a request may hold. */
const BLOCK_FIELDS: Record<string, string> = {
  text: "text cache_control citations",
  image: "source cache_control transformations",
  document: "source cache_control citations context title",
  search_result: "content source title cache_control citations",
  tool_reference: "tool_name cache_control",
  thinking: "thinking signature",
  redacted_thinking: "data",
  tool_use: "id name input cache_control caller toolset_name",
  tool_result: "tool_use_id content is_error cache_control toolset_name",
};
const BLOCKS_OF: Record<string, readonly string[]> = {
  user: ["text", "image", "document", "search_result", "tool_result"],
  assistant: ["text", "thinking", "redacted_thinking", "tool_use"],
  system: ["text"],
  tool_result: ["text", "image", "document", "search_result", "tool_reference"],
};

/** Refuses what is wrong with the request's parts by themselves. */
export function checkParts(request: MessagesRequest): void {
  request.tools.forEach(checkTool);
  checkToolNames(request.tools);
  checkToolChoice(request);
  checkThinking(request);
  request.system.forEach((block, i) => {
    checkBlock(block, ["text"], `system.${i}`);
  });
  request.messages.forEach(({ role, content }, i) => {
    content.forEach((block, k) => {
      checkBlock(block, BLOCKS_OF[role]!, `messages.${i}.content.${k}`);
    });
  });
  checkBreakpoints(request);
}

function checkTool(tool: Json, index: number): void {
  const isCustom = tool.type === undefined || tool.type === null || tool.type === "custom";
  const path = isCustom ? `tools.${index}.custom` : `tools.${index}`;
  const name = stringField(tool, "name", path);
  if (!TOOL_NAME.test(name)) refuse(`${path}.name: String should match pattern '${TOOL_NAME.source}'`);
  if (!isCustom) return;
  if (tool.description !== undefined) stringField(tool, "description", path);
  const fields = "type name description input_schema cache_control strict defer_loading input_examples";
  onlyFields(tool, [...fields.split(" "), "allowed_callers", "eager_input_streaming"], path);
  checkSchema(tool.input_schema, `${path}.input_schema`);
}

function checkSchema(schema: unknown, path: string): void {
  if (schema === undefined) refuse(`${path}: Field required`);
  if (!isObject(schema)) refuse(`${path}: Input should be an object`);
  if (schema.type === undefined) refuse(`${path}.type: Field required`);
  if (schema.type !== "object") refuse(`${path}.type: Input should be 'object'`);
  if (["oneOf", "allOf", "anyOf"].some((word) => word in schema))
    refuse(`${path}: input_schema does not support oneOf, allOf, or anyOf at the top level`);
  const { properties, required } = schema;
  if (properties !== undefined && properties !== null) {
    if (!isObject(properties)) refuse(`${path}.properties: Input should be an object`);
    for (const [name, property] of Object.entries(properties)) {
      if (!PROPERTY_NAME.test(name))
        refuse(`${path}.properties: Property keys should match pattern '${PROPERTY_NAME.source}'`);
      if (!isObject(property) && typeof property !== "boolean")
        refuse(`${path}: JSON schema is invalid. It must match JSON Schema draft 2020-12`);
    }
  }
  if (required !== undefined && required !== null && !isListOfStrings(required))
    refuse(`${path}.required: Input should be a valid list`);
}

const isListOfStrings = (value: unknown) =>
  Array.isArray(value) && value.every((item) => typeof item === "string");

function checkToolNames(tools: readonly Json[]): void {
  const names = tools.map((tool) => tool.name);
  if (new Set(names).size !== names.length) refuse("tools: Tool names must be unique.");
}

function checkToolChoice({ toolChoice, tools, thinking }: MessagesRequest): void {
  if (!toolChoice) return;
  const { type, name } = toolChoice;
  if (!["auto", "any", "tool", "none"].includes(type as string))
    refuse("tool_choice.type: Input should be 'auto', 'any', 'tool' or 'none'");
  if (type !== "none" && tools.length === 0) refuse("tool_choice: tools must be provided");
  if (type === "tool" && !tools.some((tool) => tool.name === name))
    refuse(`tool_choice: Tool '${name}' not found in provided tools`);
  if ((type === "any" || type === "tool") && thinking && thinking.type !== "disabled")
    refuse("Thinking may not be enabled when tool_choice forces tool use.");
}

function checkThinking({ thinking, maxTokens }: MessagesRequest): void {
  if (!thinking) return;
  if (!["enabled", "disabled", "adaptive", "between_tools"].includes(thinking.type as string))
    refuse("thinking.type: Input should be 'enabled', 'disabled', 'adaptive' or 'between_tools'");
  if (thinking.type !== "enabled") return;
  const budget = thinking.budget_tokens;
  if (!Number.isInteger(budget) || (budget as number) < 1024)
    refuse("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024");
  if ((budget as number) >= maxTokens) refuse("`max_tokens` must be greater than `thinking.budget_tokens`.");
}

function checkBlock(block: Json, allowed: readonly string[], path: string): void {
  const type = block.type as string;
  if (!allowed.includes(type))
    refuse(
      `${path}: Input tag '${type}' found using 'type' does not match any of the expected tags: ${allowed}`,
    );
  const at = `${path}.${type}`;
  onlyFields(block, ["type", ...BLOCK_FIELDS[type]!.split(" ")], at);
  checkCacheControl(block.cache_control, `${at}.cache_control`);
  if (type === "text") checkText(block, at, path);
  else if (type === "thinking" || type === "redacted_thinking") checkThinkingBlock(block, at, path);
  else if (type === "tool_use") checkToolUse(block, at);
  else if (type === "tool_result") checkToolResult(block, at);
  else if (type === "image" || type === "document") checkSource(block, at);
  else if (type === "search_result") {
    stringField(block, "source", at);
    stringField(block, "title", at);
    if (!Array.isArray(block.content)) refuse(`${at}.content: Field required`);
    checkInnerBlocks(block.content, ["text"], at);
  }
}

function checkText(block: Json, at: string, path: string): void {
  const text = stringField(block, "text", at);
  if (text === "") refuse(`${path}: text content blocks must be non-empty`);
  if (text.trim() === "") refuse(`${path}: text content blocks must contain non-whitespace text`);
}

function checkThinkingBlock(block: Json, at: string, path: string): void {
  if (block.type === "thinking") {
    const [thinking, signature] = [stringField(block, "thinking", at), stringField(block, "signature", at)];
    if (!isGenuine({ type: "thinking", thinking, signature }))
      refuse(`${path}: Invalid \`signature\` in \`thinking\` block`);
  } else if (!isGenuine({ type: "redacted_thinking", data: stringField(block, "data", at) }))
    refuse(`${path}: Invalid \`data\` in \`redacted_thinking\` block`);
}

function checkToolUse(block: Json, at: string): void {
  if (!/^[a-zA-Z0-9_-]+$/.test(stringField(block, "id", at)))
    refuse(`${at}.id: String should match pattern '^[a-zA-Z0-9_-]+$'`);
  if (!TOOL_NAME.test(stringField(block, "name", at)))
    refuse(`${at}.name: String should match pattern '${TOOL_NAME.source}'`);
  if (block.input === undefined) refuse(`${at}.input: Field required`);
  if (!isObject(block.input)) refuse(`${at}.input: Input should be a valid dictionary`);
}

function checkToolResult(block: Json, at: string): void {
  stringField(block, "tool_use_id", at);
  const { content, is_error: isError } = block;
  if (isError !== undefined && typeof isError !== "boolean")
    refuse(`${at}.is_error: Input should be a valid boolean`);
  if (content === undefined || typeof content === "string") return;
  if (!Array.isArray(content)) refuse(`${at}.content: Input should be a valid list`);
  checkInnerBlocks(content, BLOCKS_OF.tool_result!, at);
  if (isError === true && content.some((inner) => inner.type !== "text"))
    refuse(`${at}: all content must be type "text" if "is_error" is true`);
}

function checkInnerBlocks(content: readonly unknown[], allowed: readonly string[], at: string): void {
  content.forEach((inner, i) => {
    checkBlock(blockObject(inner, `${at}.content.${i}`), allowed, `${at}.content.${i}`);
  });
}

function checkSource(block: Json, at: string): void {
  if (!isObject(block.source)) refuse(`${at}.source: Field required`);
  const { type, data, media_type: mediaType } = block.source;
  if (!["base64", "url", "file", "text", "content"].includes(type as string))
    refuse(`${at}.source.type: Input should be 'base64', 'url' or 'file'`);
  if (type !== "base64") return;
  const types =
    block.type === "document" ? ["application/pdf"] : ["jpeg", "png", "gif", "webp"].map((t) => `image/${t}`);
  if (!types.includes(mediaType as string))
    refuse(`${at}.source.base64.media_type: Input should be ${types.join(" or ")}`);
  if (typeof data !== "string" || !/^[A-Za-z0-9+/]+={0,2}$/.test(data))
    refuse(`${at}.source.base64.data: Invalid base64`);
}

function checkCacheControl(mark: unknown, path: string): void {
  if (mark === undefined || mark === null) return;
  if (!isObject(mark) || mark.type !== "ephemeral") refuse(`${path}.type: Input should be 'ephemeral'`);
  onlyFields(mark, ["type", "ttl"], path);
  if (mark.ttl !== undefined && mark.ttl !== "5m" && mark.ttl !== "1h")
    refuse(`${path}.ttl: Input should be '5m' or '1h'`);
}

function checkBreakpoints({ tools, system, messages, cacheControl }: MessagesRequest): void {
  tools.forEach((tool, i) => {
    checkCacheControl(tool.cache_control, `tools.${i}.cache_control`);
  });
  checkCacheControl(cacheControl, "cache_control");
  const inner = (block: Json) =>
    block.type === "tool_result" && Array.isArray(block.content)
      ? [...(block.content as Json[]), block]
      : [block];
  const marks = [...tools, ...system, ...messages.flatMap(({ content }) => content.flatMap(inner))]
    .map((block) => block.cache_control)
    .concat(cacheControl)
    .filter(isObject);
  if (marks.length > MAX_BREAKPOINTS)
    refuse(
      `A maximum of ${MAX_BREAKPOINTS} blocks with cache_control may be provided. Found ${marks.length}.`,
    );
  const firstShort = marks.findIndex((mark) => mark.ttl !== "1h");
  if (firstShort >= 0 && marks.slice(firstShort).some((mark) => mark.ttl === "1h"))
    refuse("a ttl='1h' cache_control block must not come after a ttl='5m' cache_control block.");
}
