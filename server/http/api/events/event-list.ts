/** Pages of a session's events. */
import { invalidField, TendonError } from "../../../../kit/errors.ts";
import type { Event } from "../../../../proto/gen/tendon/v1/event_pb.js";
import { EventOrder, SessionService } from "../../../../proto/gen/tendon/v1/session_service_pb.js";
import type { ApiCall } from "../api-route.ts";
import { isWithin, limitOf, rangeOf, type TimeRange, valuesOf } from "../list-query.ts";
import type { ServiceCaller } from "../service-caller.ts";
import { orderOf } from "../sessions/sessions.ts";
import { isShown, processedAt } from "./event-json.ts";
import { asksAfter, asksBefore, cursorAfter, type Entry, entriesOf, type Neighbours } from "./event-page.ts";
import { wholeEventText } from "./event-texts.ts";
import { isOwn, sourceTypes, type ToldLog, threadStatusText, USAGE } from "./thread-status.ts";

const MOST = 1000;
/** Of one page; an event that is larger makes a page of its own. */
const MAX_PAGE_CHARS = 32 * 1024 * 1024;
const MAX_TYPES = 64;

interface PageQuery {
  readonly isDescending: boolean;
  readonly types: readonly string[];
  readonly range: TimeRange;
  readonly limit: number;
  /** Key of the entry after which the page begins. */
  readonly cursor: bigint | undefined;
}

const { getEvents } = SessionService.method;

const ALONE: Neighbours = { usageBefore: false, after: undefined };

/** JSON text of a page of the log of a session, or of a thread. */
export async function eventPageText({ services, query }: ApiCall, log: ToldLog): Promise<string> {
  const asked = pageQuery(query);
  const { isDescending } = asked;
  const { entries, hasMore, edge } = await readEntries(services, log, asked);
  const shown = entries.filter((entry) => isAskedFor(entry, asked));
  const texts: string[] = [];
  let chars = 0;
  for (const entry of shown.slice(0, asked.limit)) {
    const text = await entryText(services, log, entry);
    if (texts.length > 0 && chars + text.length > MAX_PAGE_CHARS) break;
    chars += text.length;
    texts.push(text);
  }
  const isCut = texts.length < shown.length;
  const last = isCut ? shown[texts.length - 1] : edge;
  const next = last === undefined || !(isCut || hasMore) ? undefined : entries[entries.indexOf(last) + 1];
  const cursor = last === undefined || !(isCut || hasMore) ? null : cursorAfter(last, next, isDescending);
  const page = cursor === null ? null : cursorText(cursor, isDescending);
  return `{"data":[${texts.join(",")}],"next_page":${JSON.stringify(page)}}\n`;
}

function pageQuery(query: URLSearchParams): PageQuery {
  const isDescending = orderOf(query) === "desc";
  const types = valuesOf(query, "types");
  if (types.length > MAX_TYPES) throw invalidField("types", `at most ${MAX_TYPES} are asked for at once`);
  const range = rangeOf(query);
  const cursor = cursorOf(query.get("page"), isDescending);
  return { isDescending, types, range, cursor, limit: limitOf(query, MOST) || MOST };
}

/** In the order that was asked for; `edge` is the last of them. */
async function readEntries(
  services: ServiceCaller,
  log: ToldLog,
  { isDescending, types, limit, cursor }: PageQuery,
) {
  const wanted = sourceTypes(types);
  if (wanted.length > MAX_TYPES) throw invalidField("types", `at most ${MAX_TYPES} are asked for at once`);
  const { events, hasMore } = await services.call(getEvents, {
    sessionId: log.sessionId,
    types: wanted,
    limit,
    order: isDescending ? EventOrder.DESCENDING : EventOrder.ASCENDING,
    ...(cursor !== undefined &&
      (isDescending ? { beforePosition: cursor / 2n + 1n } : { afterPosition: cursor / 2n })),
  });
  const inOrder = isDescending ? events.toReversed() : events;
  const withUsage = wanted.length === 0 || wanted.includes(USAGE);
  const neighbours = withUsage ? await neighboursOf(services, log, inOrder) : ALONE;
  const all = entriesOf(inOrder, log, neighbours);
  const entries = (isDescending ? all.toReversed() : all).filter(
    ({ key }) => cursor === undefined || (isDescending ? key < cursor : key > cursor),
  );
  return { entries, hasMore, edge: entries.at(-1) };
}

async function neighboursOf(
  services: ServiceCaller,
  { sessionId, isThread }: ToldLog,
  events: readonly Event[],
): Promise<Neighbours> {
  const first = events[0]?.position ?? 0n;
  const last = events.at(-1)?.position ?? 0n;
  const at = async (position: bigint) => {
    const { events: found } = await services.call(getEvents, {
      sessionId,
      afterPosition: position - 1n,
      limit: 1,
    });
    return found[0]?.position === position ? found[0] : undefined;
  };
  const before = !isThread && asksBefore(events) && first > 1n ? await at(first - 1n) : undefined;
  const after = !isThread && asksAfter(events) ? await at(last + 1n) : undefined;
  return { usageBefore: before !== undefined && isOwn(before, USAGE), after };
}

function isAskedFor({ event, type }: Entry, { types, range }: PageQuery): boolean {
  if (types.length > 0 && !types.includes(type)) return false;
  return isShown(event) && isWithin(range, processedAt(event) ?? event.createdAt);
}

function entryText(services: ServiceCaller, log: ToldLog, { event, isThreadStatus }: Entry): Promise<string> {
  if (isThreadStatus) return threadStatusText(event, log);
  return wholeEventText(services, log.sessionId, event);
}

function cursorText(key: bigint, isDescending: boolean): string {
  return Buffer.from(`${isDescending ? "d" : "a"}${key}`).toString("base64url");
}

/** A cursor goes on in the direction in which it was made. */
function cursorOf(page: string | null, isDescending: boolean): bigint | undefined {
  if (page === null || page === "") return undefined;
  const [, direction, digits] = /^([ad])(\d{1,18})$/.exec(Buffer.from(page, "base64url").toString()) ?? [];
  if (digits === undefined || (direction === "d") !== isDescending) {
    throw new TendonError("INVALID_PAGE_TOKEN", "page: is no cursor of this list");
  }
  return BigInt(digits);
}
