/** AgentService. */
import { create } from "@bufbuild/protobuf";
import { timestampDate } from "@bufbuild/protobuf/wkt";
import { contentHash } from "../../kit/canonical-json.ts";
import { notFound } from "../../kit/errors.ts";
import { newId } from "../../kit/ids.ts";
import { decodePageToken, encodePageToken, type PageQuery } from "../../kit/page-token.ts";
import type { RpcContext } from "../../kit/rpc/context.ts";
import type { ServiceImplementation } from "../../kit/rpc/service.ts";
import { type Agent, AgentSpecSchema } from "../../proto/gen/tendon/v1/agent_pb.js";
import type {
  AgentService,
  ArchiveAgentRequest,
  CreateAgentRequest,
  GetAgentRequest,
  ListAgentsRequest,
  ListAgentVersionsRequest,
  UpdateAgentRequest,
} from "../../proto/gen/tendon/v1/agent_service_pb.js";
import { maySee, principalOf, scopeOf, workspaceOf } from "../ports/principal.ts";
import { madeOnce } from "../ports/repeated-creation.ts";
import type { AgentSkills } from "../ports/skills.ts";
import type { AgentStore } from "../store/agents.ts";
import type { Cursor, PageRequest } from "../store/page.ts";
import { type RequestIdStore, SCOPES } from "../store/request-ids.ts";
import { checkMembersExist, withPinnedMembers } from "./members.ts";
import { checkAgentSpec } from "./rules.ts";

export interface AgentDeps {
  readonly agents: AgentStore;
  readonly skills: Pick<AgentSkills, "check">;
  readonly requestIds: Pick<RequestIdStore, "madeBy">;
  readonly defaultWorkspaceId: string;
}

const DEFAULT_PAGE = 20;

export class AgentServiceHandler implements ServiceImplementation<typeof AgentService> {
  private readonly deps: AgentDeps;
  private readonly agents: AgentStore;

  constructor(deps: AgentDeps) {
    this.deps = deps;
    this.agents = deps.agents;
  }

  async createAgent({ requestId, spec, pinMembers }: CreateAgentRequest, context: RpcContext) {
    const wanted = spec ?? create(AgentSpecSchema);
    checkAgentSpec(wanted);
    const workspaceId = workspaceOf(principalOf(context), this.deps.defaultWorkspaceId);
    const request = { requestId, contentHash: contentHash(AgentSpecSchema, wanted) };
    const make = async () => {
      const members = await checkMembersExist(this.agents, wanted, workspaceId);
      await this.deps.skills.check(wanted, workspaceId);
      const spec = pinMembers ? withPinnedMembers(wanted, members) : wanted;
      return this.agents.create({ id: newId("agent"), workspaceId, spec, request });
    };
    const claim = { ...request, workspaceId, scope: SCOPES.agent };
    return { agent: await madeOnce(this.deps.requestIds, claim, make, (id) => this.agents.find(id, 0)) };
  }

  async getAgent({ agentId, version }: GetAgentRequest, context: RpcContext) {
    return { agent: await this.find(agentId, version, context) };
  }

  async listAgents(request: ListAgentsRequest, context: RpcContext) {
    const workspaceId = scopeOf(principalOf(context));
    const { includeArchived } = request;
    const createdAtOrAfter = request.createdAtOrAfter && timestampDate(request.createdAtOrAfter);
    const createdBefore = request.createdBefore && timestampDate(request.createdBefore);
    const times = [createdAtOrAfter?.toISOString(), createdBefore?.toISOString()];
    const query: PageQuery = ["agents", workspaceId, includeArchived, ...times];
    const page = pageOf(request, query);
    const filters = { workspaceId, includeArchived, createdAtOrAfter, createdBefore };
    const { items, next } = await this.agents.list({ ...filters, page });
    return { agents: items, nextPageToken: encodePageToken(query, next) };
  }

  async listAgentVersions(request: ListAgentVersionsRequest, context: RpcContext) {
    const { agentId } = request;
    await this.find(agentId, 0, context);
    const query: PageQuery = ["agent versions", agentId];
    const { items, next } = await this.agents.listVersions({ agentId, page: pageOf(request, query) });
    return { agents: items, nextPageToken: encodePageToken(query, next) };
  }

  async updateAgent(request: UpdateAgentRequest, context: RpcContext) {
    const { agentId, expectedVersion, pinMembers } = request;
    const wanted = request.spec ?? create(AgentSpecSchema);
    checkAgentSpec(wanted);
    const workspaceId = scopeOf(principalOf(context));
    const before = await this.find(agentId, 0, context);
    const members = await checkMembersExist(this.agents, wanted, before.workspaceId);
    await this.deps.skills.check(wanted, before.workspaceId);
    const spec = pinMembers ? withPinnedMembers(wanted, members) : wanted;
    const agent = await this.agents.update({ agentId, workspaceId, spec, expectedVersion });
    if (agent === undefined) throw notFound("agent", agentId);
    return { agent };
  }

  async archiveAgent({ agentId }: ArchiveAgentRequest, context: RpcContext) {
    const agent = await this.agents.archive(agentId, scopeOf(principalOf(context)));
    if (agent === undefined) throw notFound("agent", agentId);
    return { agent };
  }

  private async find(agentId: string, version: number, context: RpcContext): Promise<Agent> {
    const agent = await this.agents.find(agentId, version);
    if (agent === undefined || !maySee(principalOf(context), agent.workspaceId)) {
      throw notFound(version === 0 ? "agent" : `version ${version} of an agent`, agentId);
    }
    return agent;
  }
}

function pageOf(request: { pageSize: number; pageToken: string }, query: PageQuery): PageRequest {
  const after = decodePageToken(query, request.pageToken, 2) as Cursor | undefined;
  return { size: request.pageSize || DEFAULT_PAGE, after };
}
