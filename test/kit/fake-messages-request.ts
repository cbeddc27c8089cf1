/** The request as the fake reads it: JSON of the right shape, or a refusal with the path of what is wrong. */

/** A status and error type that the API answers with; the message is for people. */
export class Refusal extends Error {
  override readonly name = "Refusal";
  readonly status: number;
  readonly type: string;

  constructor(message: string, status = 400, type = "invalid_request_error") {
    super(message);
    this.status = status;
    this.type = type;
  }
}

export type Json = Record<string, unknown>;

export interface Message {
  role: "user" | "assistant" | "system";
  /** A text given for content stands here as one text block. */
  content: Json[];
}

export interface MessagesRequest {
  model: string;
  maxTokens: number;
  messages: Message[];
  system: Json[];
  tools: Json[];
  toolChoice: Json | undefined;
  thinking: Json | undefined;
  cacheControl: Json | undefined;
  stream: boolean;
  raw: Json;
}

const CURRENT_FIELDS = [
  ..."model max_tokens messages system tools tool_choice thinking cache_control stream container diagnostics".split(
    " ",
  ),
  ..."inference_geo metadata output_config service_tier speed stop_sequences".split(" "),
];
/** Older versions of the API take these too. */
const OLDER_FIELDS = ["temperature", "top_p", "top_k", "context_management", "mcp_servers"];
const CURRENT_VERSION = "2026-10-21";

export function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export function refuse(message: string): never {
  throw new Refusal(message);
}

/** Refuses fields that the API does not know at this place. */
export function onlyFields(value: Json, allowed: readonly string[], path: string): void {
  for (const name of Object.keys(value))
    if (!allowed.includes(name))
      refuse(`${path === "" ? "" : `${path}.`}${name}: Extra inputs are not permitted`);
}

export function stringField(value: Json, name: string, path: string): string {
  const found = value[name];
  if (found === undefined) refuse(`${path}.${name}: Field required`);
  if (typeof found !== "string") refuse(`${path}.${name}: Input should be a valid string`);
  return found;
}

/** The body as JSON. Lone surrogates are refused, in names and values, however they are written. */
export function parseJson(body: Buffer): Json {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body));
  } catch (error) {
    refuse(`The request body is not valid JSON: ${(error as Error).message}`);
  }
  if (!isObject(value)) refuse("Input should be a valid dictionary");
  refuseLoneSurrogates(value);
  return value;
}

function refuseLoneSurrogates(value: unknown): void {
  if (typeof value === "string") {
    if (/\p{Surrogate}/u.test(value))
      refuse("The request body is not valid JSON: no low surrogate in string");
  } else if (typeof value === "object" && value !== null) {
    for (const [name, inner] of Object.entries(value)) {
      refuseLoneSurrogates(name);
      refuseLoneSurrogates(inner);
    }
  }
}

/** Reads the fields around the messages. `purpose` count needs no max_tokens. */
export function parseRequest(raw: Json, version: string, purpose: "create" | "count"): MessagesRequest {
  onlyFields(raw, version === CURRENT_VERSION ? CURRENT_FIELDS : [...CURRENT_FIELDS, ...OLDER_FIELDS], "");
  const { model, max_tokens: maxTokens, messages, stream } = raw;
  if (model === undefined) refuse("model: Field required");
  if (typeof model !== "string") refuse("model: Input should be a valid string");
  if (model === "") refuse("model: String should have at least 1 character");
  if (purpose === "create") checkMaxTokens(maxTokens);
  if (messages === undefined) refuse("messages: Field required");
  if (!Array.isArray(messages)) refuse("messages: Input should be a valid list");
  if (messages.length === 0) refuse("messages: at least one message is required");
  if (stream !== undefined && typeof stream !== "boolean") refuse("stream: Input should be a valid boolean");
  return {
    model,
    maxTokens: Number(maxTokens ?? 0),
    messages: messages.map(parseMessage),
    system: parseSystem(raw.system),
    tools: parseTools(raw.tools),
    toolChoice: optionalObject(raw, "tool_choice"),
    thinking: optionalObject(raw, "thinking"),
    cacheControl: optionalObject(raw, "cache_control"),
    stream: stream === true,
    raw,
  };
}

function checkMaxTokens(maxTokens: unknown): void {
  if (maxTokens === undefined) refuse("max_tokens: Field required");
  if (!Number.isInteger(maxTokens)) refuse("max_tokens: Input should be a valid integer");
  if ((maxTokens as number) < 1) refuse("max_tokens: Input should be greater than or equal to 1");
}

function optionalObject(raw: Json, name: string): Json | undefined {
  const value = raw[name];
  if (value === undefined || value === null) return undefined;
  if (!isObject(value)) refuse(`${name}: Input should be an object`);
  return value;
}

function parseMessage(value: unknown, index: number): Message {
  const path = `messages.${index}`;
  if (!isObject(value)) refuse(`${path}: Input should be an object`);
  onlyFields(value, ["role", "content"], path);
  const { role, content } = value;
  if (role === undefined) refuse(`${path}.role: Field required`);
  if (role !== "user" && role !== "assistant" && role !== "system")
    refuse(`${path}.role: Input should be 'user', 'assistant' or 'system'`);
  if (content === undefined) refuse(`${path}.content: Field required`);
  if (typeof content === "string") {
    // An empty text here is an empty message, not an empty block.
    return { role, content: content === "" ? [] : [{ type: "text", text: content }] };
  }
  if (!Array.isArray(content)) refuse(`${path}.content: Input should be a valid list`);
  return { role, content: content.map((block, i) => blockObject(block, `${path}.content.${i}`)) };
}

export function blockObject(block: unknown, path: string): Json {
  if (!isObject(block)) refuse(`${path}: Input should be an object`);
  if (typeof block.type !== "string") refuse(`${path}.type: Field required`);
  return block;
}

function parseSystem(system: unknown): Json[] {
  if (system === undefined || system === "") return [];
  if (typeof system === "string") return [{ type: "text", text: system }];
  if (!Array.isArray(system)) refuse("system: Input should be a valid list");
  return system.map((block, i) => blockObject(block, `system.${i}`));
}

function parseTools(tools: unknown): Json[] {
  if (tools === undefined) return [];
  if (!Array.isArray(tools)) refuse("tools: Input should be a valid list");
  return tools.map((tool, i) => (isObject(tool) ? tool : refuse(`tools.${i}: Input should be an object`)));
}
