/**
 * `web_fetch`: one page of the public internet as text, or as a PDF. Every hop of it is judged anew: the URL by the agent's lists, the
 * address by the rules for public requests, and what was judged is what is dialled (outbound/). Nothing of the session goes
 * along: no cookies, no credentials, no referrer.
 */
import type { OutboundFetch } from "../outbound/fetch.ts";
import { OutboundRefusal } from "../outbound/refusal.ts";
import type { WebBounds } from "./bounds.ts";
import { pageFailure, WebFailure } from "./failure.ts";
import { htmlText } from "./html-text.ts";
import { ENCODINGS, readPageBody } from "./page-body.ts";
import { MAX_PDF_BYTES, pdfBlocks, pdfTooLarge } from "./page-pdf.ts";
import {
  cleaned,
  decodeText,
  kindOf,
  kindOfType,
  type MediaType,
  mediaTypeOf,
  type PageKind,
} from "./page-text.ts";
import { pdfFacts } from "./pdf-facts.ts";

export interface PageRequest {
  /** JSON text of the call's input. */
  readonly input: string;
  readonly bounds: WebBounds;
  /** Told each host with its port before it is asked. */
  readonly onHost: (host: string) => void;
  /** Told once that it is a PDF, before more of it than its beginning is held. May throw a WebFailure: there is no room. */
  readonly onPdf: () => void;
  readonly signal: AbortSignal;
}

export interface PageResult {
  /** Content blocks. */
  readonly content: readonly object[];
  readonly status: number;
}

const MAX_URL_CHARS = 2_048;
const MAX_REDIRECTS = 5;
const REDIRECTS = new Set([301, 302, 303, 307, 308]);
const MAX_BYTES = 5 * 1024 * 1024;
/** Of a page that says that there is none. */
const MAX_REFUSAL_BYTES = 64 * 1024;
const MAX_REFUSAL_CHARS = 2_000;
/** Other services are no pages, and some of them can be made to do something by a request. */
const PORTS = new Set(["", "80", "443", "8080", "8443"]);
const HEADERS = {
  accept:
    "text/html,application/xhtml+xml,text/plain;q=0.9,application/json;q=0.8,application/pdf;q=0.8,*/*;q=0.1",
  "accept-encoding": ENCODINGS,
  "user-agent": "Tendon web_fetch",
};

/** Rejects with a WebFailure, or the signal's reason. */
export async function fetchPage(fetch: OutboundFetch, request: PageRequest): Promise<PageResult> {
  const asked = urlOf(request.input);
  let url = asked;
  for (let hop = 0; hop <= MAX_REDIRECTS; hop++) {
    checkUrl(url, request.bounds);
    request.onHost(hostOf(url));
    const response = await send(fetch, url, request.signal);
    if (!REDIRECTS.has(response.status)) return readPage(response, { url, asked }, request);
    await response.body?.cancel();
    url = redirected(url, response);
  }
  throw new WebFailure("url_not_accessible", `${url.host} redirects again and again`, "too_many_redirects");
}

function urlOf(input: string): URL {
  const { url } = JSON.parse(input) as { url?: unknown };
  if (typeof url !== "string" || url.trim() === "")
    throw new WebFailure("invalid_tool_input", "url is required");
  if (url.length > MAX_URL_CHARS)
    throw new WebFailure("url_too_long", `a URL has at most ${MAX_URL_CHARS} characters`);
  if (!URL.canParse(url.trim()))
    throw new WebFailure("invalid_tool_input", "url must be a whole URL, with http:// or https://");
  return new URL(url.trim());
}

function checkUrl(url: URL, bounds: WebBounds): void {
  if (url.protocol !== "http:" && url.protocol !== "https:")
    throw new WebFailure("url_not_allowed", "only http and https are read", "bad_url");
  if (url.username !== "" || url.password !== "")
    throw new WebFailure("url_not_allowed", "a URL must hold no user and no password", "bad_url");
  if (!PORTS.has(url.port))
    throw new WebFailure("url_not_allowed", "only the ports 80, 443, 8080 and 8443 are read", "bad_url");
  if (!bounds.allowsPage(url))
    throw new WebFailure(
      "url_not_allowed",
      `${url.hostname} is not among the domains that this agent may read`,
      "domain_not_allowed",
    );
}

async function send(fetch: OutboundFetch, url: URL, signal: AbortSignal): Promise<Response> {
  try {
    // What stands behind # is for the reader.
    const target = new URL(url);
    target.hash = "";
    return await fetch(target, { headers: HEADERS, redirect: "manual", signal });
  } catch (error) {
    if (error instanceof OutboundRefusal) throw pageFailure(error);
    throw error;
  }
}

function redirected(from: URL, response: Response): URL {
  const location = response.headers.get("location") ?? "";
  if (location !== "" && URL.canParse(location, from.href)) return new URL(location, from);
  throw new WebFailure("url_not_accessible", `${from.host} redirects to what is no URL`, "bad_redirect");
}

async function readPage(
  response: Response,
  { url, asked }: { readonly url: URL; readonly asked: URL },
  request: PageRequest,
): Promise<PageResult> {
  const { status } = response;
  const media = mediaTypeOf(response.headers.get("content-type"));
  const said = kindOfType(media);
  if (status === 200 && said === "binary") {
    await response.body?.cancel();
    throw unread(url, media.type, response);
  }
  if (status >= 300 || status < 200) throw await refused(response, url, request.signal);
  const { bytes, isCut } = await readBody(response, said, url, request);
  const isText = said === "html" || said === "text";
  const facts = kindOf(said, bytes) === "pdf" ? await pdfFacts(bytes) : undefined;
  // A text may begin with the words that a PDF begins with.
  const kind = isText && facts?.isWhole === false ? said : kindOf(said, bytes);
  if (kind === "binary") throw unread(url, media.type, response);
  const head = [`URL: ${url.href}`, ...(url.href === asked.href ? [] : [`Redirected from: ${asked.href}`])];
  if (kind === "pdf" && facts !== undefined) {
    if (isCut) throw pdfTooLarge(url, undefined);
    return { content: pdfBlocks(bytes, facts, url, head), status };
  }
  const text = await pageText({ bytes, isCut, media, kind }, head, url, request);
  return { content: [{ type: "text", text }], status };
}

/** Throws for a PDF that is too large, as soon as that is known, or that there is no room for. */
async function readBody(
  response: Response,
  said: PageKind | undefined,
  url: URL,
  { onPdf, signal }: PageRequest,
) {
  const length = lengthOf(response);
  const bytesOf = (head: Buffer) => {
    if (kindOf(said, head) !== "pdf") return MAX_BYTES;
    if (length !== undefined && length > MAX_PDF_BYTES) throw pdfTooLarge(url, length);
    onPdf();
    return MAX_PDF_BYTES;
  };
  return readPageBody(response, { sentBytes: MAX_PDF_BYTES, bytesOf }, signal);
}

interface ReadPage {
  readonly bytes: Buffer;
  readonly isCut: boolean;
  readonly media: MediaType;
  readonly kind: PageKind;
}

async function pageText(
  { bytes, isCut, media, kind }: ReadPage,
  head: readonly string[],
  url: URL,
  { bounds, signal }: PageRequest,
): Promise<string> {
  const whole = decodeText(bytes, media, kind);
  const { title, text, isLeft } = await shownText(whole, kind, url, signal);
  const shown = Buffer.from(text.slice(0, bounds.maxPageChars), "utf8").toString("utf8");
  const lines = [
    ...head,
    ...(title === "" ? [] : [`Title: ${title}`]),
    "",
    shown === "" ? "(The page has no text.)" : shown,
    ...(shown.length < text.length || isCut || isLeft ? ["", cutNote(shown, text, isCut || isLeft)] : []),
  ];
  return lines.join("\n");
}

async function shownText(whole: string, kind: PageKind, url: URL, signal: AbortSignal) {
  if (kind !== "html") return { title: "", text: cleaned(whole), isLeft: false };
  const { title, text, isCut } = await htmlText(whole, url.href, signal);
  return { title: cleaned(title), text: cleaned(text), isLeft: isCut };
}

function cutNote(shown: string, all: string, isLeft: boolean): string {
  const more = isLeft ? "; the page itself was read in part" : "";
  return `[The page was cut: ${shown.length} of ${all.length} characters of its text are shown${more}.]`;
}

function unread(url: URL, type: string, response: Response): WebFailure {
  const length = lengthOf(response);
  const size = length === undefined ? "" : `, ${length} bytes`;
  const what = type === "" || kindOfType({ type, charset: "" }) === "pdf" ? "binary" : type.slice(0, 100);
  return new WebFailure(
    "unsupported_content_type",
    `${url.href} is no text and no PDF but ${what}${size}; images and other binary files are not read`,
  );
}

/** As it is sent, which may be packed. Undefined where it is not said. */
function lengthOf(response: Response): number | undefined {
  const length = response.headers.get("content-length");
  return length !== null && /^\d{1,15}$/.test(length) ? Number(length) : undefined;
}

/** Pages that say no often say why. */
async function refused(response: Response, url: URL, signal: AbortSignal): Promise<WebFailure> {
  const { status } = response;
  const media = mediaTypeOf(response.headers.get("content-type"));
  const kind = kindOfType(media);
  const code = status === 429 ? "too_many_requests" : "url_not_accessible";
  const told = `${url.href} answered with status ${status}`;
  if (kind !== "html" && kind !== "text") {
    await response.body?.cancel();
    return new WebFailure(code, told, String(status));
  }
  const bounds = { sentBytes: MAX_REFUSAL_BYTES, bytesOf: () => MAX_REFUSAL_BYTES };
  const { bytes } = await readPageBody(response, bounds, signal);
  const whole = decodeText(bytes, media, kind);
  const { text } = await shownText(whole, kind, url, signal);
  const why = Buffer.from(text.slice(0, MAX_REFUSAL_CHARS), "utf8").toString("utf8");
  return new WebFailure(code, why === "" ? told : `${told}:\n${why}`, String(status));
}

/** With its port, as the audit log names hosts. */
function hostOf({ hostname, port, protocol }: URL): string {
  return `${hostname}:${port || (protocol === "https:" ? "443" : "80")}`;
}
