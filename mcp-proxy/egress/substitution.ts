/** Puts values in where placeholders stand: in header values, in Basic credentials, in bodies. Pure. */
import { placeholdersIn, replacePlaceholders } from "../../kit/vault/placeholder.ts";
import { EgressRefusal } from "./refusal.ts";
import type { Headers } from "./request-head.ts";

/** What is put in for a placeholder; undefined leaves it. */
export type ValueFor = (name: string) => string | undefined;

/** All headers together, with the values. */
const MAX_HEADER_CHARS = 128 * 1024;
/** A body with the values. */
const MAX_BODY_BYTES = 4 * 1024 * 1024;
const BASIC = /^(basic +)([A-Za-z0-9+/_-]+=*)( *)$/i;
/** What no header may hold; a value that does would begin another header. */
// biome-ignore lint/suspicious/noControlCharactersInRegex: these are the characters in question
const NOT_IN_HEADERS = /[\u0000-\u0008\u000a-\u001f\u007f]/;

/** Names of variables whose placeholders stand in these headers. */
export function placeholdersInHeaders(headers: Headers): string[] {
  const names = [...headers.values()].flat().flatMap((value) => {
    const decoded = decodedBasic(value);
    return [...placeholdersIn(value), ...(decoded === undefined ? [] : placeholdersIn(decoded.text))];
  });
  return [...new Set(names)];
}

/**
 * `sent` is told of credentials that hold a value in a form of their own. Throws an EgressRefusal when the result would be no
 * headers, or too many.
 */
export function substituteInHeaders(
  headers: Headers,
  valueFor: ValueFor,
  sent: (encoded: string) => void,
): Headers {
  const inHeader: ValueFor = (name) => {
    const value = valueFor(name);
    if (value === undefined) return undefined;
    if (NOT_IN_HEADERS.test(value)) {
      throw new EgressRefusal(
        "bad_request",
        `the value of ${name} has line breaks or the like, which no header can hold`,
      );
    }
    return value;
  };
  let chars = 0;
  const substituted: Headers = new Map();
  for (const [name, values] of headers) {
    const done = values.map((value) => inHeaderValue(value, inHeader, sent));
    chars += done.reduce((sum, value) => sum + name.length + value.length, 0);
    if (chars > MAX_HEADER_CHARS)
      throw new EgressRefusal("too_large", "with values put in, the headers are too large");
    substituted.set(name, done);
  }
  return substituted;
}

/** Node gives and takes header values byte for byte as latin1; a value goes out as UTF-8. */
function inHeaderValue(value: string, valueFor: ValueFor, sent: (encoded: string) => void): string {
  const decoded = decodedBasic(value);
  if (decoded !== undefined) {
    const text = replacePlaceholders(decoded.text, (name) => latin1(valueFor(name)));
    if (text === decoded.text) return value;
    const encoded = Buffer.from(text, "latin1").toString("base64");
    sent(encoded);
    return `${decoded.scheme}${encoded}`;
  }
  return replacePlaceholders(value, (name) => latin1(valueFor(name)));
}

function decodedBasic(value: string): { scheme: string; text: string } | undefined {
  const [, scheme, encoded] = BASIC.exec(value) ?? [];
  if (scheme === undefined || encoded === undefined) return undefined;
  return { scheme, text: Buffer.from(encoded, "base64").toString("latin1") };
}

function latin1(value: string | undefined): string | undefined {
  return value === undefined ? undefined : Buffer.from(value, "utf8").toString("latin1");
}

/** Bytes that are no text stay as they are: each is one character here. */
export function placeholdersInBody(body: Buffer): string[] {
  return placeholdersIn(body.toString("latin1"));
}

/**
 * In JSON and forms the value is written as these write it, so that it stays one value whatever characters it has. Throws an
 * EgressRefusal when the result would be too large.
 */
export function substituteInBody(body: Buffer, contentType: string, valueFor: ValueFor): Buffer {
  const written = writerFor(contentType);
  let added = 0;
  const text = replacePlaceholders(body.toString("latin1"), (name) => {
    const value = valueFor(name);
    if (value === undefined) return undefined;
    const put = latin1(written(value)) ?? "";
    added += put.length;
    if (added > MAX_BODY_BYTES)
      throw new EgressRefusal("too_large", "with values put in, the body is too large");
    return put;
  });
  return Buffer.from(text, "latin1");
}

function writerFor(contentType: string): (value: string) => string {
  const [type = ""] = contentType.toLowerCase().split(";");
  const name = type.trim();
  if (name === "application/json" || name.endsWith("+json") || name.endsWith("/x-ndjson")) {
    return (value) => JSON.stringify(value).slice(1, -1);
  }
  if (name === "application/x-www-form-urlencoded") return (value) => encodeURIComponent(value);
  return (value) => value;
}
