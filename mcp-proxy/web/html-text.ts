/**
 * HTML as text for a model: what is read, with headings, lists and the addresses of links. Made while the page is parsed, in
 * pieces between which other work goes on, so that no page, however it is made, holds the proxy up; nothing of it is run.
 */
import { setImmediate as otherWork } from "node:timers/promises";
import { Parser } from "htmlparser2";
import { TextLayout } from "./text-layout.ts";

export interface HtmlText {
  readonly title: string;
  readonly text: string;
  /** It was left before its end: it is longer, or nested deeper, than is read. */
  readonly isCut: boolean;
}

/** Of HTML that is parsed at once. */
const PIECE_CHARS = 32 * 1024;
/** No page for people is nested like that; each end of an element is looked for in all that are open. */
const MAX_DEPTH = 500;
const MAX_TEXT_CHARS = 256 * 1024;
const MAX_TITLE_CHARS = 500;

const SKIPPED = new Set([
  ...["script", "style", "noscript", "template", "iframe", "object", "svg", "canvas", "audio", "video"],
  ...["select", "textarea"],
]);
/** With an empty line around them. */
const PARAGRAPHS = new Set(["p", "table", "blockquote", "pre", "dl", "figure", "hr", "form", "fieldset"]);
/** On lines of their own. */
const LINES = new Set([
  ...["address", "article", "aside", "body", "caption", "dd", "details", "div", "dt", "figcaption", "footer"],
  ...["header", "legend", "main", "nav", "section", "summary", "tr"],
]);
const HEADING = /^h([1-6])$/;

/** `base`: what links are relative to. Rejects with the signal's reason. */
export async function htmlText(html: string, base: string, signal: AbortSignal): Promise<HtmlText> {
  const reader = new PageReader(base);
  const parser = new Parser(reader, { decodeEntities: true });
  let at = 0;
  while (at < html.length && !reader.isFull) {
    parser.write(html.slice(at, at + PIECE_CHARS));
    at += PIECE_CHARS;
    await otherWork();
    signal.throwIfAborted();
  }
  if (!reader.isFull) parser.end();
  return { title: reader.title.replace(/\s+/g, " ").trim(), text: reader.text, isCut: reader.isFull };
}

/** What a parser tells it becomes text. */
class PageReader {
  title = "";
  isFull = false;
  private readonly layout = new TextLayout();
  private readonly base: string;
  private depth = 0;
  /** How many of the open elements are not shown. */
  private skipped = 0;
  private isInTitle = false;
  /** Of the open links, the innermost last. */
  private readonly links: { readonly href: string; text: string }[] = [];

  constructor(base: string) {
    this.base = base;
  }

  get text(): string {
    return this.layout.text;
  }

  onopentag(name: string, attributes: Readonly<Record<string, string>>): void {
    this.depth += 1;
    if (this.depth > MAX_DEPTH) this.isFull = true;
    if (this.isFull) return;
    if (SKIPPED.has(name)) this.skipped += 1;
    if (name === "title" && this.skipped === 0 && this.title === "") this.isInTitle = true;
    if (this.skipped > 0) return;
    this.breaksFor(name);
    const level = HEADING.exec(name)?.[1];
    if (level !== undefined) this.layout.prefix(`${"#".repeat(Number(level))} `);
    if (name === "li") this.layout.beginItem();
    if (name === "ul" || name === "ol") this.layout.beginList(name === "ol");
    if (name === "pre") this.layout.keepsSpaces += 1;
    if (name === "br") this.layout.lineBreak();
    if (name === "td" || name === "th") this.layout.nextCell();
    if (name === "a") this.links.push({ href: attributes.href ?? "", text: "" });
  }

  onclosetag(name: string): void {
    this.depth -= 1;
    if (this.isFull) return;
    if (name === "title") this.isInTitle = false;
    if (SKIPPED.has(name)) {
      this.skipped = Math.max(0, this.skipped - 1);
      return;
    }
    if (this.skipped > 0) return;
    if (name === "a") this.endLink();
    if (name === "ul" || name === "ol") this.layout.endList();
    if (name === "pre") this.layout.keepsSpaces = Math.max(0, this.layout.keepsSpaces - 1);
    this.breaksFor(name);
  }

  ontext(text: string): void {
    if (this.isFull || this.skipped > 0) return;
    if (this.isInTitle) {
      this.title = (this.title + text).slice(0, MAX_TITLE_CHARS);
      return;
    }
    this.layout.add(text);
    const link = this.links.at(-1);
    if (link !== undefined && link.text.length < link.href.length + 16) link.text += text;
    if (this.layout.length > MAX_TEXT_CHARS) this.isFull = true;
  }

  private breaksFor(name: string): void {
    if (PARAGRAPHS.has(name) || HEADING.test(name)) this.layout.breakLines(2);
    else if (name === "ul" || name === "ol") this.layout.breakLines(this.layout.isInList ? 1 : 2);
    else if (LINES.has(name) || name === "li") this.layout.breakLines(1);
  }

  /** Behind what it says stands where it leads, unless that is the same, or leads nowhere else. */
  private endLink(): void {
    const { href, text } = this.links.pop() ?? { href: "", text: "" };
    if (href === "" || href.startsWith("#") || !URL.canParse(href, this.base)) return;
    const target = new URL(href, this.base);
    const isPage = target.protocol === "http:" || target.protocol === "https:";
    const said = text.trim();
    if (isPage && said !== "" && said !== href && said !== target.href) this.layout.add(` [${target.href}]`);
  }
}
