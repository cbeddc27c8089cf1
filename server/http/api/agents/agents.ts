/** `/v1/agents`. */
import { isTendonError, TendonError } from "../../../../kit/errors.ts";
import type { Agent } from "../../../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../../../proto/gen/tendon/v1/agent_service_pb.js";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { flagOf, isWithin, limitOf, pageOf, rangeOf } from "../list-query.ts";
import { changedAgentSpec, newAgentSpec } from "./agent-input.ts";
import { agentJson } from "./agent-json.ts";

const MOST = 100;
/** Of updates that name no version: whoever changes the agent in between is not overwritten. */
const MAX_TRIES = 5;

const { method } = AgentService;

export function agentRoutes(): ApiRoute[] {
  return [
    route("POST", "/v1/agents", createAgent),
    route("GET", "/v1/agents", listAgents),
    route("GET", "/v1/agents/{agent_id}", async (call) => agentJson(await find(call, versionOf(call)))),
    route("POST", "/v1/agents/{agent_id}", updateAgent),
    route("POST", "/v1/agents/{agent_id}/archive", async ({ services, params }) =>
      agentJson((await services.call(method.archiveAgent, { agentId: params.agent_id! })).agent!),
    ),
    route("GET", "/v1/agents/{agent_id}/versions", listVersions),
  ];
}

async function createAgent({ services, body, requestId }: ApiCall) {
  const spec = newAgentSpec(body.fields);
  return agentJson((await services.call(method.createAgent, { requestId, spec })).agent!);
}

async function listAgents({ services, query }: ApiCall) {
  const range = rangeOf(query);
  const page = { pageSize: limitOf(query, MOST), pageToken: pageOf(query) };
  const includeArchived = flagOf(query, "include_archived");
  const { agents, nextPageToken } = await services.call(method.listAgents, { ...page, includeArchived });
  return pageJson(
    agents.filter(({ createdAt }) => isWithin(range, createdAt)),
    nextPageToken,
  );
}

async function listVersions({ services, query, params }: ApiCall) {
  const page = { pageSize: limitOf(query, MOST), pageToken: pageOf(query) };
  const request = { ...page, agentId: params.agent_id! };
  const { agents, nextPageToken } = await services.call(method.listAgentVersions, request);
  return pageJson(agents, nextPageToken);
}

/** Read, changed and written, with the version that was read. */
async function updateAgent(call: ApiCall) {
  const { services, body } = call;
  const wanted = body.fields.integer("version");
  for (let tries = 1; ; tries += 1) {
    const before = await find(call, 0);
    if (wanted !== undefined && wanted !== before.version) throw versionMismatch(before);
    const spec = changedAgentSpec(before.spec!, body.fields);
    const request = { agentId: before.id, spec, expectedVersion: before.version };
    try {
      return agentJson((await services.call(method.updateAgent, request)).agent!);
    } catch (error) {
      const isTold = wanted !== undefined || tries >= MAX_TRIES;
      if (isTold || !isTendonError(error, "VERSION_MISMATCH")) throw error;
    }
  }
}

function versionMismatch({ id, version }: Agent): TendonError {
  const message = `version: the agent's version is ${version}`;
  return new TendonError("VERSION_MISMATCH", message, { agent_id: id, version: String(version) });
}

async function find({ services, params }: ApiCall, version: number): Promise<Agent> {
  return (await services.call(method.getAgent, { agentId: params.agent_id!, version })).agent!;
}

/** 0 without one. */
function versionOf({ query }: ApiCall): number {
  const text = query.get("version");
  if (text === null) return 0;
  if (/^[1-9]\d{0,8}$/.test(text)) return Number(text);
  throw new TendonError("INVALID_FIELD", "version: must be a whole number from 1", { field: "version" });
}

function pageJson(agents: readonly Agent[], nextPageToken: string) {
  return { data: agents.map(agentJson), next_page: nextPageToken || null };
}
