/** `/v1/sessions`. */

import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import type { Clock } from "../../../../kit/clock.ts";
import { invalidField } from "../../../../kit/errors.ts";
import { AgentService } from "../../../../proto/gen/tendon/v1/agent_service_pb.js";
import type { Session } from "../../../../proto/gen/tendon/v1/session_pb.js";
import { SessionService } from "../../../../proto/gen/tendon/v1/session_service_pb.js";
import { overriddenSpec } from "../agents/agent-input.ts";
import { membersOf } from "../agents/roster.ts";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { type Fields, fieldsOf } from "../fields.ts";
import { flagOf, limitOf, numberOf, pageOf, rangeOf, valuesOf } from "../list-query.ts";
import { metadataPatch } from "../metadata.ts";
import { agentChoice, budgetOf, newSessionRequest } from "./session-input.ts";
import { STATUSES, sessionJson } from "./session-json.ts";
import { statusByLog } from "./status-by-log.ts";

const MOST = 100;
const MAX_VERSION = 999_999_999;

const { method } = SessionService;

export function sessionRoutes(clock: Clock): ApiRoute[] {
  const path = "/v1/sessions/{session_id}";
  const shown = async ({ services }: ApiCall, sessions: readonly (Session | undefined)[]) => {
    const find = await membersOf(
      services,
      sessions.map((session) => session?.agent?.spec),
    );
    const statuses = await Promise.all(sessions.map((session) => statusByLog(services, session!)));
    return sessions.map((session, at) => sessionJson(session!, clock.nowMs(), find, statuses[at]));
  };
  const one = async (call: ApiCall, session: Session | undefined) => (await shown(call, [session]))[0];
  return [
    route("POST", "/v1/sessions", async (call) => one(call, await createSession(call))),
    route("GET", "/v1/sessions", (call) => listSessions(call, (sessions) => shown(call, sessions))),
    route("GET", path, async (call) => {
      const request = { sessionId: call.params.session_id! };
      return one(call, (await call.services.call(method.getSession, request)).session);
    }),
    route("POST", path, async (call) => one(call, await updateSession(call))),
    route("DELETE", path, async ({ services, params, query }) => {
      const interrupt = flagOf(query, "interrupt");
      await services.call(method.deleteSession, { sessionId: params.session_id!, interrupt });
      return { id: params.session_id, type: "session_deleted" };
    }),
    route("POST", `${path}/archive`, async (call) => {
      const interrupt = flagOf(call.query, "interrupt");
      const request = { sessionId: call.params.session_id!, interrupt };
      return one(call, (await call.services.call(method.archiveSession, request)).session);
    }),
  ];
}

/** With overrides the version is read first, and pinned. */
async function createSession({ services, body, requestId }: ApiCall): Promise<Session | undefined> {
  const { agentId, agentVersion, overrides } = agentChoice(body.fields);
  const request = { ...newSessionRequest(body), requestId, agentId, agentVersion };
  if (overrides === undefined) return (await services.call(method.createSession, request)).session;
  const found = await services.call(AgentService.method.getAgent, { agentId, version: agentVersion });
  const { version, spec } = found.agent!;
  const agentSpec = overriddenSpec(spec!, overrides);
  return (await services.call(method.createSession, { ...request, agentVersion: version, agentSpec }))
    .session;
}

type Shown = (sessions: readonly Session[]) => Promise<readonly object[]>;

async function listSessions({ services, query }: ApiCall, shown: Shown) {
  if (query.get("agent_version") && !query.get("agent_id"))
    throw invalidField("agent_id", "is needed where agent_version is given");
  const { fromMs, toMs } = rangeOf(query);
  const { sessions, nextPageToken, previousPageToken } = await services.call(method.listSessions, {
    pageSize: limitOf(query, MOST),
    pageToken: pageOf(query),
    statuses: valuesOf(query, "statuses").map(statusOf),
    waitingIsRunning: true,
    agentId: query.get("agent_id") ?? "",
    agentVersion: numberOf(query, "agent_version", { from: 1, to: MAX_VERSION }) ?? 0,
    memoryStoreId: query.get("memory_store_id") ?? "",
    deploymentId: query.get("deployment_id") ?? "",
    includeArchived: flagOf(query, "include_archived"),
    ascending: orderOf(query) === "asc",
    ...(Number.isFinite(fromMs) && { createdAtOrAfter: timestampFromMs(fromMs) }),
    ...(Number.isFinite(toMs) && { createdBefore: timestampFromMs(toMs + 1) }),
  });
  return {
    data: await shown(sessions),
    next_page: nextPageToken || null,
    prev_page: previousPageToken || null,
  };
}

function statusOf(word: string) {
  const status = STATUSES[word];
  if (status === undefined) throw invalidField("statuses", `must be ${Object.keys(STATUSES).join(", ")}`);
  return status;
}

export function orderOf(query: URLSearchParams): "asc" | "desc" | undefined {
  const order = query.get("order");
  if (order === null || order === "asc" || order === "desc") return order ?? undefined;
  throw invalidField("order", "must be asc or desc");
}

async function updateSession({ services, params, body: { fields } }: ApiCall) {
  fields.only("title", "metadata", "budget", "agent", "vault_ids");
  if (fields.has("vault_ids")) throw invalidField("vault_ids", "cannot be changed");
  const agent = fields.object("agent");
  // Null takes it away.
  const budget = fields.value.budget === null ? fieldsOf({}, "budget") : fields.object("budget");
  const request = {
    sessionId: params.session_id!,
    metadata: metadataPatch(fields),
    ...(fields.has("title") && { title: fields.text("title") ?? "" }),
    ...(budget && { budget: budgetOf(budget) }),
    ...(agent && { agent: await agentChange(services, params.session_id!, agent) }),
  };
  return (await services.call(method.updateSession, request)).session;
}

/** What is not said of tools and servers stays as the session has it. */
async function agentChange(services: ApiCall["services"], sessionId: string, fields: Fields) {
  fields.only("tools", "mcp_servers");
  const { session } = await services.call(method.getSession, { sessionId });
  const { tools, mcpServers } = overriddenSpec(session!.agent!.spec!, fields);
  return { tools, mcpServers };
}
