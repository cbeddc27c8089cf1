/** Sessions of a workspace in pages, which can be turned both ways. */
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { invalidField } from "../../kit/errors.ts";
import { decodePageToken, encodePageToken, type PageQuery } from "../../kit/page-token.ts";
import type { ListSessionsRequest } from "../../proto/gen/tendon/v1/session_service_pb.js";
import { statusNames, toSessionMessage } from "../ports/session-message.ts";
import type { OutcomeStore } from "../store/outcomes.ts";
import type { Cursor } from "../store/page.ts";
import type { SessionStore } from "../store/sessions.ts";

const DEFAULT_PAGE = 20;
/** In page tokens: which way the page lies from its cursor. */
const FORTH = "forth";
const BACK = "back";

export interface ListingDeps {
  readonly sessions: Pick<SessionStore, "list">;
  readonly outcomes: Pick<OutcomeStore, "ofSessions">;
}

export async function listSessions(
  { sessions, outcomes }: ListingDeps,
  request: ListSessionsRequest,
  workspaceId: Parameters<SessionStore["list"]>[0]["workspaceId"],
) {
  const { agentId, agentVersion, memoryStoreId, deploymentId, includeArchived, ascending } = request;
  const { createdAtOrAfter, createdBefore, waitingIsRunning } = request;
  const after = createdAtOrAfter && timestampDate(createdAtOrAfter);
  const before = createdBefore && timestampDate(createdBefore);
  // Whoever turns pages may look for something else on the next.
  const query: PageQuery = ["sessions", workspaceId, ascending];
  const [at, id, direction] = decodePageToken(query, request.pageToken, 3) ?? [];
  const cursor: Cursor | undefined = at === undefined || id === undefined ? undefined : [at, id];
  if (at !== undefined) checkReaches(at, after, before);
  const hasNul = [agentId, memoryStoreId, deploymentId].some((id) => id.includes("\0"));
  if (hasNul) return { sessions: [], nextPageToken: "" };
  const isBack = direction === BACK;
  const { items, next, previous } = await sessions.list({
    workspaceId,
    statuses: statusNames(request.statuses),
    waitingIsRunning,
    agentId,
    agentVersion,
    memoryStoreId,
    deploymentId,
    includeArchived,
    ascending,
    createdAtOrAfter: after,
    createdBefore: before,
    size: request.pageSize || DEFAULT_PAGE,
    after: isBack ? undefined : cursor,
    before: isBack ? cursor : undefined,
  });
  const found = await outcomes.ofSessions(items.map(({ sessionId }) => sessionId));
  return {
    sessions: items.map((item) => toSessionMessage(item, { outcomes: found.get(item.sessionId) })),
    nextPageToken: encodePageToken(query, next && [...next, FORTH]),
    previousPageToken: encodePageToken(query, previous && [...previous, BACK]),
  };
}

/** A page that begins at a time which is left out would not follow the one before. INVALID_FIELD. */
function checkReaches(cursorAt: string, after: Date | undefined, before: Date | undefined): void {
  const ms = Date.parse(cursorAt.replace(" ", "T").replace(/[+-]\d\d$/, "$&:00"));
  if (after !== undefined && ms < after.getTime())
    throw invalidField("created_at_or_after", "leaves out the session at which this page begins");
  if (before !== undefined && ms >= before.getTime())
    throw invalidField("created_before", "leaves out the session at which this page begins");
}
