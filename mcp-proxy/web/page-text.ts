/** What a page is, and its text, for a model (pure). */
import { isPdf } from "./pdf-facts.ts";

export interface MediaType {
  /** In lower case; empty when it is not said. */
  readonly type: string;
  readonly charset: string;
}

export type PageKind = "html" | "text" | "pdf" | "binary";

const TEXT_TYPES =
  /^(text\/.*|application\/(json|xml|(x-)?javascript|ecmascript|(x-)?yaml|toml|x-ndjson|sql|graphql)|.*\+(json|xml|yaml))$/;
/** Browsers look no further for a charset, either. */
const SNIFFED_BYTES = 1024;
export function mediaTypeOf(header: string | null): MediaType {
  const [type = "", ...parameters] = (header ?? "").split(";");
  const charset = parameters.map((part) => /^\s*charset\s*=\s*"?([\w.:-]+)/i.exec(part)?.[1]).find(Boolean);
  return { type: type.trim().toLowerCase(), charset: charset ?? "" };
}

/** Types that say no more than that it is a file. */
const DOWNLOADS = /^(binary\/octet-stream|application\/(octet-stream|(x-|force-)?download))$/;

/** Undefined where the type says nothing, and the bytes have to. */
export function kindOfType({ type }: MediaType): PageKind | undefined {
  if (type === "text/html" || type === "application/xhtml+xml") return "html";
  if (type === "application/pdf" || type === "application/x-pdf") return "pdf";
  if (type === "" || DOWNLOADS.test(type)) return undefined;
  return TEXT_TYPES.test(type) ? "text" : "binary";
}

/** What a page is: a PDF by its beginning, whatever it is called; what is called one and is none, by its bytes. */
export function kindOf(said: PageKind | undefined, bytes: Buffer): PageKind {
  if (isPdf(bytes)) return "pdf";
  return said === undefined || said === "pdf" ? kindOfBytes(bytes) : said;
}

function kindOfBytes(bytes: Buffer): PageKind {
  const head = bytes.subarray(0, SNIFFED_BYTES);
  if (/^\s*(<!--[^>]*>\s*)?(<!doctype html|<html[\s>])/i.test(head.toString("latin1"))) return "html";
  return head.includes(0) ? "binary" : "text";
}

export function decodeText(bytes: Buffer, { charset }: MediaType, kind: PageKind): string {
  const head = bytes.subarray(0, SNIFFED_BYTES);
  const said =
    kind === "html"
      ? /<meta[^>]{1,200}charset\s*=\s*["']?([\w.:-]+)/i.exec(head.toString("latin1"))?.[1]
      : "";
  return decoderFor(head, charset || said || "utf-8").decode(bytes);
}

/** A mark at the beginning counts more than what is said. */
function decoderFor(head: Buffer, label: string): InstanceType<typeof TextDecoder> {
  if (head[0] === 0xfe && head[1] === 0xff) return new TextDecoder("utf-16be");
  if (head[0] === 0xff && head[1] === 0xfe) return new TextDecoder("utf-16le");
  try {
    return new TextDecoder(head[0] === 0xef && head[1] === 0xbb ? "utf-8" : label);
  } catch {
    return new TextDecoder("utf-8");
  }
}

/** Without what no model API takes, or nobody sees. */
export function cleaned(text: string): string {
  const plain = text.replace(/\r\n?/g, "\n").replace(INVISIBLE, "");
  return Buffer.from(plain.replace(/\n{3,}/g, "\n\n").trim(), "utf8").toString("utf8");
}

/** Control characters but for tabs and line feeds. */
const INVISIBLE = /(?![\t\n])\p{Cc}/gu;
