/** Which URLs a conversation has shown, and whose word counts for an agent that reads no others (pure). */
import { WEB_TOOL_NAMES } from "../../kit/web/tool-names.ts";
import { UrlSourceRule, type UrlSources, type UrlSourceTools } from "../../proto/gen/tendon/v1/agent_pb.js";
import type { ShownText } from "../store/shown-texts.ts";

type Json = Readonly<Record<string, unknown>>;

/** Longer URLs are not read. */
const MAX_URL_CHARS = 2_048;
/** Of one text. */
const MAX_URLS = 20_000;
/** What ends a URL in a text, and what may stand behind one without being part of it. */
const END = /[\s<>"`{}|\\^]/;
const BEHIND = /[.,;:!?)\]*_'…、。，）」]$/u;
const INSIDE = [",", ")", "]", "'"];

/** As far as it says which page is meant; undefined for what is no URL. */
export function pageOf(text: string): string | undefined {
  if (!URL.canParse(text)) return undefined;
  const url = new URL(text);
  url.hash = "";
  return url.href;
}

/** A word that stands in every text which shows the URL: names with other letters are written in more than one way. */
export function wordOf(url: URL): string {
  const labels = url.hostname.split(".").filter((label) => label !== "" && !label.startsWith("xn--"));
  return labels.reduce((longest, label) => (label.length > longest.length ? label : longest), "");
}

/** Whether the text shows the page, as `pageOf` names it. */
export function shows(text: string, page: string): boolean {
  let found = 0;
  for (const { index } of text.matchAll(/https?:\/\//gi)) {
    if (found++ >= MAX_URLS) return false;
    const rest = text.slice(index, index + MAX_URL_CHARS);
    const end = rest.search(END);
    if (candidates(end < 0 ? rest : rest.slice(0, end)).some((candidate) => pageOf(candidate) === page))
      return true;
  }
  return false;
}

function candidates(run: string): string[] {
  const cut = INSIDE.map((mark) => run.indexOf(mark)).filter((at) => at > 0);
  const found = [run, ...cut.map((at) => run.slice(0, at))];
  for (let text = run; BEHIND.test(text); ) {
    text = text.slice(0, -1);
    found.push(text);
  }
  return found;
}

/** All that a message or a result says; nothing for a result that is an error, which may repeat what a model has asked for. */
export function textsOf({ payload }: ShownText): string[] {
  const said = parsed(payload);
  if (said.is_error === true) return [];
  const { content, description } = said;
  return [...strings(description), ...(typeof content === "string" ? [content] : blockTexts(content))];
}

function blockTexts(content: unknown): string[] {
  if (!Array.isArray(content)) return [];
  return content.filter(isObject).flatMap(({ text, title, context, source, content: inner }) => {
    const { url, type, data } = isObject(source) ? source : {};
    const plain = type === "text" ? strings(data) : [];
    return [text, title, context, source, url].flatMap(strings).concat(plain, blockTexts(inner));
  });
}

function strings(value: unknown): string[] {
  return typeof value === "string" ? [value] : [];
}

/** Whether what this text shows may be read by an agent with these sources. */
export function counts(
  { clientToolResults, serverToolResults, userInput }: UrlSources,
  { type, call }: ShownText,
): boolean {
  if (type === "user.message" || type === "user.define_outcome") return userInput !== UrlSourceRule.NONE;
  const { name, runs_in: runsIn } = parsed(call ?? "{}");
  if (typeof name !== "string") return false;
  if (type === "user.custom_tool_result") return isAmong(clientToolResults, name);
  return runsIn === "proxy" && WEB_TOOL_NAMES.includes(name) && isAmong(serverToolResults, name);
}

function isAmong(tools: UrlSourceTools | undefined, name: string): boolean {
  switch (tools?.rule ?? UrlSourceRule.ALL) {
    case UrlSourceRule.NONE:
      return false;
    case UrlSourceRule.ONLY:
      return tools!.names.includes(name);
    case UrlSourceRule.EXCEPT:
      return !tools!.names.includes(name);
    default:
      return true;
  }
}

function parsed(text: string): Json {
  const value: unknown = JSON.parse(text);
  return isObject(value) ? value : {};
}

function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}
