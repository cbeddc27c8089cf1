/** What bounds a call of a web tool: the settings of the session's agent and of the agents above it (pure). */
import { type Domain, liesIn, parseDomain } from "../../kit/web/domains.ts";
import type { UserLocation, WebToolset } from "../../proto/gen/tendon/v1/agent_pb.js";

interface Lists {
  readonly allowedDomains: readonly string[];
  readonly blockedDomains: readonly string[];
}

/** Of a page's text, when nobody says less. */
const MAX_PAGE_CHARS = 95_000;
const CHARS_PER_TOKEN = 4;

export class WebBounds {
  private readonly toolsets: readonly WebToolset[];

  /** The nearest agent's first. */
  constructor(toolsets: readonly WebToolset[]) {
    this.toolsets = toolsets;
  }

  allowsPage(url: URL): boolean {
    return this.toolsets.every(({ fetch }) => fetch === undefined || allows(fetch, url, false));
  }

  get maxPageChars(): number {
    const tokens = this.toolsets.find(({ fetch }) => (fetch?.maxContentTokens ?? 0) > 0)?.fetch
      ?.maxContentTokens;
    return tokens === undefined ? MAX_PAGE_CHARS : Math.min(MAX_PAGE_CHARS, tokens * CHARS_PER_TOKEN);
  }

  allowsResult(url: URL): boolean {
    return this.toolsets.every(({ search }) => search === undefined || allows(search, url, true));
  }

  /** What a provider may be told, to find more that is allowed. Results are judged all the same. */
  get searchedDomains(): Lists {
    const lists = this.toolsets.flatMap(({ search }) => search ?? []);
    return {
      allowedDomains: lists.find(({ allowedDomains }) => allowedDomains.length > 0)?.allowedDomains ?? [],
      blockedDomains: [...new Set(lists.flatMap(({ blockedDomains }) => blockedDomains))],
    };
  }

  get location(): UserLocation | undefined {
    return this.toolsets.find(({ search }) => search?.userLocation !== undefined)?.search?.userLocation;
  }
}

function allows({ allowedDomains, blockedDomains }: Lists, url: URL, withPath: boolean): boolean {
  const isIn = (domains: readonly string[]) =>
    domains.some((text) => {
      const domain = parseDomain(text, { withPath });
      return isDomain(domain) && liesIn(url, domain);
    });
  if (isIn(blockedDomains)) return false;
  return allowedDomains.length === 0 || isIn(allowedDomains);
}

/** What cannot be read allows nothing, and was refused when the agent was made. */
function isDomain(parsed: Domain | string): parsed is Domain {
  return typeof parsed !== "string";
}
