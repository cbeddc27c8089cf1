/** What an agent may say of tools of the web (pure). */
import { invalidField } from "../../kit/errors.ts";
import { parseDomain } from "../../kit/web/domains.ts";
import { WEB_TOOL_NAMES } from "../../kit/web/tool-names.ts";
import type { Tool, UserLocation, WebToolset } from "../../proto/gen/tendon/v1/agent_pb.js";

/** Throws INVALID_FIELD for the first thing that is wrong. */
export function checkWebTools(tools: readonly Tool[]): void {
  let known = false;
  for (const [index, { kind }] of tools.entries()) {
    if (kind.case !== "webToolset") continue;
    const path = `spec.tools[${index}].web_toolset`;
    if (known) throw invalidField(path, "another entry brings the tools of the web");
    known = true;
    checkToolset(path, kind.value);
  }
}

/** Names that a custom tool of the same agent cannot have. */
export function webToolNames(tools: readonly Tool[]): readonly string[] {
  return tools.some(({ kind }) => kind.case === "webToolset") ? WEB_TOOL_NAMES : [];
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

function checkLocation(path: string, { timezone }: UserLocation): void {
  if (timezone === "") return;
  try {
    new Intl.DateTimeFormat("en", { timeZone: timezone });
  } catch {
    throw invalidField(`${path}.timezone`, "must be a name of the IANA database, such as Europe/Berlin");
  }
}
