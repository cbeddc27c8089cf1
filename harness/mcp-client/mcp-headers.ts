/** Headers of the wire of 2026-07-28, which repeat what the body says: of every request, and of parameters of tools (pure). */
import { isObject, type Json, parseObject } from "../event-payload.ts";

/** A parameter that a tool wants in a header, too. */
interface Mirrored {
  /** `Mcp-Param-<name>`. */
  readonly name: string;
  /** Names of properties, from the input's root. */
  readonly path: readonly string[];
}

const MIRRORED = "x-mcp-header";
const TOKEN = /^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}$/;
const TYPES = new Set<unknown>(["string", "integer", "boolean"]);
const MAX_DEPTH = 64;

export function requestHeaders(method: string, toolName?: string): Record<string, string> {
  return { "mcp-method": method, ...(toolName !== undefined && { "mcp-name": headerValue(toolName) }) };
}

/** `inputSchema` and `inputText` are JSON texts of objects. */
export function parameterHeaders(inputSchema: string, inputText: string): Record<string, string> {
  const input = parseObject(inputText);
  const headers: Record<string, string> = {};
  for (const { name, path } of mirroredParameters(parseObject(inputSchema)) ?? []) {
    const value = path.reduce<unknown>((at, key) => (isObject(at) ? at[key] : undefined), input);
    if (["string", "number", "boolean"].includes(typeof value))
      headers[`mcp-param-${name.toLowerCase()}`] = headerValue(String(value));
  }
  return headers;
}

/** Undefined where the protocol forbids the definition: such a tool is not to be used. */
export function mirroredParameters(inputSchema: Json): readonly Mirrored[] | undefined {
  const found: Mirrored[] = [];
  /** `path` is undefined where no chain of properties alone leads. */
  const isFine = (schema: unknown, path: readonly string[] | undefined, depth: number): boolean => {
    if (depth > MAX_DEPTH) return false;
    if (Array.isArray(schema)) return schema.every((part) => isFine(part, undefined, depth + 1));
    if (!isObject(schema)) return true;
    const name = schema[MIRRORED];
    if (name !== undefined) {
      const isAllowed = typeof name === "string" && TOKEN.test(name) && TYPES.has(schema.type);
      if (!isAllowed || path === undefined || path.length === 0) return false;
      found.push({ name, path });
    }
    return Object.entries(schema).every(([keyword, value]) => {
      if (keyword !== "properties" || !isObject(value)) return isFine(value, undefined, depth + 1);
      const below = Object.entries(value);
      return below.every(([key, part]) => isFine(part, path && [...path, key], depth + 1));
    });
  };
  if (!isFine(inputSchema, [], 0)) return undefined;
  return new Set(found.map(({ name }) => name.toLowerCase())).size === found.length ? found : undefined;
}

/** As it is, where a header can hold it; else encoded as the protocol says. */
function headerValue(text: string): string {
  const isPlain = /^[\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?$/.test(text) || text === "";
  const looksEncoded = text.startsWith("=?base64?") && text.endsWith("?=");
  return isPlain && !looksEncoded ? text : `=?base64?${Buffer.from(text, "utf8").toString("base64")}?=`;
}
