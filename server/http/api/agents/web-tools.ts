/**
 * The two tools of the web among those of the toolset that existing clients know (pure). In the contract they are an entry of
 * their own, since no hand runs them. Throws INVALID_FIELD with the path in the clients' words.
 */
import type { MessageInitShape } from "@bufbuild/protobuf";
import { invalidField } from "../../../../kit/errors.ts";
import { WEB_FETCH, WEB_SEARCH, WEB_TOOL_NAMES } from "../../../../kit/web/tool-names.ts";
import type {
  UserLocation,
  WebFetch,
  WebSearch,
  WebToolset,
  WebToolsetSchema,
} from "../../../../proto/gen/tendon/v1/agent_pb.js";
import type { Fields } from "../fields.ts";
import { urlSourcesJson, urlSourcesOf } from "./url-sources.ts";

type Init<M> = Extract<M, { $typeName?: never }>;
type ToolsetInit = Init<MessageInitShape<typeof WebToolsetSchema>>;

export function isWebTool(name: string): boolean {
  return WEB_TOOL_NAMES.includes(name);
}

/** Settings of the tools, from their entries in `configs`. */
export function webSettingsOf(configs: readonly Fields[]): Pick<ToolsetInit, "fetch" | "search"> {
  const of = (name: string) => configs.find((config) => config.text("name") === name);
  const [fetch, search] = [of(WEB_FETCH), of(WEB_SEARCH)];
  return {
    ...(fetch && {
      fetch: {
        ...domainsOf(fetch),
        maxContentTokens: fetch.integer("max_content_tokens") ?? 0,
        ...urlSourcesOf(fetch),
      },
    }),
    ...(search && { search: { ...domainsOf(search), ...locationOf(search) } }),
  };
}

const SETTINGS: Readonly<Record<string, readonly string[]>> = {
  [WEB_FETCH]: ["allowed_domains", "blocked_domains", "max_content_tokens", "url_sources"],
  [WEB_SEARCH]: ["allowed_domains", "blocked_domains", "user_location"],
};

/** What an entry of this name may say in `configs`; nothing for other tools. */
export function webSettingNames(name: string): readonly string[] {
  return SETTINGS[name] ?? [];
}

function domainsOf(config: Fields) {
  return {
    allowedDomains: domainListOf(config, "allowed_domains"),
    blockedDomains: domainListOf(config, "blocked_domains"),
  };
}

function domainListOf(config: Fields, name: string): string[] {
  const texts = config.texts(name);
  if (texts?.length === 0) throw invalidField(config.at(name), "must hold 1 to 64 domains");
  return [...(texts ?? [])];
}

function locationOf(config: Fields) {
  const location = config.object("user_location");
  if (location === undefined) return {};
  location.only("type", "city", "region", "country", "timezone");
  location.word("type", ["approximate"]);
  const [city, region, country, timezone] = ["city", "region", "country", "timezone"].map(
    (name) => location.text(name) ?? "",
  );
  return { userLocation: { city: city!, region: region!, country: country!, timezone: timezone! } };
}

/** What a tool's entry in `configs` says besides its policy. */
export function webSettingsJson(name: string, web: Pick<WebToolset, "fetch" | "search"> | undefined) {
  if (name === WEB_FETCH)
    return { ...urlSourcesJson(web?.fetch?.urlSources), ...(web?.fetch && fetchJson(web.fetch)) };
  return name === WEB_SEARCH && web?.search !== undefined ? searchJson(web.search) : {};
}

function fetchJson({ allowedDomains, blockedDomains, maxContentTokens }: WebFetch) {
  return {
    ...domainsJson({ allowedDomains, blockedDomains }),
    ...(maxContentTokens > 0 && { max_content_tokens: maxContentTokens }),
  };
}

function searchJson({ allowedDomains, blockedDomains, userLocation }: WebSearch) {
  return {
    ...domainsJson({ allowedDomains, blockedDomains }),
    ...(userLocation && { user_location: locationJson(userLocation) }),
  };
}

function domainsJson({
  allowedDomains,
  blockedDomains,
}: Pick<WebFetch, "allowedDomains" | "blockedDomains">) {
  return {
    ...(allowedDomains.length > 0 && { allowed_domains: allowedDomains }),
    ...(blockedDomains.length > 0 && { blocked_domains: blockedDomains }),
  };
}

function locationJson({ city, region, country, timezone }: UserLocation) {
  const said = Object.entries({ city, region, country, timezone }).filter(([, text]) => text !== "");
  return { type: "approximate", ...Object.fromEntries(said) };
}
