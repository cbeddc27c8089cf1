/** The tools of the web, as agents, the log and models name them. */
export const WEB_FETCH = "web_fetch";
export const WEB_SEARCH = "web_search";

export const WEB_TOOL_NAMES: readonly string[] = [WEB_FETCH, WEB_SEARCH];
