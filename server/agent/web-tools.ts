/** What an agent may say of tools of the web (pure). */
import { invalidField } from "../../kit/errors.ts";
import { parseDomain } from "../../kit/web/domains.ts";
import { WEB_TOOL_NAMES } from "../../kit/web/tool-names.ts";
import {
  type Tool,
  UrlSourceRule,
  type UrlSources,
  type UrlSourceTools,
  type UserLocation,
  type WebToolset,
} from "../../proto/gen/tendon/v1/agent_pb.js";

/** Throws INVALID_FIELD for the first thing that is wrong. */
export function checkWebTools(tools: readonly Tool[]): void {
  let known = false;
  for (const [index, { kind }] of tools.entries()) {
    if (kind.case !== "webToolset") continue;
    const path = `spec.tools[${index}].web_toolset`;
    if (known) throw invalidField(path, "another entry brings the tools of the web");
    known = true;
    checkToolset(path, kind.value);
    const sources = kind.value.fetch?.urlSources;
    if (sources !== undefined) checkSources(`${path}.fetch.url_sources`, sources, customNames(tools));
  }
}

/** Names that a custom tool of the same agent cannot have. */
export function webToolNames(tools: readonly Tool[]): readonly string[] {
  return tools.some(({ kind }) => kind.case === "webToolset") ? WEB_TOOL_NAMES : [];
}

function customNames(tools: readonly Tool[]): string[] {
  return tools.flatMap(({ kind }) => (kind.case === "custom" ? [kind.value.name] : []));
}

function checkToolset(path: string, { fetch, search, tools }: WebToolset): void {
  const stray = Object.keys(tools).find((name) => !WEB_TOOL_NAMES.includes(name));
  if (stray !== undefined)
    throw invalidField(`${path}.tools["${stray}"]`, `must be ${WEB_TOOL_NAMES.join(" or ")}`);
  if (fetch !== undefined) checkLists(`${path}.fetch`, fetch, false);
  if (search === undefined) return;
  checkLists(`${path}.search`, search, true);
  if (search.userLocation !== undefined) checkLocation(`${path}.search.user_location`, search.userLocation);
}

interface Lists {
  readonly allowedDomains: readonly string[];
  readonly blockedDomains: readonly string[];
}

function checkLists(path: string, { allowedDomains, blockedDomains }: Lists, withPath: boolean): void {
  if (allowedDomains.length > 0 && blockedDomains.length > 0)
    throw invalidField(`${path}.blocked_domains`, "cannot be set beside allowed_domains");
  checkList(`${path}.allowed_domains`, allowedDomains, withPath);
  checkList(`${path}.blocked_domains`, blockedDomains, withPath);
}

function checkList(path: string, texts: readonly string[], withPath: boolean): void {
  const known = new Set<string>();
  for (const [index, text] of texts.entries()) {
    const domain = parseDomain(text, { withPath });
    if (typeof domain === "string") throw invalidField(`${path}[${index}]`, domain);
    const key = domain.host + domain.path;
    if (known.has(key)) throw invalidField(`${path}[${index}]`, `"${key}" is named before`);
    known.add(key);
  }
}

/** Codes that name no single country, though they have names. */
const NO_COUNTRIES = new Set(["EU", "EZ", "QO", "UN", "XA", "XB", "ZZ"]);
/** Offsets from UTC are no names, though some engines take them. */
const ZONE_NAME = /^[A-Za-z]/;

function checkLocation(path: string, { country, timezone }: UserLocation): void {
  if (country !== "" && (NO_COUNTRIES.has(country) || countryName(country) === undefined))
    throw invalidField(`${path}.country`, "must be the code of a country (ISO 3166-1), such as DE");
  if (timezone !== "" && !(ZONE_NAME.test(timezone) && isTimeZone(timezone)))
    throw invalidField(`${path}.timezone`, "must be a name of the IANA database, such as Europe/Berlin");
}

function countryName(code: string): string | undefined {
  // What has another form is refused by the contract's own rule.
  if (!/^[A-Z]{2}$/.test(code)) return "";
  return new Intl.DisplayNames("en", { type: "region", fallback: "none" }).of(code);
}

function isTimeZone(name: string): boolean {
  try {
    new Intl.DateTimeFormat("en", { timeZone: name });
    return true;
  } catch {
    return false;
  }
}

function checkSources(path: string, sources: UrlSources, custom: readonly string[]): void {
  const { clientToolResults: client, serverToolResults: server, userInput } = sources;
  if (userInput === UrlSourceRule.NONE && isNone(client) && isNone(server))
    throw invalidField(path, "must not leave out all three sources: no URL could be read");
  if (client !== undefined)
    checkSourceTools(`${path}.client_tool_results`, client, custom, "the name of a custom tool of the agent");
  if (server !== undefined)
    checkSourceTools(`${path}.server_tool_results`, server, WEB_TOOL_NAMES, WEB_TOOL_NAMES.join(" or "));
}

function isNone(tools: UrlSourceTools | undefined): boolean {
  return tools?.rule === UrlSourceRule.NONE;
}

function checkSourceTools(
  path: string,
  { rule, names }: UrlSourceTools,
  known: readonly string[],
  wanted: string,
): void {
  const isListed = rule === UrlSourceRule.ONLY || rule === UrlSourceRule.EXCEPT;
  if (isListed && names.length === 0) throw invalidField(`${path}.names`, "must hold 1 to 128 names");
  if (!isListed && names.length > 0) throw invalidField(`${path}.names`, "is for only and except alone");
  for (const [index, name] of names.entries()) {
    if (!known.includes(name)) throw invalidField(`${path}.names[${index}]`, `must be ${wanted}`);
    if (names.indexOf(name) < index) throw invalidField(`${path}.names[${index}]`, "is named before");
  }
}
