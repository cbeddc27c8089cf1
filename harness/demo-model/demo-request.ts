/** What the demo reads of a request, and how it refuses what it cannot read. */
import type { RequestBlock, RequestMessage } from "./plan.ts";

export interface DemoRequest {
  /** Empty without one. */
  system: string;
  messages: RequestMessage[];
  toolNames: string[];
  stream: boolean;
}

/** The caller sees status, type and message. */
export class RequestRefused extends Error {
  override readonly name = "RequestRefused";
  readonly status: number;
  readonly type: string;

  constructor(status: number, type: string, message: string) {
    super(message);
    this.status = status;
    this.type = type;
  }
}

function invalid(message: string): RequestRefused {
  return new RequestRefused(400, "invalid_request_error", message);
}

/** Reads a body, or throws `RequestRefused` with the path of the field that is wrong. */
export function parseDemoRequest(body: Buffer): DemoRequest {
  const request = parseObject(body);
  if (typeof request.model !== "string" || request.model === "") throw invalid("model: Field required");
  if (!Number.isInteger(request.max_tokens) || (request.max_tokens as number) < 1)
    throw invalid("max_tokens: Input should be greater than or equal to 1");
  if (!Array.isArray(request.messages) || request.messages.length === 0)
    throw invalid("messages: at least one message is required");
  if (request.tools !== undefined && !Array.isArray(request.tools))
    throw invalid("tools: Input should be a valid list");
  const messages = request.messages.map(parseMessage);
  const system = textOf(request.system);
  return { system, messages, toolNames: toolNames(request), stream: request.stream === true };
}

function parseObject(body: Buffer): Record<string, unknown> {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true }).decode(body));
  } catch {
    throw invalid("The request body is not valid JSON");
  }
  if (!isObject(value)) throw invalid("The request body is not a JSON object");
  return value;
}

function parseMessage(value: unknown, index: number): RequestMessage {
  const path = `messages.${index}`;
  if (!isObject(value)) throw invalid(`${path}: Input should be an object`);
  const { role, content } = value;
  if (typeof role !== "string") throw invalid(`${path}.role: Field required`);
  if (typeof content === "string") return { role, content };
  if (!Array.isArray(content) || content.some((block) => !isObject(block) || typeof block.type !== "string"))
    throw invalid(`${path}.content: Input should be a string or a list of content blocks`);
  return { role, content: content.map(parseBlock) };
}

/** Keeps the fields that the plan reads, and of those only what has the right type. */
function parseBlock(block: Record<string, unknown>): RequestBlock {
  const { type, text, id, tool_use_id, is_error, content } = block;
  return {
    type: String(type),
    ...(typeof text === "string" && { text }),
    ...(typeof id === "string" && { id }),
    ...(typeof tool_use_id === "string" && { tool_use_id }),
    ...(is_error === true && { is_error }),
    ...(typeof content === "string" && { content }),
    ...(Array.isArray(content) && { content: content.filter(isObject).map(parseBlock) }),
  };
}

function textOf(system: unknown): string {
  if (typeof system === "string") return system;
  if (!Array.isArray(system)) return "";
  return system
    .map((block) => (isObject(block) && typeof block.text === "string" ? block.text : ""))
    .join("\n");
}

function toolNames({ tools, tool_choice: choice }: Record<string, unknown>): string[] {
  if (isObject(choice) && choice.type === "none") return [];
  const list = (tools ?? []) as unknown[];
  return list.flatMap((tool) => (isObject(tool) && typeof tool.name === "string" ? [tool.name] : []));
}

function isObject(value: unknown): value is Record<string, unknown> {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
