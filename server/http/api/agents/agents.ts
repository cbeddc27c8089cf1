/** `/v1/agents`. */
import { timestampFromMs } from "@bufbuild/protobuf/wkt";
import { TendonError } from "../../../../kit/errors.ts";
import { Turns } from "../../../../kit/turns.ts";
import type { Agent } from "../../../../proto/gen/tendon/v1/agent_pb.js";
import { AgentService } from "../../../../proto/gen/tendon/v1/agent_service_pb.js";
import { type ApiCall, type ApiRoute, route } from "../api-route.ts";
import { flagOf, limitOf, pageOf, rangeOf } from "../list-query.ts";
import { changedAgentSpec, newAgentSpec } from "./agent-input.ts";
import { agentJson } from "./agent-json.ts";
import { membersOf } from "./roster.ts";

const MOST = 100;

const { method } = AgentService;

export function agentRoutes(): ApiRoute[] {
  const turns = new Turns("agent");
  return [
    route("POST", "/v1/agents", createAgent),
    route("GET", "/v1/agents", listAgents),
    route("GET", "/v1/agents/{agent_id}", async (call) => shown(call, await find(call, versionOf(call)))),
    route("POST", "/v1/agents/{agent_id}", (call) => updateAgent(call, turns)),
    route("POST", "/v1/agents/{agent_id}/archive", async (call) => {
      const request = { agentId: call.params.agent_id! };
      return shown(call, (await call.services.call(method.archiveAgent, request)).agent!);
    }),
    route("GET", "/v1/agents/{agent_id}/versions", listVersions),
  ];
}

/** Agents that it may call keep the versions that they have then. */
async function createAgent(call: ApiCall) {
  const { services, body, requestId } = call;
  const request = { requestId, spec: newAgentSpec(body.fields), pinMembers: true };
  return shown(call, (await services.call(method.createAgent, request)).agent!);
}

async function listAgents({ services, query }: ApiCall) {
  const { fromMs, toMs } = rangeOf(query);
  const { agents, nextPageToken } = await services.call(method.listAgents, {
    pageSize: limitOf(query, MOST),
    pageToken: pageOf(query),
    includeArchived: flagOf(query, "include_archived"),
    ...(Number.isFinite(fromMs) && { createdAtOrAfter: timestampFromMs(fromMs) }),
    ...(Number.isFinite(toMs) && { createdBefore: timestampFromMs(toMs + 1) }),
  });
  return pageJson(services, agents, nextPageToken);
}

async function listVersions({ services, query, params }: ApiCall) {
  const page = { pageSize: limitOf(query, MOST), pageToken: pageOf(query) };
  const request = { ...page, agentId: params.agent_id! };
  const { agents, nextPageToken } = await services.call(method.listAgentVersions, request);
  return pageJson(services, agents, nextPageToken);
}

/** Read, changed and written, with the version that was read; a version that the caller names is the only one. */
async function updateAgent(call: ApiCall, turns: Turns) {
  const wanted = call.body.fields.count("version");
  if (wanted === undefined) return turns.untilDone(call.params.agent_id!, () => changeAgent(call));
  const before = await find(call, 0);
  if (wanted !== before.version) throw versionMismatch(before);
  return changeAgent(call, before);
}

async function changeAgent(call: ApiCall, known?: Agent) {
  const { services, body } = call;
  const before = known ?? (await find(call, 0));
  const spec = changedAgentSpec(before.spec!, body.fields, before.id);
  const pinMembers = body.fields.has("multiagent");
  const request = { agentId: before.id, spec, expectedVersion: before.version, pinMembers };
  return shown(call, (await services.call(method.updateAgent, request)).agent!);
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

/** What was left open of the agents that it may call is looked up. */
function membersLeftOpen(services: ApiCall["services"], agents: readonly Agent[]) {
  const isOpen = ({ spec }: Agent) =>
    spec?.multiagent?.agents.some(({ kind }) => kind.case === "agent" && kind.value.version === 0);
  return membersOf(
    services,
    agents.filter(isOpen).map(({ spec }) => spec),
  );
}

async function shown({ services }: ApiCall, agent: Agent) {
  return agentJson(agent, await membersLeftOpen(services, [agent]));
}

async function pageJson(services: ApiCall["services"], agents: readonly Agent[], nextPageToken: string) {
  const find = await membersLeftOpen(services, agents);
  return { data: agents.map((agent) => agentJson(agent, find)), next_page: nextPageToken || null };
}
