/** Pages of a session's events. */
import { invalidField, TendonError } from "../../../../kit/errors.ts";
import type { Event } from "../../../../proto/gen/tendon/v1/event_pb.js";
import { EventOrder, SessionService } from "../../../../proto/gen/tendon/v1/session_service_pb.js";
import type { ApiCall } from "../api-route.ts";
import { isWithin, limitOf, rangeOf, valuesOf } from "../list-query.ts";
import { orderOf } from "../sessions/sessions.ts";
import { isShown, processedAt } from "./event-json.ts";
import { wholeEventText } from "./event-texts.ts";

const MOST = 1000;
/** Of one page; an event that is larger makes a page of its own. */
const MAX_PAGE_CHARS = 32 * 1024 * 1024;
const MAX_TYPES = 64;

/** JSON text of a page of the log of a session, or of a thread. */
export async function eventPageText({ services, query }: ApiCall, sessionId: string): Promise<string> {
  const isDescending = orderOf(query) === "desc";
  const types = valuesOf(query, "types");
  if (types.length > MAX_TYPES) throw invalidField("types", `at most ${MAX_TYPES} are asked for at once`);
  const range = rangeOf(query);
  const from = cursorOf(query.get("page"), isDescending);
  const { events, hasMore } = await services.call(SessionService.method.getEvents, {
    sessionId,
    types: [...types],
    limit: limitOf(query, MOST) || MOST,
    order: isDescending ? EventOrder.DESCENDING : EventOrder.ASCENDING,
    ...(from !== undefined && (isDescending ? { beforePosition: from } : { afterPosition: from })),
  });
  const texts: string[] = [];
  let chars = 0;
  let last: Event | undefined;
  for (const event of events) {
    if (isShown(event) && isWithin(range, processedAt(event) ?? event.createdAt)) {
      const text = await wholeEventText(services, sessionId, event);
      if (texts.length > 0 && chars + text.length > MAX_PAGE_CHARS) break;
      chars += text.length;
      texts.push(text);
    }
    last = event;
  }
  const isCut = hasMore || (last !== undefined && last !== events.at(-1));
  const next = isCut && last !== undefined ? cursorText(last.position, isDescending) : null;
  return `{"data":[${texts.join(",")}],"next_page":${JSON.stringify(next)}}\n`;
}

function cursorText(position: bigint, isDescending: boolean): string {
  return Buffer.from(`${isDescending ? "d" : "a"}${position}`).toString("base64url");
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
