/** Sessions of a workspace in pages, which can be turned both ways. */
import { timestampDate } from "@bufbuild/protobuf/wkt";
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
  const { agentId, memoryStoreId, deploymentId, includeArchived, ascending } = request;
  const { createdAtOrAfter, createdBefore } = request;
  const statuses = statusNames(request.statuses).sort();
  const after = createdAtOrAfter && timestampDate(createdAtOrAfter);
  const before = createdBefore && timestampDate(createdBefore);
  const times = [after?.toISOString(), before?.toISOString()];
  const filters = [agentId, memoryStoreId, deploymentId, includeArchived, ascending, ...times];
  const query: PageQuery = ["sessions", workspaceId, statuses.join(","), ...filters];
  const [at, id, direction] = decodePageToken(query, request.pageToken, 3) ?? [];
  const cursor: Cursor | undefined = at === undefined || id === undefined ? undefined : [at, id];
  const hasNul = [agentId, memoryStoreId, deploymentId].some((id) => id.includes("\0"));
  if (hasNul) return { sessions: [], nextPageToken: "" };
  const isBack = direction === BACK;
  const { items, next, previous } = await sessions.list({
    workspaceId,
    statuses,
    agentId,
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
