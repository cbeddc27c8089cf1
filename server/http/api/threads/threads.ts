/** `/v1/sessions/{session_id}/threads`. */
import type { Clock } from "../../../../kit/clock.ts";
import { invalidField, notFound } from "../../../../kit/errors.ts";
import type { Session } from "../../../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../../../proto/gen/tendon/v1/session_service_pb.js";
import { ThreadService } from "../../../../proto/gen/tendon/v1/thread_service_pb.js";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { eventPageText } from "../events/event-list.ts";
import { streamEvents } from "../events/event-stream.ts";
import { logOf } from "../events/told-log.ts";
import { limitOf, pageOf, valuesOf } from "../list-query.ts";
import { STATUSES, statusJson } from "../sessions/session-json.ts";
import { primaryThreadId, threadJson } from "./thread-json.ts";

const MOST = 1_000;

export function threadRoutes(clock: Clock): ApiRoute[] {
  const all = "/v1/sessions/{session_id}/threads";
  const path = `${all}/{thread_id}`;
  const json = (thread: Session) => threadJson(thread, clock.nowMs());
  return [
    route("GET", all, (call) => listThreads(call, json)),
    route("GET", path, async (call) => json(await find(call))),
    route("POST", `${path}/archive`, async (call) => {
      const { id, rootSessionId } = await find(call);
      if (rootSessionId === "")
        throw invalidField("thread_id", "is the primary thread, which ends with its session");
      const { thread } = await call.services.call(ThreadService.method.stopThread, { threadId: id });
      return json(thread!);
    }),
    {
      method: "GET",
      path: `${path}/events`,
      handle: async (call) => ({ text: await eventPageText(call, await findLog(call)) }),
    },
    {
      method: "GET",
      path: `${path}/stream`,
      async handle(call) {
        await streamEvents(call, await findLog(call), clock);
        return { written: true };
      },
    },
  ];
}

/** Of the page that begins with those after the primary one. */
const AFTER_PRIMARY = "threads";

/** The primary thread stands first. */
async function listThreads({ services, params, query }: ApiCall, json: (thread: Session) => object) {
  const sessionId = params.session_id!;
  const words = valuesOf(query, "statuses");
  const unknown = words.find((word) => STATUSES[word] === undefined);
  if (unknown !== undefined) throw invalidField("statuses", `must be ${Object.keys(STATUSES).join(", ")}`);
  const page = (shown: readonly Session[], next: string | null) => {
    const isWanted = (thread: Session) => words.length === 0 || words.includes(statusJson(thread));
    return { data: shown.filter(isWanted).map(json), next_page: next };
  };
  const [size, token] = [limitOf(query, MOST) || MOST, pageOf(query)];
  const primary =
    token === "" ? [(await services.call(SessionService.method.getSession, { sessionId })).session!] : [];
  if (primary.length === size) return page(primary, AFTER_PRIMARY);
  const { threads, nextPageToken } = await services.call(ThreadService.method.listThreads, {
    sessionId,
    wholeTree: true,
    includeArchived: true,
    pageSize: size - primary.length,
    pageToken: token === AFTER_PRIMARY ? "" : token,
  });
  return page([...primary, ...threads], nextPageToken || null);
}

async function findLog(call: ApiCall) {
  return logOf(call.services, await find(call));
}

/** One of another session is not there. */
async function find({ services, params }: ApiCall): Promise<Session> {
  const [sessionId, threadId] = [params.session_id!, params.thread_id!];
  const isPrimary = threadId === primaryThreadId(sessionId);
  const request = { sessionId: isPrimary ? sessionId : threadId };
  const { session } = await services.call(SessionService.method.getSession, request);
  if (isPrimary || session!.rootSessionId === sessionId) return session!;
  throw notFound("thread", threadId);
}
