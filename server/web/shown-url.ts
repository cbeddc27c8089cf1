/** Whether a page may be read by agents that read only what their conversation has shown. */
import type { UrlSources, WebToolset } from "../../proto/gen/tendon/v1/agent_pb.js";
import type { ShownTextCursor, ShownTextStore } from "../store/shown-texts.ts";
import { counts, pageOf, shows, textsOf, wordOf } from "./url-sources.ts";

/** Of texts that name the host: a call is not to cost more. What is older does not count. */
const MAX_PAGES = 50;

export interface AskedPage {
  readonly sessionId: string;
  /** JSON text of the call's input. */
  readonly input: string;
  /** Settings that all hold. */
  readonly bounds: readonly WebToolset[];
}

/** Each agent that limits itself has to have been shown the URL by a source of its own choice. */
export async function isUrlShown(
  texts: ShownTextStore,
  { sessionId, input, bounds }: AskedPage,
): Promise<boolean> {
  let open: UrlSources[] = bounds.flatMap(({ fetch }) => fetch?.urlSources ?? []);
  if (open.length === 0) return true;
  const { url } = JSON.parse(input) as { url?: unknown };
  const page = typeof url === "string" ? pageOf(url.trim()) : undefined;
  // What is no URL the tool itself refuses.
  if (page === undefined) return true;
  const word = wordOf(new URL(page));
  let after: ShownTextCursor | undefined;
  for (let read = 0; read < MAX_PAGES; read++) {
    const found = await texts.page({ sessionId, word, after });
    for (const text of found) {
      const told = open.filter((sources) => counts(sources, text));
      if (told.length === 0 || !textsOf(text).some((said) => shows(said, page))) continue;
      open = open.filter((sources) => !told.includes(sources));
      if (open.length === 0) return true;
    }
    after = found.at(-1)?.cursor;
    if (after === undefined) return false;
  }
  return false;
}
